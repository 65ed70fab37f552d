"""Brokers of a store in a bucket. Each has a separate directory, as on a separate host."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark_ledger.ledger.bucket_store.collector import CollectorLimits
from pyspark_ledger.ledger.bucket_store.creation import found_or_created
from pyspark_ledger.ledger.bucket_store.home import BucketLimits, BucketStore
from pyspark_ledger.ledger.bucket_store.probe import probe_bucket
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cursors import CursorState, OpenCursor
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix, OffloadStatus
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.offloader_choice import OffloaderChoice
from pyspark_ledger.ledger.wal.requests import RequestLimits, read_manifest
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from tests.rigs.entry import entry
from tests.rigs.log import contents

BLOCK = 4096
REQUESTS = RequestLimits(flush_interval_ms=20, object_bytes=16 * 1024, deadline_ms=20_000, refused_ms=1_000)
SMALL = CollectorLimits(snapshot_bytes=1, objects_max=1_000, live_bytes=1 << 40, carry_bytes=1 << 20, age_min_ms=0)


class _Target(OffloaderChoice):
    """Object with which a broker finds its offloader. It always returns the same offloader."""

    def __init__(self, offloader: Any, settings: Settings) -> None:
        super().__init__(lambda _: offloader, settings)

    def has_target(self) -> bool:
        return True


class BucketRig:
    """Hosts with brokers of one store. `host` opens the store on a new host, whose broker takes the store over."""

    def __init__(
        self,
        directory: Path,
        address: str,
        options: S3Options,
        through: S3Options | None = None,
        wrap: Callable[[ObjectStore], ObjectStore] = lambda place: place,
    ) -> None:
        """`wrap` returns the bucket of the brokers, for example with faults at given keys."""
        self.wrap = wrap
        self.directory = directory
        self.address = address
        self.options = options
        self.bucket: ObjectStore = open_object_store(address, options)
        self.through = through or options
        self.lost: list[Exception] = []
        self.opened: list[BucketStore] = []
        self.offloaders: list[ObjectStoreOffloader] = []

    def host(
        self,
        name: str = "a",
        *,
        limits: CollectorLimits = SMALL,
        window: int = 4,
        clock: Callable[[], int] = system_clock_ms,
        cache_bytes: int = 0,
        **settings: Any,
    ) -> BucketStore:
        bucket = self.wrap(open_object_store(self.address, self.through))
        found = found_or_created(bucket, system_clock_ms, REQUESTS, create=True, window=window, probe=_probe)
        offloader = ObjectStoreOffloader(f"{self.address}/segments", self.options, window_bytes=4096, cache_bytes=65536)
        values = Settings.of(settings)
        opened = BucketStore(
            bucket,
            self.directory / name,
            found,
            clock,
            BucketLimits(REQUESTS, limits, window, cache_bytes),
            self.lost.append,
            settings=values,
            offloader=_Target(offloader, values),
        )
        self.opened.append(opened)
        self.offloaders.append(offloader)
        return opened

    def lose_disk(self, name: str = "a") -> None:
        shutil.rmtree(self.directory / name)

    def keys(self, prefix: str = "") -> list[str]:
        return [found.key for found in self.bucket.objects(prefix)]

    def manifest(self) -> Any:
        return read_manifest(self.bucket, REQUESTS).manifest

    def manifest_of_any_home(self) -> Any:
        return read_manifest(self.bucket, REQUESTS, of_any_home=True).manifest

    def close(self) -> None:
        for opened in self.opened:
            opened.close()
        for offloader in self.offloaders:
            offloader.close()
        self.bucket.close()


def _probe(bucket: ObjectStore) -> None:
    probe_bucket(bucket, create_rounds=1, replace_rounds=1, limits=REQUESTS)


def log(opened: BucketStore, name: str = "log", entries: int = 1_000, **fields: Any) -> ManagedLedger:
    request = CreateLedger(name, exist_ok=True, block_bytes=BLOCK, max_entries_per_ledger=entries, **fields)
    return opened.store.create_ledger(request)


def append(opened: BucketStore, payloads: Sequence[bytes], name: str = "log", entries: int = 1_000) -> list[Position]:
    ledger = log(opened, name, entries)
    return [ledger.append([entry(payload)]).result(30) for payload in payloads]


def payloads(opened: BucketStore, name: str = "log") -> list[bytes]:
    return contents(opened.store.ledger(name))


def cursor(opened: BucketStore, name: str = "c", start: Position = EARLIEST, ledger: str = "log") -> CursorState:
    return opened.store.cursors.open(OpenCursor(ledger, name, start))


def offload(opened: BucketStore, name: str = "log") -> OffloadStatus:
    """Upload all sealed segments now."""
    opened.store.offloads.offload(OffloadPrefix(name, None))
    opened.store.offloads.round()
    return opened.store.offloads.status(name)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]
