"""`ledger cursor`, `ledger dump positioninfo`: positions of cursors, their acknowledgements, and the stored bytes.

The page docs/concepts.md explains the words cursor, entry, mark-delete and chunk.

Rules
- No command changes an existing file. An export writes only new files.
- If a cursor is damaged, the other cursors are still shown.
- `ledger dump positioninfo` reads the state of a cursor from one file. If a large state is split into chunks, the
  command takes the files of the chunks and of their footer, in order. PIP-381 and DataStax's fork of Pulsar define such
  chunks. The command also reads the log of a cursor in a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pyspark_ledger.connector.cli.ledgers import (
    TIME_FORMS,
    Name,
    Output,
    OutputOption,
    Start,
    StoreOption,
    cursor_label,
    cursor_states,
    fail,
    opened,
    position_at,
    position_of,
    reporting,
    show,
)
from pyspark_ledger.connector.cli.wording import counted, mark_delete_words, next_words
from pyspark_ledger.ledger.clock import HOST_ZONE
from pyspark_ledger.ledger.cursor.cursor_log import recover_cursor_log
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.hidden_characters import visible
from pyspark_ledger.ledger.message.compression import NAMES
from pyspark_ledger.ledger.metadata.pulsar_value import compression_of, is_cursor_info, parse_cursor_info
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.position_chunks import (
    ENTRY_BYTES_MAX,
    compression_number,
    decode_state,
    encode_state,
    state_ending_at,
)
from pyspark_ledger.ledger.positions.position_info import DecodedInfo, decode_cursor_info, decode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.cursors import (
    AckedRanges,
    AskAckedRanges,
    CursorState,
    NameCursor,
    OpenCursor,
    ResetCursor,
)
from pyspark_ledger.ledger.times import require_time

cursors = typer.Typer(no_args_is_help=True, help="Durable cursors of a ledger.")
_SHOWN = 20  # number of shown ranges, and of shown entries with unacknowledged rows
_ROWS = ("rowsLeft", "firstRowsLeft")
CursorName = Annotated[str, typer.Argument(help="A cursor of the ledger.")]
All = Annotated[
    bool, typer.Option("--all", help=f"Print all ranges and rows, and not only the first {_SHOWN} of each.")
]


@cursors.command("list")
@reporting
def list_cursors(name: Name, store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """List the cursors of a ledger, and the backlog of each."""
    client = opened(store).client
    described = client.describe(canonical_name(name))
    states, damage = cursor_states(client, described)
    table = Table("cursor", "next position", "backlog rows", "backlog bytes", "held by")
    for state in states:
        numbers = (next_words(state.next_position), f"{state.backlog_rows:,}", f"{state.backlog_bytes:,}")
        table.add_row(cursor_label(state, described), *numbers, state.lease_holder)
    show(output, states, lambda console: console.print(table))
    fail(*damage)


@cursors.command("create")
@reporting
def create_cursor(
    name: Name,
    cursor: CursorName,
    start: Start = "earliest",
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Create a cursor. An existing cursor keeps its position."""
    client, name = opened(store).client, canonical_name(name)
    state = client.open_cursor(OpenCursor(name, cursor, position_of(client, name, "--start", start)))
    show(output, state, lambda console: console.print(_place(state)))


@cursors.command("reset")
@reporting
def reset_cursor(
    name: Name,
    cursor: CursorName,
    position: Annotated[
        str, typer.Argument(help="earliest, latest, SEGMENT:ENTRY, or a time in a form of --at-time.")
    ] = "",
    at_time: Annotated[
        str | None,
        typer.Option(help=f"Move to the first entry that the broker stored at or after this time: {TIME_FORMS}."),
    ] = None,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Move a cursor to any position, also backwards. First stop the query that uses the cursor."""
    if bool(position) == (at_time is not None):
        raise typer.BadParameter("give either a position or --at-time")
    client = opened(store).client
    log = client.end(canonical_name(name))
    if at_time is not None:
        wanted = position_at(client, log.name, require_time("--at-time", at_time, HOST_ZONE))
    else:
        wanted = position_of(client, log.name, "POSITION", position)
    if wanted in (EARLIEST, LATEST):
        wanted = min(max(wanted, log.start), log.end)
    state = client.call("cursor.reset", ResetCursor(canonical_name(name), cursor, wanted))
    show(output, state, lambda console: console.print(_place(state)))


def _place(state: CursorState) -> str:
    left = counted(state.backlog_rows, "row")
    return f"{visible(state.cursor)} is at {next_words(state.next_position)}, {left} left"


@cursors.command("delete")
@reporting
def delete_cursor(
    name: Name, cursor: CursorName, store: StoreOption = None, output: OutputOption = Output.text
) -> None:
    """Delete a cursor. Its backlog becomes subject to retention."""
    request = NameCursor(canonical_name(name), cursor)
    opened(store).client.call("cursor.delete", request)
    show(output, {"deleted": cursor}, lambda console: console.print(f"deleted {cursor} of {request.ledger}"))


@cursors.command("describe")
@reporting
def describe_cursor(
    name: Name, cursor: CursorName, whole: All = False, store: StoreOption = None, output: OutputOption = Output.text
) -> None:
    """Describe a cursor: mark-delete position, acknowledged ranges after this position, backlog, size of the state.

    The mark-delete position is the entry up to which the cursor has acknowledged every entry.
    """
    client, ledger = opened(store).client, canonical_name(name)
    state: CursorState = client.call("cursor.describe", NameCursor(ledger, cursor))
    found: AckedRanges = client.call(
        "cursor.holes", AskAckedRanges(ledger, cursor, PositionRange(state.next_position, LATEST))
    )
    info = decode_info(found.info, f"the holes of cursor {cursor!r}") if found.info else None
    shown = {
        "cursor": state.cursor,
        "ledger": state.ledger,
        "markDelete": str(Position(state.next_position.ledger_id, state.next_position.entry_id - 1)),
        "replayFloor": None if state.replay_floor is None else str(state.replay_floor),
        "backlog": {"entries": state.backlog_entries, "rows": state.backlog_rows, "bytes": state.backlog_bytes},
        "properties": state.properties,
        "leaseHolder": state.lease_holder,
        "cursorLedger": state.cursor_ledger,
        "stateBytes": len(found.info),
        **_of_positions(info or DecodedInfo(EARLIEST, PositionSet()), whole=whole),
    }
    _show(output, shown)


@cursors.command("export")
@reporting
def export_cursor(
    name: Name,
    cursor: CursorName,
    directory: Annotated[Path, typer.Argument(help="A new or empty directory; it gets a file for each entry.")],
    entry_bytes: Annotated[int, typer.Option(help="Split a longer state into entries of this many bytes.")] = (
        ENTRY_BYTES_MAX
    ),
    compression: Annotated[str, typer.Option(help="NONE, LZ4, ZLIB, ZSTD or SNAPPY.")] = "NONE",
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Write a cursor's whole state to files, in Pulsar's format.

    A small state is one PositionInfo, Pulsar's message for the state of a cursor. A large state is split into chunks,
    which a footer follows (PIP-381).
    """
    codec = compression_number(compression)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Refused(f"{directory} exists and is not an empty directory", hint="Name a new directory")
    client, ledger = opened(store).client, canonical_name(name)
    # One call gets the whole state. Between two calls the cursor could move, so that their results would not match.
    found: AckedRanges = client.call(
        "cursor.holes", AskAckedRanges(ledger, cursor, PositionRange(EARLIEST, LATEST), whole=True)
    )
    entries = encode_state(found.info, compression=codec, entry_bytes=entry_bytes)
    directory.mkdir(parents=True, exist_ok=True)
    for number, entry in enumerate(entries):
        (directory / f"{number:06}.entry").write_bytes(entry)
    _show(output, {"entries": len(entries), "bytes": len(found.info), "directory": str(directory)})


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
        _show(output, _of_ledger(files[0], whole=whole))
        return
    where = ", ".join(file.name for file in files)
    entries = [memoryview(file.read_bytes()) for file in files]
    if len(files) == 1 and is_cursor_info(entries[0]):
        _show(output, _of_record(entries[0], where, whole=whole))
        return
    state = state_ending_at(len(entries) - 1, lambda number: entries[number], where)
    info = decode_info(decode_state(state, compression_number(compression), where), where)
    _show(output, {"parts": max(len(files) - 1, 1), "bytes": len(state), **_of_info(info, whole=whole)})


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
        **_of_positions(info, whole=whole),
        **({"overLedgers": crossing} if crossing else {}),
        "properties": dict(info.properties),
    }


def _of_positions(info: DecodedInfo, *, whole: bool) -> dict[str, Any]:
    positions, most = info.acknowledged, None if whole else _SHOWN
    return {
        "encoding": {"words": "field 6, words of bits", "ranges": "field 3, ranges"}.get(info.encoding, "none"),
        "acknowledgedRanges": positions.range_count(),
        "acknowledgedEntries": positions.entry_count(),
        "partialEntries": positions.batch_count(),
        "ranges" if whole else "firstRanges": list(islice(_ranges(positions), most)),
        "rowsLeft" if whole else "firstRowsLeft": list(islice(_rows_left(positions), most)),
    }


def _ranges(positions: PositionSet) -> Iterator[str]:
    """Yield the ranges of whole entries, as `(last entry before the range..last entry of the range]`."""
    for runs in positions.runs():
        for start, end in zip(runs.starts.tolist(), runs.ends.tolist(), strict=True):
            yield f"({runs.ledger_id}:{start - 1}..{runs.ledger_id}:{end - 1}]"


def _rows_left(positions: PositionSet) -> Iterator[str]:
    """Yield the unacknowledged rows of partly acknowledged entries: `3:17 rows 0, 4-7`."""
    for ledger_id in positions.ledgers():
        rows = positions.rows(ledger_id)
        for number, entry_id in enumerate(rows.entries.tolist()):
            words = rows.words[int(rows.starts[number]) : int(rows.starts[number + 1])]
            starts, ends = bitset.runs(words)
            runs = zip(starts.tolist(), (ends - 1).tolist(), strict=True)
            rows_text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
            yield f"{ledger_id}:{entry_id} rows {rows_text}"


def _show(output: Output, shown: dict[str, Any]) -> None:
    def text(console: Console) -> None:
        for key, value in shown.items():
            console.print(f"{key}: {_words(key, value)}")

    show(output, shown, text)


def _words(key: str, value: Any) -> str:
    if key == "markDelete":
        return mark_delete_words(Position.parse(value))
    if key in _ROWS:
        return "; ".join(value) or "none"
    return (", ".join(value) or "none") if isinstance(value, list) else str(value)
