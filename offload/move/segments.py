"""Upload of the segments of a store that moves into a bucket.

    sealed segment with a local file                 is uploaded, as in an offload
    offloaded segment without a local file           its objects are copied unchanged, and keep their names

Rules
- The name of an upload is a digest of the segment's id and of the nonce, a random id in the bucket's manifest. So if a
  run of the command is killed, the next run gives each object the same name. It finds the objects of the killed run,
  and resumes an unfinished upload. The move then verifies every byte.
- If an earlier run uploaded a segment that does not exist any more, its objects are deleted.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.retry import retry
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.segment.verification import load_or_rebuild_index
from pyspark_ledger.ledger.segment.writer import data_path
from pyspark_ledger.ledger.tiering.offloader import NO_CALLBACKS, OffloadCallbacks
from pyspark_ledger.ledger.tiering.recorded_segment import extra_metadata, recorded_segment
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.offload.format.block_index import parse_index
from pyspark_ledger.offload.index_objects import split_into_parts
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from pyspark_ledger.offload.reader import INDEX_BYTES_MAX
from pyspark_ledger.offload.upload import upload_file
from pyspark_ledger.offload.verification import download_object

Progress = Callable[[float | None, str], object]


def upload_segments(
    source: Path, records: Metadata, nonce: str, offloader: ObjectStoreOffloader, progress: Progress
) -> dict[int, OffloadAttempt]:
    """Copy all segments to the offloader's address. Return the complete attempt (upload) of each segment, by its id."""
    rows = [(name, row) for name in records.names() for row in records.segments.of(name)]
    total, done = sum(row.file_bytes for _, row in rows), 0
    found: dict[int, OffloadAttempt] = {}
    for number, (name, row) in enumerate(rows):
        words = f"segment {number + 1:,} of {len(rows):,}"

        def advance(uploaded: int, before: int = done, words: str = words) -> None:
            progress((before + uploaded) / max(total, 1), words)

        advance(0)
        attempt = OffloadAttempt.of(row.listed())
        if attempt is not None and attempt.complete and attempt.local_deleted:
            _require_indexes(name, row.ledger_id, attempt)
            _copy_objects(ObjectKey(attempt.attempt, row.ledger_id), offloader.store_of(attempt.driver), offloader)
        else:
            attempt = OffloadAttempt(uuid.uuid5(uuid.UUID(nonce), str(row.ledger_id)), offloader.driver)
            _upload(source, records, name, row, attempt, offloader, OffloadCallbacks(advance, lambda: False))
            attempt = attempt.completed(system_clock_ms())
        found[row.ledger_id] = attempt.at(offloader.driver).without_local()
        done += row.file_bytes
    kept = {attempt.attempt for attempt in found.values()}
    store_id, now_ms = records.store_record().store_id, system_clock_ms()
    for orphan in retry(lambda: offloader.orphans(store_id, lambda: kept, now_ms)):
        retry(partial(offloader.delete_offloaded, *orphan, offloader.driver))
    return found


def _upload(
    source: Path,
    records: Metadata,
    name: str,
    row: SegmentRecord,
    attempt: OffloadAttempt,
    offloader: ObjectStoreOffloader,
    callbacks: OffloadCallbacks,
) -> None:
    path, entries = data_path(source / "ledgers", row.ledger_id), row.listed().entries
    index = load_or_rebuild_index(
        path,
        row.ledger_id,
        store_id=records.store_record().store_id,
        entries=entries,
        file_bytes=row.file_bytes,
        first_row=row.first_row,
        block_bytes=row.block_bytes,
        describe=entry_traits,
    )
    segment = recorded_segment(records, name, row, path, lambda: index)
    offloader.offload(segment, attempt.attempt, extra_metadata(records, name), callbacks)


def _require_indexes(name: str, ledger_id: int, attempt: OffloadAttempt) -> None:
    """Raise Refused for a direct segment without its index objects. A broker must put them first."""
    if attempt.lacks_indexes:
        raise Refused(
            f"segment {ledger_id} of {short_name(name)!r} has no index objects: its broker ended before it put them",
            hint="Serve the store once with `ledger serve`, stop it with `ledger stop`, and run the command again",
        )


def _copy_objects(key: ObjectKey, place: ObjectStore, offloader: ObjectStoreOffloader) -> None:
    """Copy the objects of an offloaded segment. The block index, which completes the copy, is the last."""
    target = offloader.store
    encoded = retry(lambda: place.get(key.index_name, INDEX_BYTES_MAX).data)
    index = parse_index(encoded, f"{place.address}/{key.index_name}")
    with tempfile.TemporaryDirectory(prefix="ledger-move-") as scratch:
        path = Path(scratch) / "data"
        download_object(place, key, index.data_bytes, path)
        metadata = retry(lambda: place.head(key.data_name)).metadata
        parts = split_into_parts(index)
        upload_file(target, key.data_name, metadata, path, parts, threads=2, callbacks=NO_CALLBACKS)
    for name in (key.entries_name, key.index_name):
        try:
            found = retry(lambda: place.get(name, INDEX_BYTES_MAX))  # noqa: B023 — called at once
        except NotFound:
            if name == key.index_name:
                raise
            continue  # the segment was offloaded without an entry index, for example by Pulsar
        retry(lambda: target.put(name, found.data, found.head.metadata))  # noqa: B023 — called at once
