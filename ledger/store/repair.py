"""Repair of a store whose metadata lost records of segments. No existing file is overwritten or deleted.

    find      read only: metadata older than the last commit (such as a restored copy), and each segment without a
              record, with the ledger to which it can be added, or the reason why it cannot
    repair    find again, accept the metadata, put back each segment that has a place

A segment has a place at the end of a managed ledger if all of this holds
- its sidecar names this store and the ledger's incarnation. If it names no incarnation, the user names the ledger
- its file is whole up to the acknowledged end, and has entries
- its id is above every id of the ledger, and retention never deleted it; the ledger is not closed for good (terminated)
- its first row is the row at which the log ends

Rules
- A segment is put back as if its broker had died while writing: listed as open, then recovered and sealed.
- Before older metadata are accepted, their files are copied to a new directory in the store.
- No broker serves the store meanwhile.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.database.commit_number import number_path
from pyspark_ledger.ledger.database.file_checks import require_sound_file
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log.retention import TrimMark
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES, LedgerRecord, Metadata
from pyspark_ledger.ledger.metadata.segment_records import LedgerInfo, SegmentRecord
from pyspark_ledger.ledger.metadata.unwanted_files import unknown_files
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.ownership import StoreLock
from pyspark_ledger.ledger.segment.index import OpenSidecar, load_open
from pyspark_ledger.ledger.segment.recovery import RecoveredSegment, recover_segment
from pyspark_ledger.ledger.segment.writer import data_path, index_path
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits


class UnknownSegment(msgspec.Struct, frozen=True):
    """Segment without a record. `ledger` is its place, empty if `refusal` states why there is none."""

    ledger_id: int
    files: list[str]
    entries: int = 0
    rows: int = 0
    ledger: str = ""
    refusal: str = ""


class RepairReport(msgspec.Struct, frozen=True):
    """Faults of a store. `behind` is the reason why its metadata are out of date, or empty."""

    behind: str
    unknown: list[UnknownSegment]

    def places(self) -> list[UnknownSegment]:
        """Return the segments that can be put back, in order."""
        return [found for found in self.unknown if not found.refusal]


def find(store: Path, into: str = "") -> RepairReport:
    """Inspect a store and change nothing. `into` is the ledger for segments whose files name none.

    Raises Corrupt if the metadata themselves are damaged: restore them from a copy.
    """
    path, behind = store / "metadata.sqlite", ""
    metadata = Metadata(MetadataView(path, TABLES, behind=True), lambda: 0)
    try:
        require_sound_file(path, TABLES)
    except Corrupt as error:
        behind = error.message
    unknown = unknown_files(store / "ledgers", metadata.ledger_ids(), metadata.unwanted_files.all())
    return RepairReport(behind, list(_placed(store / "ledgers", metadata, unknown, into)))


def repair(
    store: Path, clock: Clock, *, into: str = "", accept: bool = False, only: Collection[int] = ()
) -> list[UnknownSegment]:
    """Put back the segments that have a place, or `only` some of them. Return those that were put back.

    `accept` accepts metadata that are out of date. Raises Refused while a broker runs, or for such metadata without
    `accept`.
    """
    with _alone(store):
        _accept(store, clock, accept=accept)
    _recover(store, clock, {found.ledger for found in find(store, into).places()})
    done = list[UnknownSegment]()
    while True:
        known = {segment.ledger_id for segment in done}
        places = [found for found in find(store, into).places() if found.ledger_id not in known]
        chosen = next((found for found in places if not only or found.ledger_id in only), None)
        if chosen is None:
            return done
        with _alone(store):
            _add_record(store, clock, chosen)
        _recover(store, clock, {chosen.ledger})
        done.append(chosen)


@contextmanager
def _alone(store: Path) -> Iterator[None]:
    """Hold the store's lock."""
    lock = StoreLock.acquire(store)
    try:
        yield
    finally:
        lock.release()


def _accept(store: Path, clock: Clock, *, accept: bool) -> None:
    """Raise the epoch, which writes a new commit number. Reserve the ids whose files exist."""
    if accept:
        _set_aside(store)
    metadata = Metadata.open(store / "metadata.sqlite", clock, behind=accept)
    try:
        unknown = unknown_files(store / "ledgers", metadata.ledger_ids(), metadata.unwanted_files.all())
        metadata.bump_epoch()
        metadata.give_ledger_ids_after(max(unknown, default=-1))
    finally:
        metadata.close()


def _set_aside(store: Path) -> None:
    path = store / "metadata.sqlite"
    number = 0
    while (aside := store / f"metadata.before-repair-{number}").exists():
        number += 1
    disk.make_directory(aside)
    for name in (path.name, f"{path.name}-wal", number_path(path).name):
        if (store / name).exists():
            shutil.copyfile(store / name, aside / name)


def _recover(store: Path, clock: Clock, names: Collection[str]) -> None:
    """Open logs, which seals segments that are listed as open."""
    opened = Store.open(store, settings=Settings(), clock=clock)
    try:
        for name in sorted(names):
            opened.ledger(name)
    finally:
        opened.close()


def _add_record(store: Path, clock: Clock, found: UnknownSegment) -> None:
    """List a segment as the open one at the end of its log."""
    sidecar = load_open(index_path(store / "ledgers", found.ledger_id), found.ledger_id)
    metadata = Metadata.open(store / "metadata.sqlite", clock)
    try:
        record = metadata.ledger(found.ledger)
        listed = LedgerInfo(ledgerId=found.ledger_id).SerializeToString()
        row = SegmentRecord(found.ledger_id, sidecar.block_bytes, sidecar.first_row, 0, 0, max(clock(), 1), info=listed)
        metadata.bump_epoch()
        metadata.update_ledger(record, record.info, put=[row])
    finally:
        metadata.close()


def _placed(directory: Path, metadata: Metadata, unknown: dict[int, list[Path]], into: str) -> Iterator[UnknownSegment]:
    records = [metadata.ledger(name) for name in metadata.names()]
    named = _named(records, into)
    ends: dict[str, int] = {}
    for ledger_id, paths in unknown.items():
        files = [path.name for path in paths]
        try:
            sidecar = load_open(index_path(directory, ledger_id), ledger_id)
            whole = _recovered(directory, ledger_id, sidecar, metadata)
            record = _owner(sidecar.owner, records, named)
            if record.name not in ends:
                ends[record.name] = _end_of(directory, metadata, record)
            _require_place(ledger_id, sidecar.first_row, ends[record.name], metadata, record)
        except LedgerError as error:
            yield UnknownSegment(ledger_id, files, refusal=error.message)
            continue
        ends[record.name] = whole.row_end
        yield UnknownSegment(ledger_id, files, whole.entries, whole.row_end - sidecar.first_row, record.name)


def _named(records: list[LedgerRecord], into: str) -> LedgerRecord | None:
    if not into:
        return None
    name = canonical_name(into)
    found = next((record for record in records if record.name == name), None)
    if found is None:
        raise NotFound(
            f"there is no ledger {name!r}", hint="Create it first. A new ledger accepts a segment that begins at row 0"
        )
    return found


def _recovered(directory: Path, ledger_id: int, sidecar: OpenSidecar, metadata: Metadata) -> RecoveredSegment:
    """Return the segment, read up to its last whole entry. Raises Corrupt for another store's, or one without rows."""
    path, ours = data_path(directory, ledger_id), metadata.store_record().store_id
    if sidecar.store_id != ours:
        raise Corrupt(f"{path} is of store {sidecar.store_id}, this is {ours}")
    whole = recover_segment(
        path,
        ledger_id,
        store_id=ours,
        block_bytes=sidecar.block_bytes,
        first_row=sidecar.first_row,
        describe=entry_traits,
    )
    if not whole.entries:
        raise Corrupt(f"{path} holds no entry")
    if whole.row_end == sidecar.first_row:
        raise Corrupt(f"{path} holds {whole.entries} entries and no row: it stores a cursor's state, or only markers")
    return whole


def _owner(owner: str, records: list[LedgerRecord], named: LedgerRecord | None) -> LedgerRecord:
    found = next((record for record in records if record.incarnation == owner), None)
    if found is not None and named is not None and found.name != named.name:
        raise Refused(f"the segment belongs to {found.name!r}, {named.name!r} was named")
    chosen = found or named
    if chosen is None:
        said = f"it is of incarnation {owner}, which no ledger has" if owner else "nothing says of which ledger it is"
        raise NotFound(f"{said}; name one with --ledger")
    return chosen


def _end_of(directory: Path, metadata: Metadata, record: LedgerRecord) -> int:
    """Return the row at which a log ends. A segment that is listed as open is read, and not sealed."""
    segments = metadata.segments.of(record.name)
    if not segments:
        return TrimMark.of(record.info, f"the record of {record.name!r}").rows
    last = segments[-1]
    if last.listed().timestamp:  # a sealed segment has one
        return last.first_row + last.rows
    return recover_segment(
        data_path(directory, last.ledger_id),
        last.ledger_id,
        store_id=metadata.store_record().store_id,
        block_bytes=last.block_bytes,
        first_row=last.first_row,
        describe=entry_traits,
    ).row_end


def _require_place(ledger_id: int, first_row: int, end: int, metadata: Metadata, record: LedgerRecord) -> None:
    last = max((row.ledger_id for row in metadata.segments.of(record.name)), default=-1)
    if record.info.HasField("terminatedPosition"):
        raise Refused(f"{record.name!r} is terminated")
    if ledger_id in {trimmed.ledger_id for trimmed in metadata.segments.trimmed(record.name)}:
        raise Refused(f"retention has deleted this segment of {record.name!r}")
    if ledger_id < last:
        raise Refused(f"{record.name!r} has the later segment {last}")
    if first_row != end:
        raise Refused(f"it begins at row {first_row}, {record.name!r} ends at row {end}")
