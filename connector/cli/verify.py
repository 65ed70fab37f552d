"""`ledger verify`: verify the files of a store.

The page docs/concepts.md explains the words segment, entry, cursor and data object.

Rules
- Files are only read.
- `verify` first verifies the checksums of all records of the metadata.
- Then it verifies every byte of every sealed segment on this host. In the open segment, and in segments that are only
  in object storage, it verifies the checksum of every committed entry.
- The first difference ends `verify` with an error that names the expected and the found value.
- At the end `verify` names files without a record. If there are such files, it exits with status 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from pyspark_ledger.connector.cli.ledgers import (
    Output,
    OutputOption,
    StoreOption,
    fail,
    literal_console,
    opened,
    reporting,
    show,
)
from pyspark_ledger.connector.cli.wording import counted
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.broker.bucket_home import settings_of
from pyspark_ledger.ledger.bucket_store.probe import KEEPS_VERSIONS
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.display.progress_bar import progress_bar
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, NotFound, Refused
from pyspark_ledger.ledger.location import bucket_of, store_location
from pyspark_ledger.ledger.message.entry import (
    parse_entry,
)
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES, Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.metadata.unwanted_files import unknown_files
from pyspark_ledger.ledger.names import canonical_name, short_name
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.from_settings import home_bucket, s3_options_of
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.protocol.actions import DescribeLedger, LedgerDescription, SegmentDescription
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.index import EntryIndex, load_index
from pyspark_ledger.ledger.segment.reader import iter_frames
from pyspark_ledger.ledger.segment.verification import verify_segment
from pyspark_ledger.ledger.segment.writer import data_path
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.ledger.wal.bucket import MANIFEST
from pyspark_ledger.offload.home_verification import verify_home

_NO_ENTRY_INDEX = (
    " in the bucket without an object '…-entries': reads of single entries are slower, and no row is missing. "
    "This is expected if Pulsar or an earlier version uploaded them"
)


@reporting
def verify(
    name: Annotated[str | None, typer.Argument(help="A ledger; without it, all ledgers of the store.")] = None,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Check every byte of a ledger, or of all ledgers of a store on this host or in a bucket."""
    home = bucket_of(Path(store_location(store)))
    if home:
        _verify_bucket(home, name, output)
        return
    found = opened(store)
    directory = Path(found.client.hello().store_path)
    if not (directory / "metadata.sqlite").exists():
        raise Refused(f"the store {directory} is not on this host", hint="Run ledger verify where its broker runs")
    records = Metadata(MetadataView(directory / "metadata.sqlite", TABLES), system_clock_ms)
    checked: dict[str, int] = {}
    names = [canonical_name(name)] if name else found.names()
    with progress_bar("verify", shown=output is Output.text) as bar:
        total = sum(found.client.ask(DescribeLedger(name, lists=False)).entries for name in names) if bar.shown else 0
        for described in _described(found, names):
            checked[described.name] = 0

            def advance(done: int, canonical: str = described.name) -> None:
                checked[canonical] += done
                if bar.shown:
                    entries = sum(checked.values())
                    words = f"{entries:,} of {max(total, entries):,} entries, {short_name(canonical)}"
                    bar.update(entries / max(total, entries, 1), words)

            _verify(found, directory, records, described, advance)
    show(output, checked, lambda console: console.print(_verified_words(sum(checked.values()))))
    fail(*([] if name else _unknown(directory, records)))


def _verify_bucket(address: str, name: str | None, output: Output) -> None:
    """Verify the store at `s3://…` with the credentials of this process. The directory of its broker is not read."""
    settings = settings_of(Settings(), address)
    home, segments = home_bucket(settings), open_object_store(f"{address}/segments", s3_options_of(settings))
    try:
        with progress_bar("verify", shown=output is Output.text) as bar:
            found = verify_home(home, segments, name, bar.update if bar.shown else lambda *_: None)
        if home.head(MANIFEST).version:
            literal_console(stderr=True).print(KEEPS_VERSIONS % address)
        if found.without_index:
            literal_console(stderr=True).print(counted(found.without_index, "segment") + _NO_ENTRY_INDEX)
    finally:
        home.close()
        segments.close()
    objects = f", {counted(found.log_objects, 'object')} of the log verified"
    show(output, found.entries, lambda console: console.print(_verified_words(sum(found.entries.values())) + objects))


def _verified_words(entries: int) -> str:
    return f"{counted(entries, 'entry', 'entries')} verified"


def _unknown(directory: Path, metadata: Metadata) -> list[str]:
    """Return a line for each segment that has files and no record in the metadata."""
    folder, lines = directory / "ledgers", []
    # The directory is read before the records, so that a new file is not reported as a file without a record.
    there = {path.name for path in folder.iterdir()}
    for ledger_id, paths in unknown_files(folder, metadata.ledger_ids(), metadata.unwanted_files.all()).items():
        names = [path.name for path in paths if path.name in there and path.exists()]
        if names:
            lines.append(f"segment {ledger_id} has no record ({', '.join(names)} in {folder}): see ledger repair")
    return lines


def _described(store: LedgerStore, names: Iterable[str]) -> Iterator[LedgerDescription]:
    """Yield the ledgers. A partitioned ledger is replaced by its partitions."""
    for name in names:
        whole = store.client.ask(DescribeLedger(name))
        yield from [store.client.ask(DescribeLedger(part.name)) for part in whole.partitions] or [whole]


def _verify(
    store: LedgerStore,
    directory: Path,
    records: Metadata,
    described: LedgerDescription,
    advance: Callable[[int], object],
) -> None:
    here = _sealed_here(records, described.name)
    for part in described.segments:
        try:
            _verify_part(store, directory, described, part, here.get(part.ledger_id), advance)
        except DataLoss:
            before, here = here, _sealed_here(records, described.name)
            if part.ledger_id not in here:
                continue  # retention has deleted the segment since
            if here[part.ledger_id] == before.get(part.ledger_id):
                raise
            _verify_part(store, directory, described, part, here[part.ledger_id], advance)


def _sealed_here(records: Metadata, name: str) -> dict[int, SegmentRecord | None]:
    """Return a record for each segment id: None if the segment is open, or if it is only in object storage."""
    rows = [(record, record.listed()) for record in records.segments.of(name)]
    return {
        record.ledger_id: record if listed.timestamp and not _is_remote(listed) else None for record, listed in rows
    }


def _is_remote(listed: ManagedLedgerInfo.LedgerInfo) -> bool:
    attempt = OffloadAttempt.of(listed)
    return attempt is not None and attempt.complete and attempt.local_deleted


def _verify_part(
    store: LedgerStore,
    directory: Path,
    described: LedgerDescription,
    part: SegmentDescription,
    record: SegmentRecord | None,
    advance: Callable[[int], object],
) -> None:
    if record is None or not part.close_ms:
        _read(store, described, part.ledger_id, part.entries, advance)
        return
    path = data_path(directory / "ledgers", part.ledger_id)
    verify_segment(
        path,
        part.ledger_id,
        entries=part.entries,
        file_bytes=record.file_bytes,
        first_row=record.first_row,
        describe=entry_traits,
        index=_index(path, part.ledger_id, part.entries),
        progress=advance,
    )


def _index(path: Path, ledger_id: int, entries: int) -> EntryIndex | None:
    """Return the index in the sidecar, a small file beside a sealed segment, which speeds up the verification.

    Returns None if the sidecar is missing or damaged, because the broker can rebuild it.
    """
    try:
        return load_index(path.with_suffix(".index"), ledger_id, entries)
    except (NotFound, Corrupt) as error:
        literal_console(stderr=True).print(f"{error.message}; the broker rebuilds it from the segment")
        return None


def _read(
    store: LedgerStore, described: LedgerDescription, ledger_id: int, entries: int, advance: Callable[[int], object]
) -> None:
    range_ = PositionRange(Position(ledger_id, 0), Position(ledger_id, entries))
    for block in store.client.read_blocks(ReadRequest(described.name, range_)) if entries else ():
        for entry_id, frame in iter_frames(block.frames, ledger_id, block.first_entry, block.entries):
            parse_entry(frame, f"entry {ledger_id}:{entry_id} of {described.name}")
        advance(block.entries)
