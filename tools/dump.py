"""Tool that prints the content of a file of this project or of Pulsar: `python -m tools.dump COMMAND FILE`.

The page docs/concepts.md explains the words segment, entry, cursor and data object.

Rules
- Files are only read.
- `positioninfo` reads the state of a cursor from one file. If a large state is split into chunks, it takes the files of
  the chunks and of their footer, in order. PIP-381 and DataStax's fork of Pulsar define such chunks. It also reads the
  log of a cursor in a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict
from rich.console import Console

from pyspark_ledger.connector.cli.cursors import All, fields_of_positions, show_fields
from pyspark_ledger.connector.cli.ledgers import EpochMs, Output, OutputOption, StoreOption, reporting, show
from pyspark_ledger.connector.cli.wording import time_words
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.cursor.cursor_log import recover_cursor_log
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.message.compression import NAMES
from pyspark_ledger.ledger.message.entry import (
    ParsedEntry,
    entry_rows,
    foreign_format,
    is_arrow,
    is_marker,
    parse_entry,
)
from pyspark_ledger.ledger.metadata.cursor_records import cursor_info
from pyspark_ledger.ledger.metadata.pulsar_value import (
    compression_of,
    is_cursor_info,
    parse_cursor_info,
    parse_ledger_info,
)
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES, Metadata
from pyspark_ledger.ledger.names import canonical_name, nearest
from pyspark_ledger.ledger.positions.position_chunks import compression_number, decode_state, state_ending_at
from pyspark_ledger.ledger.positions.position_info import DecodedInfo, decode_cursor_info, decode_info
from pyspark_ledger.ledger.segment.reader import walk_segment
from pyspark_ledger.offload.format.block_index import parse_index

dump = typer.Typer(no_args_is_help=True, help="Print the content of a file of this project or of Pulsar.")
_TIMES = ("publishTime", "brokerTime")
File = Annotated[Path, typer.Argument(help="The file.")]


@dump.command()
@reporting
def segment(file: File, epoch_ms: EpochMs = False, output: OutputOption = Output.text) -> None:
    """Print every entry of a sealed segment, or of a data object that Pulsar offloaded."""
    rows, time = list(_entries(file)), time_words(epoch_ms)

    def words(key: str, value: Any) -> str:
        return time(value) if key in _TIMES and value is not None else str(value)

    def text(console: Console) -> None:
        for row in rows:
            console.print("  ".join(f"{key}={words(key, value)}" for key, value in row.items()))

    show(output, rows, text)


@dump.command()
@reporting
def entry(
    file: File,
    entry_id: Annotated[int, typer.Argument(help="The number of the entry in its segment, from 0.")],
    output: OutputOption = Output.text,
) -> None:
    """Print one entry: the broker's metadata (`stamp`), all metadata of the entry, the first bytes of its payload."""
    for frame in walk_segment(_bytes(file), 0, where=str(file)):
        if frame.entry_id == entry_id:
            parsed = parse_entry(frame.entry, f"{file} entry {entry_id}", require_checksum=False)
            stamp = None if parsed.stamp is None else parsed.stamp._asdict()
            payload = {"bytes": len(parsed.payload), "begins": bytes(parsed.payload[:64]).hex()}
            _show(output, {"stamp": stamp, "metadata": MessageToDict(parsed.metadata), "payload": payload})
            return
    raise NotFound(f"{file} contains no entry {entry_id}")


@dump.command()
@reporting
def index(file: File, output: OutputOption = Output.text) -> None:
    """Print the index object of an offloaded segment."""
    found = parse_index(_bytes(file), str(file))
    shown = {
        "managedLedger": found.managed_ledger,
        "entries": found.entries,
        "dataBytes": found.data_bytes,
        "metadata": MessageToDict(found.metadata),
        "blocks": [(block.first_entry, block.part_id, block.offset) for block in found.blocks],
    }
    _show(output, shown)


@dump.command()
@reporting
def metadata(
    file: File,
    cursor: Annotated[
        bool, typer.Option("--cursor", help="The file is the record of a cursor, not of a ledger.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Print a record of Pulsar's metadata store, plain or compressed."""
    parse = parse_cursor_info if cursor else parse_ledger_info
    _show(output, MessageToDict(parse(_bytes(file), str(file))))


@dump.command()
@reporting
def record(
    name: Annotated[str, typer.Argument(help="A ledger of a store on this host.")],
    cursor: Annotated[str | None, typer.Option("--cursor", help="Print the record of this cursor instead.")] = None,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Print the metadata of a ledger or cursor, as Pulsar would store them. No broker is needed."""
    path = Path(store_location(store)) / "metadata.sqlite"
    records, canonical = Metadata(MetadataView(path, TABLES), system_clock_ms), canonical_name(name)
    found = records.ledger(canonical)
    if cursor is None:
        found.info.ledgerInfo.extend(row.listed() for row in records.segments.of(canonical))
        _show(output, MessageToDict(found.info))
        return
    kept = records.cursors.get(canonical, cursor)
    if kept is None:
        near = nearest(cursor, records.cursors.names(canonical))
        raise NotFound(f"ledger {canonical!r} has no cursor {cursor!r}", hint=f"Did you mean {near!r}?" if near else "")
    floor, lease = kept.cursor.replay_floor, kept.cursor.lease
    shown = {"record": MessageToDict(cursor_info(kept.cursor)), "replayFloor": None if floor is None else str(floor)}
    _show(output, {**shown, "leaseHolder": lease.holder, "leaseUntilMs": lease.until_ms})


@dump.command("positioninfo")
@reporting
def position_info(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="A PositionInfo; a ManagedCursorInfo (Pulsar's record of a cursor); chunks and footer, in order; or a "
            ".ledger file."
        ),
    ],
    compression: Annotated[
        str,
        typer.Option(
            help="The state's codec: NONE, LZ4, ZLIB, ZSTD or SNAPPY. Records and .ledger files name their own codec."
        ),
    ] = "NONE",
    whole: All = False,
    output: OutputOption = Output.text,
) -> None:
    """Print the state of a cursor, of this project or of Pulsar: position, acknowledged ranges, and remaining rows."""
    for file in files:
        if not file.is_file():
            raise NotFound(f"there is no file {file}")
    if len(files) == 1 and files[0].suffix == ".ledger":
        show_fields(output, _of_ledger(files[0], whole=whole))
        return
    where = ", ".join(file.name for file in files)
    entries = [memoryview(file.read_bytes()) for file in files]
    if len(files) == 1 and is_cursor_info(entries[0]):
        show_fields(output, _of_record(entries[0], where, whole=whole))
        return
    state = state_ending_at(len(entries) - 1, lambda number: entries[number], where)
    info = decode_info(decode_state(state, compression_number(compression), where), where)
    show_fields(output, {"parts": max(len(files) - 1, 1), "bytes": len(state), **_of_info(info, whole=whole)})


def _of_record(value: memoryview, where: str, *, whole: bool) -> dict[str, Any]:
    """Return the content of a cursor's record, in the form of Pulsar's metadata store.

    The record has the whole state of the cursor. Exception: if the cursor has a log of its own, the record has the
    state at the creation of this log.
    """
    info = parse_cursor_info(value, where)
    return {
        "record": "ManagedCursorInfo",
        "compression": NAMES[compression_of(value, where)],
        "bytes": len(value),
        "cursorLedger": info.cursorsLedgerId,
        **_of_info(decode_cursor_info(info, where), whole=whole),
        "cursorProperties": {pair.name: pair.value for pair in info.cursorProperties},
    }


def _of_ledger(file: Path, *, whole: bool) -> dict[str, Any]:
    if not file.stem.isdecimal():
        raise Refused(f"{file} is no file of a segment: its name is no number")
    found = recover_cursor_log(file.parent, int(file.stem), "", fence=False)
    if found is None:
        raise Corrupt(f"{file} contains no whole state of a cursor")
    info = DecodedInfo(found.mark_delete, found.acknowledged, {}, found.crossing, found.encoding)
    return {"entries": found.entries, "bytes": found.size_bytes, "deltas": found.deltas, **_of_info(info, whole=whole)}


def _of_info(info: DecodedInfo, *, whole: bool) -> dict[str, Any]:
    crossing = [f"({lower}..{upper}]" for lower, upper in info.crossing]
    return {
        "markDelete": str(info.mark_delete),
        **fields_of_positions(info, whole=whole),
        **({"overLedgers": crossing} if crossing else {}),
        "properties": dict(info.properties),
    }


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    for frame in walk_segment(_bytes(file), 0, where=str(file)):
        parsed = parse_entry(frame.entry, f"{file} entry {frame.entry_id}", require_checksum=False)
        yield {
            "entry": frame.entry_id,
            "offset": frame.offset,
            "bytes": len(frame.entry),
            "kind": _kind(parsed),
            "rows": entry_rows(parsed.metadata),
            "publishTime": parsed.metadata.publish_time,
            "brokerTime": None if parsed.stamp is None else parsed.stamp.timestamp_ms,
            "producer": parsed.metadata.producer_name,
            "sequenceId": parsed.metadata.sequence_id,
        }


def _show(output: Output, found: dict[str, Any]) -> None:
    show(output, found, lambda console: console.print(found))


def _kind(parsed: ParsedEntry) -> str:
    if is_marker(parsed.metadata):
        return "marker"
    if is_arrow(parsed.metadata):
        return "arrow"
    if found := foreign_format(parsed.metadata):
        return found
    return "batch" if parsed.metadata.HasField("num_messages_in_batch") else "message"


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}") from error


if __name__ == "__main__":
    dump()
