"""Verification of a store's log in its bucket: manifest, snapshot, and every byte of every live object.

Rules
- Nothing is changed and no epoch is raised: a broker may serve the store meanwhile.
- An object that the collector deletes during the pass is not needed any more. The pass continues at the present first
  live number.
- The first damage raises Corrupt, which names the object, the place and both values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark_ledger.ledger.bucket_store.snapshots import read_snapshot
from pyspark_ledger.ledger.database.changed_rows import decode_rows
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.wal.bucket import MANIFEST, Bucket, log_key
from pyspark_ledger.ledger.wal.log_object import RECORDS
from pyspark_ledger.ledger.wal.reader import WalReader
from pyspark_ledger.ledger.wal.requests import RequestLimits, look
from pyspark_ledger.ledger.wal.scan import LogScan


class VerifiedLog(NamedTuple):
    """Verified objects of the log, and their batches."""

    objects: int
    batches: int


def verify_log(bucket: Bucket, limits: RequestLimits, advance: Callable[[int], object] = lambda _: None) -> VerifiedLog:
    """Verify the log of a store. `advance` is called with 1 for each object.

    Raises NotFound if there is no store, and Corrupt for damage.
    """
    manifest = look(bucket, limits).manifest
    if manifest.snapshot is None:
        raise Corrupt(f"{MANIFEST} of {bucket.address} names no snapshot")
    read_snapshot(bucket, manifest.snapshot, limits)
    reader = WalReader(bucket, manifest.store_id, LogScan(manifest.first), limits)
    objects = batches = 0
    while True:
        number = reader.scan.next
        found = reader.fetch(number)
        if found is None:
            now = look(bucket, limits).manifest
            if now.first > number:
                reader.scan = LogScan(now.first, reader.scan.epoch)
                continue
            if reader.fetch(number) is None:
                reader.require_end(number, now.window)
                return VerifiedLog(objects, batches)
            continue
        where = f"{log_key(number)} of {bucket.address}"
        for batch in reader.apply(found):
            batches += 1
            for part, payload in batch.parts:
                if part.kind == RECORDS:
                    decode_rows(payload, where)
        objects += 1
        advance(1)
