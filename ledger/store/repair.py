"""Repair of a store whose metadata lost records of segments. No existing file is overwritten or deleted.

A *segment* is one file of a ledger; its id is `ledger_id` in the code, as in Pulsar. A file is *sound* if all its
checksums match.

    find      changes nothing. Reports whether the metadata are older than the last commit (for example a restored
              copy). Also reports each segment without a record, and the ledger to which it can be added. If it cannot
              be added, reports the reason
    repair    repeats find, accepts the metadata as the newest, and adds each segment that can be added

A segment can be added to the end of a managed ledger under these conditions:
- Its sidecar, the file `<id>.index` beside it, names this store. It also names the ledger's incarnation, an id that
  each creation of a ledger gets. If the sidecar names no incarnation, the user names the ledger.
- Its file has entries, and is sound up to the last acknowledged append.
- Its id is above all segment ids of the ledger, and retention never deleted it.
- The ledger is not terminated (closed for ever).
- The ledger ends just before the segment's first row.

Rules
- An added segment is first listed as open, and then recovered and sealed, as after the crash of a broker.
- Before out-of-date metadata are accepted, their files are copied to a new directory in the store.
- No broker can serve the store during a repair.
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
    """Segment without a record.

    If it can be added, `ledger` is the name of its ledger. Otherwise `ledger` is empty, and `refusal` is the reason.
    """

    ledger_id: int
    files: list[str]
    entries: int = 0
    rows: int = 0
    ledger: str = ""
    refusal: str = ""


class RepairReport(msgspec.Struct, frozen=True):
    """Result of `find`. `behind` states why the metadata are out of date; it is empty if they are not."""

    behind: str
    unknown: list[UnknownSegment]

    def places(self) -> list[UnknownSegment]:
        """Return the segments that can be added, in order."""
        return [found for found in self.unknown if not found.refusal]


def find(store: Path, into: str = "") -> RepairReport:
    """Inspect a store and change nothing. `into` names the ledger for segments whose files do not name a ledger.

    Raises Corrupt if the metadata are damaged. Then they must be restored from a copy.
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
    """Add the segments that can be added, or `only` those with the given ids. Return the added segments.

    Raises Refused while a broker runs. Also raises Refused for metadata that are out of date, unless `accept` is set.
    """
    with _alone(store):
        _accept(store, clock, accept=accept)
    _recover(store, clock, {found.ledger for found in find(store, into).places()})
    done = list[UnknownSegment]()
    while True:
        added = {segment.ledger_id for segment in done}
        places = [found for found in find(store, into).places() if found.ledger_id not in added]
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
    """Raise the epoch, so that these metadata count as the newest. Reserve the segment ids whose files exist."""
    if accept:
        _copy_metadata(store)
    metadata = Metadata.open(store / "metadata.sqlite", clock, behind=accept)
    try:
        unknown = unknown_files(store / "ledgers", metadata.ledger_ids(), metadata.unwanted_files.all())
        metadata.bump_epoch()
        metadata.give_ledger_ids_after(max(unknown, default=-1))
    finally:
        metadata.close()


def _copy_metadata(store: Path) -> None:
    """Copy the metadata's files to a new directory in the store."""
    path = store / "metadata.sqlite"
    number = 0
    while (aside := store / f"metadata.before-repair-{number}").exists():
        number += 1
    disk.make_directory(aside)
    for name in (path.name, f"{path.name}-wal", number_path(path).name):
        if (store / name).exists():
            shutil.copyfile(store / name, aside / name)


def _recover(store: Path, clock: Clock, names: Collection[str]) -> None:
    """Open logs, which recovers and seals the segments that are listed as open."""
    opened = Store.open(store, settings=Settings(), clock=clock)
    try:
        for name in sorted(names):
            opened.ledger(name)
    finally:
        opened.close()


def _add_record(store: Path, clock: Clock, found: UnknownSegment) -> None:
    """List a segment as the open segment at the end of its log."""
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
    """Yield each unknown segment with the ledger to which it can be added, or with the reason why not."""
    records = [metadata.ledger(name) for name in metadata.names()]
    named = _named(records, into)
    ends: dict[str, int] = {}
    for ledger_id, paths in unknown.items():
        files = [path.name for path in paths]
        try:
            sidecar = load_open(index_path(directory, ledger_id), ledger_id)
            recovered = _recovered(directory, ledger_id, sidecar, metadata)
            record = _owner(sidecar.owner, records, named)
            if record.name not in ends:
                ends[record.name] = _end_of(directory, metadata, record)
            _require_place(ledger_id, sidecar.first_row, ends[record.name], metadata, record)
        except LedgerError as error:
            yield UnknownSegment(ledger_id, files, refusal=error.message)
            continue
        ends[record.name] = recovered.row_end
        yield UnknownSegment(ledger_id, files, recovered.entries, recovered.row_end - sidecar.first_row, record.name)


def _named(records: list[LedgerRecord], into: str) -> LedgerRecord | None:
    if not into:
        return None
    name = canonical_name(into)
    found = next((record for record in records if record.name == name), None)
    if found is None:
        raise NotFound(
            f"there is no ledger {name!r}", hint="Create it first. A new ledger accepts a segment with first row 0"
        )
    return found


def _recovered(directory: Path, ledger_id: int, sidecar: OpenSidecar, metadata: Metadata) -> RecoveredSegment:
    """Return the segment up to its last sound entry. Raises Corrupt if it has no rows or belongs to another store."""
    path, record = data_path(directory, ledger_id), metadata.store_record()
    ours = record.store_id
    if sidecar.store_id not in (ours, *record.former):
        raise Corrupt(
            f"{path} belongs to store {sidecar.store_id}, this is store {ours}",
            hint="Move the file to the directory of that store, and run ledger repair there",
        )
    recovered = recover_segment(
        path,
        ledger_id,
        store_id=ours,
        block_bytes=sidecar.block_bytes,
        first_row=sidecar.first_row,
        describe=entry_traits,
    )
    if not recovered.entries:
        raise Corrupt(f"{path} has no entry")
    if recovered.row_end == sidecar.first_row:
        raise Corrupt(
            f"{path} has {recovered.entries} entries and no row: it stores a cursor's state, or only ends of batches"
        )
    return recovered


def _owner(owner: str, records: list[LedgerRecord], named: LedgerRecord | None) -> LedgerRecord:
    found = next((record for record in records if record.incarnation == owner), None)
    if found is not None and named is not None and found.name != named.name:
        raise Refused(f"the segment belongs to {found.name!r}, {named.name!r} was named")
    chosen = found or named
    if chosen is None:
        reason = f"no ledger has its incarnation {owner}" if owner else "its files do not name a ledger"
        raise NotFound(f"{reason}; name one with --ledger")
    return chosen


def _end_of(directory: Path, metadata: Metadata, record: LedgerRecord) -> int:
    """Return the row at which a log ends. Reads a segment that is listed as open, and does not seal it."""
    segments = metadata.segments.of(record.name)
    if not segments:
        return TrimMark.of(record.info, f"the record of {record.name!r}").rows
    last = segments[-1]
    if last.listed().timestamp:  # 0 for an open segment
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
    """Raise Refused if a segment cannot be added to the end of a log."""
    last = max((row.ledger_id for row in metadata.segments.of(record.name)), default=-1)
    if record.info.HasField("terminatedPosition"):
        raise Refused(f"{record.name!r} is terminated")
    if ledger_id in {trimmed.ledger_id for trimmed in metadata.segments.trimmed(record.name)}:
        raise Refused(f"retention has deleted this segment of {record.name!r}")
    if ledger_id < last:
        raise Refused(f"{record.name!r} has the later segment {last}")
    if first_row != end:
        raise Refused(f"its first row is {first_row}, {record.name!r} ends at row {end}")
