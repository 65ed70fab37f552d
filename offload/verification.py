"""Verification of the objects of one offloaded segment: every byte of data, entry index and block index.

The page docs/concepts.md explains the words segment, block, entry, data object and direct segment.

    data object   ─▶ a local file ─▶ headers, frame headers, stamps, padding and the checksum of each entry
    frame header  length and id before an entry
    stamp         time at which the broker stored an entry, and its row number
    entry index   equals the index of that file
    block index   equals the index that an offload of that file would write

Rules
- Nothing in the bucket is changed. The local file is deleted.
- Damage raises Corrupt, which names the object and the place. A missing object raises DataLoss.
- Exception: a segment may lack its entry index, if an earlier version offloaded it without one. No row needs this
  index. A direct segment always has one.
- Exception: a direct segment may lack both indexes until its broker has put them. Indexes that exist are verified.
- The stamps in the object of a direct segment must be provisional. The real stamps are written into the local file.
- A segment that an earlier version transformed for its upload is Unsupported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound
from pyspark_ledger.ledger.message.schema.documents import parse_schemas
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.retry import retry
from pyspark_ledger.ledger.segment.index import EntryIndex, parse_sealed, sealed_bytes
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.segment.verification import verify_segment
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment
from pyspark_ledger.ledger.tiering.offloaded_segment import transformed
from pyspark_ledger.ledger.tiering.offloader import LocalSegment
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.offload.direct.data_object import stamp_file
from pyspark_ledger.offload.format.block_index import BlockIndex, parse_index
from pyspark_ledger.offload.index_objects import build_index
from pyspark_ledger.offload.reader import INDEX_BYTES_MAX

_STEP_BYTES = 8 * 1024 * 1024
T = TypeVar("T")


def verify_objects(
    store: ObjectStore,
    key: ObjectKey,
    segment: LocalSegment,
    first_row: int,
    extra: Mapping[str, str],
    former: Collection[str] = (),
) -> bool:
    """Verify the objects of a segment. Return False if it was offloaded without an entry index.

    `segment` is its record, with the present schemas and the path of the local file. `extra` is the metadata that the
    offload has written to the objects, such as the name of the cluster. `former` are the former ids of the
    store, one of which may have written the objects.
    """
    if segment.direct is not None and not segment.direct.indexed:
        _verify_pending(store, key, segment, segment.direct, extra, former)
        return True
    where = f"{store.address}/{key.index_name}"
    encoded = _fetched(key, lambda: store.get(key.index_name, INDEX_BYTES_MAX).data)
    index = parse_index(encoded, where)
    size = _fetched(key, lambda: store.head(key.data_name)).size
    if size != index.data_bytes:
        raise Corrupt(f"{store.address}/{key.data_name} has {size} bytes, its index states {index.data_bytes}")
    if size != segment.file_bytes:
        raise transformed(f"{store.address}/{key.data_name}", size, segment.file_bytes)
    try:
        if segment.direct is not None:
            download_stamped(store, key, segment.direct, segment.path)
        else:
            download_object(store, key, size, segment.path)
        entry_index = _verified_data(store, key, segment, first_row)
        store_ids = (extra.get("pulsarClusterName", ""), *former)
        has_index = _require_entry_index(store, key, segment, entry_index, store_ids)
        _require_block_index(where, encoded, index, replace(segment, index=lambda: entry_index), extra)
    finally:
        segment.path.unlink(missing_ok=True)
    if not has_index and segment.direct is not None:
        raise DataLoss(f"an object of segment {key.ledger_id} does not exist: {store.address}/{key.entries_name}")
    return has_index


def _verify_pending(
    store: ObjectStore,
    key: ObjectKey,
    segment: LocalSegment,
    direct: DirectSegment,
    extra: Mapping[str, str],
    former: Collection[str],
) -> None:
    """Verify the objects of a direct segment whose broker has not put both index objects yet."""
    try:
        download_stamped(store, key, direct, segment.path)
        entry_index = _verified_data(store, key, segment, direct.stamps.row_start)
        store_ids = (extra.get("pulsarClusterName", ""), *former)
        _require_entry_index(store, key, segment, entry_index, store_ids)
        encoded = retry(lambda: store.get(key.index_name, INDEX_BYTES_MAX)).data
    except NotFound:
        return
    finally:
        segment.path.unlink(missing_ok=True)
    where = f"{store.address}/{key.index_name}"
    _require_block_index(
        where, encoded, parse_index(encoded, where), replace(segment, index=lambda: entry_index), extra
    )


def _fetched(key: ObjectKey, fetch: Callable[[], T]) -> T:
    try:
        return retry(fetch)
    except NotFound as gone:
        raise DataLoss(f"an object of segment {key.ledger_id} does not exist: {gone.message}") from gone


def download_object(store: ObjectStore, key: ObjectKey, size: int, path: Path) -> None:
    """Write the data object of a segment to a new file. Raises DataLoss if the object does not exist."""
    with closing(os.fdopen(disk.create_file(path), "wb")) as file:
        for start in range(0, size, _STEP_BYTES):
            length = min(_STEP_BYTES, size - start)
            file.write(memoryview(_fetched(key, lambda: store.get_range(key.data_name, start, length))))  # noqa: B023 — called at once


def download_stamped(store: ObjectStore, key: ObjectKey, direct: DirectSegment, path: Path) -> None:
    """Write the data object of a direct segment to a new file, and the real stamps in place of the provisional ones.

    Raises DataLoss if the object does not exist, and Corrupt if it is not the object of the record.
    """
    where = f"{store.address}/{key.data_name}"
    size = _fetched(key, lambda: store.head(key.data_name)).size
    if size != direct.file_bytes:
        raise Corrupt(f"{where} has {size} bytes, the record of segment {key.ledger_id} states {direct.file_bytes}")
    download_object(store, key, size, path)
    stamp_file(path, key.ledger_id, direct, where)


def _verified_data(store: ObjectStore, key: ObjectKey, segment: LocalSegment, first_row: int) -> EntryIndex:
    """Verify the data, and return their index. Errors name the object and not the local file."""
    try:
        return verify_segment(
            segment.path,
            key.ledger_id,
            entries=segment.entries,
            file_bytes=segment.file_bytes,
            first_row=first_row,
            describe=entry_traits,
        )
    except Corrupt as error:
        shown = error.message.replace(str(segment.path), f"{store.address}/{key.data_name}")
        raise Corrupt(shown, hint=error.hint) from None


def _require_entry_index(
    store: ObjectStore, key: ObjectKey, segment: LocalSegment, entry_index: EntryIndex, store_ids: Sequence[str]
) -> bool:
    """Compare the entry index with the data. Return False if it does not exist."""
    where = f"{store.address}/{key.entries_name}"
    try:
        found = retry(lambda: store.get(key.entries_name, INDEX_BYTES_MAX)).data
    except NotFound:
        return False
    sizes = {"block_bytes": segment.block_bytes, "file_bytes": segment.file_bytes}
    expected = [sealed_bytes(entry_index, store_id=store_id, **sizes) for store_id in store_ids]
    if found not in expected:
        # If a checksum of the index is wrong, this call raises an error that names the place of the checksum.
        parse_sealed(found, Path(where), key.ledger_id, segment.entries)
        at = _first_difference(found, expected[0])
        raise Corrupt(f"{where} at {at}: differs from the entries of the data object")
    return True


def _require_block_index(
    where: str, encoded: bytes, index: BlockIndex, segment: LocalSegment, extra: Mapping[str, str]
) -> None:
    written, present = _schemas(index.payload_schemas, where), _schemas(segment.schemas, "the records")
    if any(present.get(version) != schema for version, schema in written.items()):
        raise Corrupt(f"{where}: payload schemas {index.payload_schemas[:80]!r} differ from those of the records")
    expected = build_index(replace(segment, schemas=index.payload_schemas), segment.index(), extra).encode()
    if encoded != expected:
        raise Corrupt(f"{where} at {_first_difference(encoded, expected)}: differs from the index of the data object")


def _schemas(text: str, where: str) -> dict[int, object]:
    """Return payload schemas by version."""
    try:
        return dict(parse_schemas(text, where).versions) if text else {}
    except LedgerError as error:
        raise Corrupt(f"{where}: {error.message}") from None


def _first_difference(found: bytes, expected: bytes) -> int:
    """Return the offset of the first byte that differs."""
    common = min(len(found), len(expected))
    return next((at for at in range(common) if found[at] != expected[at]), common)
