"""Verification of a whole store in a bucket: its log, and the objects of its uploaded segments.

The *manifest* of such a store is the object that names its broker and lists its snapshots. The page docs/concepts.md
explains the words segment, entry and snapshot.

Rules
- No broker is started, and a running broker is not replaced. So a broker may serve the store meanwhile.
- The log and the snapshot are always verified. With a name, only the uploaded segments of that ledger are read.
- A segment that retention deletes during the pass is no damage.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark_ledger.ledger.bucket_store.verification import UploadedSegment, VerifiedStore, verify_store
from pyspark_ledger.ledger.errors import DataLoss, NotFound
from pyspark_ledger.ledger.names import canonical_name, partition_of, short_name
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.tiering.recorded_segment import extra_metadata, recorded_segment
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.requests import READER_LIMITS
from pyspark_ledger.offload.verification import verify_objects


class VerifiedHome(NamedTuple):
    """Number of verified entries of each ledger, and the number of verified log objects.

    `without_index` is the number of uploaded segments that have no entry index.
    """

    entries: dict[str, int]
    log_objects: int
    without_index: int


def verify_home(
    home: ObjectStore,
    segments: ObjectStore,
    name: str | None,
    progress: Callable[[float, str], object],
    *,
    planned: StoreManifest | None = None,
) -> VerifiedHome:
    """Verify the store at `home`, whose uploaded segments are at `segments`.

    `progress` is called with the finished share and a text. `planned` is a manifest that is not in the bucket yet. With
    `planned`, the objects that this manifest names are verified. Raises NotFound if there is no store or no such
    ledger, Corrupt for damage, and DataLoss for a missing object.
    """
    with tempfile.TemporaryDirectory(prefix="ledger-verify-") as directory:
        scratch = Path(directory)
        verified = verify_store(
            home,
            scratch / "store",
            READER_LIMITS,
            lambda objects: progress(0, f"{objects:,} objects of the log"),
            planned=planned,
        )
        entries = _wanted(verified, name)
        uploaded = [segment for segment in verified.uploaded if segment.name in entries]
        without_index = 0
        for number, segment in enumerate(uploaded):
            progress(number / len(uploaded), f"segment {number + 1} of {len(uploaded)}")
            try:
                without_index += not _verify(segments, verified, segment, scratch / "segment")
                entries[segment.name] += segment.record.listed().entries
            except DataLoss:
                if planned is not None:
                    raise
                present = verify_store(home, scratch / f"store-{number}", READER_LIMITS).uploaded
                if segment.attempt.attempt in {found.attempt.attempt for found in present}:
                    raise
    return VerifiedHome(entries, verified.objects, without_index)


def _wanted(verified: VerifiedStore, name: str | None) -> dict[str, int]:
    """Return the entries in the log of each wanted ledger. A partitioned ledger is replaced by its partitions."""
    if name is None:
        return dict(verified.entries)
    canonical = canonical_name(name)
    found = {log: count for log, count in verified.entries.items() if canonical in (log, _whole(log))}
    if not found:
        raise NotFound(f"there is no ledger {short_name(canonical)!r} in the store")
    return found


def _whole(name: str) -> str:
    """Return the ledger of a partition, or the name itself."""
    partition = partition_of(name)
    return name if partition is None else partition[0]


def _verify(store: ObjectStore, verified: VerifiedStore, segment: UploadedSegment, path: Path) -> bool:
    """Verify the objects of one segment. Return False if it was offloaded without an entry index."""
    row, records = segment.record, verified.records

    def index() -> EntryIndex:
        raise AssertionError("the index is read from the data object")

    described, extra = recorded_segment(records, segment.name, row, path, index), extra_metadata(records, segment.name)
    key, former = ObjectKey(segment.attempt.attempt, row.ledger_id), records.store_record().former
    return verify_objects(store, key, described, row.first_row, extra, former=former)
