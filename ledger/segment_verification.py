"""A sealed segment against what the metadata says of it, byte by byte; and its sidecar, made anew.

Rules: a sealed segment is never cut. Whatever disagrees is `Corrupt`, naming file, offset and both values. A
sidecar that is missing or damaged is rebuilt from the data, and the log says so.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path

import numpy as np

from ledger import disk
from ledger.entry import BrokerStamp
from ledger.errors import Corrupt, DataLoss, NotFound
from ledger.segment_index import EntryIndex, load_index, make_rows, write_sealed
from ledger.segment_reader import walk_segment
from ledger.segment_scan import Describe, checked_traits

_log = logging.getLogger(__name__)


def verify_segment(
    path: Path,
    ledger_id: int,
    *,
    entries: int,
    file_bytes: int,
    first_row: int,
    describe: Describe,
    index: EntryIndex | None = None,
) -> EntryIndex:
    """Walk a sealed segment, compare everything, the index too when given; returns what the data says."""
    view = _mapped(path, file_bytes)
    found: list[tuple[int, int, int, int]] = []
    stamp = BrokerStamp(0, first_row)
    for entry_id, offset, entry in walk_segment(view, ledger_id, where=str(path), entries=entries):
        try:
            traits = checked_traits(entry, describe, stamp)
        except Corrupt as error:
            raise Corrupt(f"{path} at {offset}: entry {entry_id}: {error.message}") from error
        stamp = traits.stamp or stamp
        found.append((offset, len(entry), stamp.timestamp_ms, stamp.row_end))
    columns = np.array(found, dtype=np.int64).reshape(-1, 4).T
    walked = EntryIndex.of_rows(ledger_id, first_row, make_rows(columns[0], columns[1], columns[2], columns[3]))
    if index is not None:
        _require_same(path, walked, index)
    return walked


def load_or_rebuild_index(
    path: Path,
    ledger_id: int,
    *,
    store_id: str,
    entries: int,
    file_bytes: int,
    first_row: int,
    block_bytes: int,
    describe: Describe,
) -> EntryIndex:
    """The index of a sealed segment; from its data, and loudly, when the sidecar is missing or damaged."""
    sidecar = path.with_suffix(".index")
    try:
        return _loaded(sidecar, ledger_id, entries, first_row)
    except (NotFound, Corrupt) as error:
        _log.warning("%s is rebuilt from %s: %s", sidecar, path, error)
    index = verify_segment(
        path, ledger_id, entries=entries, file_bytes=file_bytes, first_row=first_row, describe=describe
    )
    write_sealed(sidecar, index, store_id=store_id, block_bytes=block_bytes, file_bytes=file_bytes)
    return index


def _loaded(sidecar: Path, ledger_id: int, entries: int, first_row: int) -> EntryIndex:
    index = load_index(sidecar, ledger_id, entries)
    if index.first_row != first_row:
        raise Corrupt(f"{sidecar}: begins at row {index.first_row}, the metadata says {first_row}")
    return index


def _mapped(path: Path, file_bytes: int) -> memoryview:
    try:
        fd = disk.open_file(path)
    except NotFound:
        raise DataLoss(f"{path} of {file_bytes} bytes is gone", hint="Restore it from a copy of the store") from None
    try:
        size = os.fstat(fd).st_size
        if size != file_bytes:
            raise Corrupt(f"{path} has {size} bytes, the metadata says {file_bytes}")
        return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))
    finally:
        os.close(fd)


def _require_same(path: Path, walked: EntryIndex, index: EntryIndex) -> None:
    here, said = walked.rows(), index.rows()
    if len(here) != len(said):
        raise Corrupt(f"{path}: holds {len(here)} entries, its sidecar {len(said)}")
    wrong = np.flatnonzero(here != said)
    if len(wrong):
        entry = int(wrong[0])
        raise Corrupt(
            f"{path} at {int(here[entry]['offset'])}: entry {entry} is (offset, length, check, time, row) "
            f"{here[entry].item()}, the sidecar says {said[entry].item()}"
        )
