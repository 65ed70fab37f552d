"""Verification of a store in its bucket: manifest, snapshot, log objects, and the files that a broker builds from them.

The *manifest* is the object that names the store's broker and its newest *snapshot*, a copy of the metadata. Only log
objects that the store still needs are verified: the broker's collector, which deletes old objects, may delete the
others.

    manifest ─▶ snapshot ─▶ every log object ─▶ a scratch directory, as a broker builds it ─▶ records, segments, cursors

Rules
- The verification changes nothing in the bucket. So a broker may serve the store at the same time.
- The scratch directory gets the files of all segments that are not uploaded. Each file is compared with its record.
- If the collector deletes objects that were not read yet, the verification begins again (`view`).
- The first damage raises Corrupt. The error names the object or the segment and the place, and has the expected and the
  found value.
- The result lists the uploaded segments. The caller verifies their objects, because this package does not know their
  format.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark_ledger.ledger.bucket_store.view import build_view
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.cursor.cursor_log import recover_cursor_log
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES, Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.segment.recovery import recover_segment
from pyspark_ledger.ledger.segment.writer import data_path
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.requests import RequestLimits


class UploadedSegment(NamedTuple):
    """Segment of a managed ledger whose objects are complete."""

    name: str
    record: SegmentRecord
    attempt: OffloadAttempt


class VerifiedStore(NamedTuple):
    """Result: number of log objects, entries of each ledger in the log, uploaded segments, and records."""

    objects: int
    entries: dict[str, int]
    uploaded: list[UploadedSegment]
    records: Metadata


def verify_store(
    bucket: ObjectStore,
    directory: Path,
    limits: RequestLimits,
    advance: Callable[[int], object] = lambda _: None,
    *,
    planned: StoreManifest | None = None,
) -> VerifiedStore:
    """Verify a store, except for its uploaded segments. `directory` is a new directory, which the caller deletes.

    `advance` is called with the number of verified log objects. With `planned`, verify the objects of a manifest that
    is not in the bucket yet. Raises NotFound if there is no store, and Corrupt for damage.
    """
    view = build_view(bucket, directory, limits, advance, planned=planned)
    return _verify_built(directory, view.end - view.manifest.first)


def _verify_built(directory: Path, objects: int) -> VerifiedStore:
    """Check the built records, and the open segments and cursors, which the builder does not read."""
    records = Metadata(MetadataView(directory / "metadata.sqlite", TABLES), system_clock_ms)
    store_id = records.store_record().store_id
    entries: dict[str, int] = {}
    uploaded: list[UploadedSegment] = []
    for name in records.names():
        entries[name] = 0
        for row in records.segments.of(name):
            listed = row.listed()
            attempt = OffloadAttempt.of(listed)
            if attempt is not None and attempt.complete:
                uploaded.append(UploadedSegment(name, row, attempt))
            else:
                entries[name] += listed.entries if listed.timestamp else _open_entries(directory, row, store_id)
    for ledger_id in sorted(records.cursors.ledger_ids()):
        if recover_cursor_log(directory / "ledgers", ledger_id, store_id, fence=False, built=True) is None:
            raise Corrupt(f"log {ledger_id} of a cursor was built from the bucket and has no complete state")
    return VerifiedStore(objects, entries, uploaded, records)


def _open_entries(directory: Path, row: SegmentRecord, store_id: str) -> int:
    path = data_path(directory / "ledgers", row.ledger_id)
    if not path.exists():
        return 0  # the segment is listed and has no entry yet
    recovered = recover_segment(
        path,
        row.ledger_id,
        store_id=store_id,
        block_bytes=row.block_bytes,
        first_row=row.first_row,
        describe=entry_traits,
        built=True,
    )
    return recovered.entries
