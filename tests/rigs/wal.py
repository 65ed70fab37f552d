"""Write-ahead log of one store in a bucket: functions to take over, append and read all batches."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from msgspec.structs import replace

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import LOG_PREFIX, MANIFEST, number_of
from pyspark_ledger.ledger.wal.manifest import StoreManifest, encode_manifest
from pyspark_ledger.ledger.wal.packing import Item, MetadataRows
from pyspark_ledger.ledger.wal.reader import WalReader
from pyspark_ledger.ledger.wal.requests import RequestLimits, read_manifest, replace_manifest
from pyspark_ledger.ledger.wal.scan import LogScan
from pyspark_ledger.ledger.wal.take_over import TakeOver, identity_of
from pyspark_ledger.ledger.wal.writer import WalWriter

LIMITS = RequestLimits(flush_interval_ms=20, object_bytes=64 * 1024, deadline_ms=20_000, refused_ms=1_000)


class WalRig:
    """Store with an empty log. `bucket` is the bucket itself, `through` the same bucket behind a proxy."""

    def __init__(self, bucket: ObjectStore, through: ObjectStore) -> None:
        self.bucket = bucket
        self.through = through
        self.store_id = str(uuid.uuid4())
        self.writers: list[WalWriter] = []
        self.failures: list[Exception] = []
        bucket.put(MANIFEST, encode_manifest(StoreManifest(self.store_id, "made", window=4)), only_new=True)

    def take_over(
        self, *, window: int = 4, limits: RequestLimits = LIMITS, before: Callable[[str], None] = lambda _: None
    ) -> tuple[WalWriter, list[bytes]]:
        """Take the store over as a new broker. Return its writer, and the log's texts. Calls `before` at each step."""
        taking = TakeOver(self.through, uuid.uuid4(), limits, system_clock_ms)
        before("look")
        found = read_manifest(self.through, limits)
        before("raise")
        found = taking.raise_epoch(found, window)
        before("read")
        texts = [text_of(batch.parts) for batch in taking.batches()]
        before("write")
        identity = identity_of(found, taking.first_number)
        writer = WalWriter(self.through, identity, found.manifest.window, limits, system_clock_ms, self.failures.append)
        self.writers.append(writer)
        return writer, texts

    def read(self) -> list[bytes]:
        """Return the texts of all batches that a reader finds. Raises Corrupt if a log object is lost."""
        manifest = read_manifest(self.bucket, LIMITS).manifest
        reader = WalReader(self.bucket, self.store_id, LogScan(manifest.first), LIMITS)
        texts = [text_of(batch.parts) for batch in reader.batches()]
        reader.require_end(manifest)
        return texts

    def collect(self, writer: WalWriter) -> None:
        """Mark all objects of the log as unneeded, and delete them, as the broker's clean-up does."""
        found = read_manifest(self.bucket, LIMITS)
        after = replace(found.manifest, revision=found.manifest.revision + 1, first=writer.end)
        replace_manifest(self.bucket, found, after, LIMITS)
        self.bucket.delete(
            [listed.key for listed in self.bucket.objects(LOG_PREFIX) if number_of(listed.key) < writer.end]
        )

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.through.close()
        self.bucket.close()


def text(number: int, size: int = 0) -> list[Item]:
    """Return a batch of one text."""
    return [MetadataRows(f"{number}".encode().ljust(size, b"."))]


def text_of(parts: list) -> bytes:  # type: ignore[type-arg]
    return b"".join(bytes(payload) for _, payload in parts).rstrip(b".")
