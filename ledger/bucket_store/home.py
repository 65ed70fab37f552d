"""Store of a bucket, opened by its only broker: take-over, local directory, log, store, collector.

    manifest ─▶ epoch + 1 ─▶ snapshot and log ─▶ directory ─▶ claims ─▶ write-ahead log ─▶ Store ─▶ collector

Rules
- The lock of the directory is taken before the directory is emptied.
- The end of the log is the end of the broker: `on_lost` is called once with the error.
- `close` seals nothing: everything acknowledged is in the bucket, and the next broker continues the open segments.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.bucket_store.builder import Builder
from pyspark_ledger.ledger.bucket_store.collector import CollectedLog, Collector, CollectorLimits
from pyspark_ledger.ledger.bucket_store.durability import BucketDurability, segment_name, whole_file
from pyspark_ledger.ledger.bucket_store.live_files import LiveFile
from pyspark_ledger.ledger.bucket_store.manifest_holder import ManifestHolder
from pyspark_ledger.ledger.bucket_store.snapshots import read_snapshot, snapshot_of
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.database.changed_rows import encode_rows
from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt, LedgerError, NotFound, Unavailable
from pyspark_ledger.ledger.ownership import StoreLock, host_identity
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.wal.bucket import Bucket, log_key
from pyspark_ledger.ledger.wal.manifest import BrokerAddress
from pyspark_ledger.ledger.wal.requests import FoundManifest, RequestLimits
from pyspark_ledger.ledger.wal.take_over import TakeOver, identity_of
from pyspark_ledger.ledger.wal.writer import WalWriter

_CARRIED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class BucketLimits:
    """Limits of a store in a bucket. `window` is the number of puts in flight."""

    requests: RequestLimits = field(default_factory=RequestLimits)
    collector: CollectorLimits = field(default_factory=CollectorLimits)
    window: int = 8


class BucketStore:
    """Open store of a bucket. Its `store` is used as any store."""

    def __init__(
        self,
        bucket: Bucket,
        directory: Path,
        found: FoundManifest,
        clock: Clock,
        limits: BucketLimits,
        on_lost: Callable[[LedgerError], None],
        **options: Any,
    ) -> None:
        """Take the store over whose manifest is `found`. `options` are those of `Store.open`.

        Raises Unavailable if another broker takes the store over at the same time.
        """
        disk.make_directory(directory)
        lock = StoreLock.acquire(directory)
        try:
            taking = TakeOver(bucket, uuid.uuid4(), limits.requests, clock)
            self._taken = _raised(taking, found, limits.window)
            builder, rows = _built(bucket, directory, taking, self._taken, limits.requests)
            self.wal = WalWriter(
                bucket,
                identity_of(self._taken, taking.first_number),
                self._taken.manifest.window,
                limits.requests,
                clock,
                on_lost,
            )
        except BaseException:
            lock.release()
            raise
        self._directory = directory
        self._durability = BucketDurability(self.wal, builder.files, builder.records_end)
        try:
            if rows:
                self._durability.replicate(rows)
            self.store = Store.open(directory, clock=clock, durability=self._durability, lock=lock, **options)
        except BaseException:
            self.wal.close()
            lock.release()
            raise
        self.manifest = ManifestHolder(bucket, self._taken, limits.requests)
        self.collector = Collector(
            bucket, self.manifest, builder.files, self._collected(), limits.collector, limits.requests, clock
        )

    def begin(self, broker: BrokerAddress) -> None:
        """Write the broker's address to the manifest, where other hosts find the broker, and start the collector."""
        self.manifest.change(broker=broker)
        self.collector.start()

    def settle(self) -> None:
        """Accept nothing more and complete the queued work."""
        self.collector.stop()
        self.store.settle()

    def close(self) -> None:
        """Acknowledge everything that is queued, release the store, and remove the broker from the manifest."""
        self.settle()
        self.store.close()
        self.wal.close()
        if self.manifest.manifest.broker is not None and self.wal.failed is None:
            self.manifest.change(broker=None)

    def _collected(self) -> CollectedLog:
        wal = self.wal
        return CollectedLog(
            end=lambda: wal.end,
            needed=lambda: wal.needed,
            size=lambda: wal.bytes,
            snapshot=self._snapshot,
            needed_files=self._needed_files,
            carry=self._carry,
            roll_over=self._roll_over,
            fail=wal.fail,
        )

    def _snapshot(self) -> tuple[bytes, int]:
        metadata = self.store.metadata
        return metadata.read_at_rest(lambda c: (snapshot_of(c), self._durability.records_from))

    def _needed_files(self) -> set[str]:
        metadata = self.store.metadata
        ids = metadata.segments.only_local() | metadata.cursors.ledger_ids() | metadata.unwanted_files.made()
        staged = (path for path in (self._directory / "staging").rglob("*.part"))
        return {*map(segment_name, ids), *(str(path.relative_to(self._directory)) for path in staged)}

    def _carry(self, files: Mapping[str, LiveFile]) -> dict[str, int]:
        numbers: dict[str, int] = {}
        names = list(files)
        for at in range(0, len(names), _CARRIED_AT_ONCE):
            with ExitStack() as opened:
                places = {}
                for name in names[at : at + _CARRIED_AT_ONCE]:
                    with suppress(NotFound):  # deleted meanwhile
                        fd = opened.enter_context(disk.opened(self._directory / name))
                        places[name] = self._durability.append([whole_file(name, fd, files[name].length)])
                numbers |= {name: place.result().first for name, place in places.items()}
        return numbers

    def _roll_over(self, names: Iterable[str]) -> None:
        for name in names:
            stem = Path(name).stem
            owner = self.store.metadata.segments.owner(int(stem)) if stem.isdecimal() else None
            if owner is not None:
                self.store.ledger(owner).roll_over()


def _raised(taking: TakeOver, found: FoundManifest, window: int) -> FoundManifest:
    try:
        return taking.raise_epoch(found, window)
    except AlreadyExists as error:
        raise Unavailable(f"another broker takes the store over: {error.message}", hint="Connect to it") from None


def _built(
    bucket: Bucket, directory: Path, taking: TakeOver, taken: FoundManifest, limits: RequestLimits
) -> tuple[Builder, bytes]:
    """Build the directory. Return its builder and the encoded rows that the caller appends to the log."""
    name = taken.manifest.snapshot
    if name is None:
        raise Corrupt(f"the manifest of {bucket.address} names no snapshot", hint="Restore an older version of it")
    builder = Builder(directory, name.records_from)
    builder.begin(read_snapshot(bucket, name, limits))
    for batch in taking.batches():
        builder.apply(batch, f"{log_key(batch.place.last)} of {bucket.address}")
    rows = builder.finish(host_identity(directory))
    return builder, encode_rows(rows) if rows else b""
