"""`ledger cursor`, `ledger dump positioninfo`: where cursors are, what they have acknowledged, and its bytes.

Rules: files are only read, and an export writes new ones only. A cursor that is damaged does not hide the others. A
state may come as one file, as the files of its chunks and their footer in order, the way PIP-381 and the DataStax fork
write it, or as a cursor's ledger of a store of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from connector.cli import (
    Name,
    Output,
    OutputOption,
    StoreOption,
    cursor_label,
    cursor_states,
    fail,
    opened,
    position_at,
    reporting,
    show,
)
from ledger.cursor_calls import AskHoles, CursorState, Holes, NameCursor, OpenCursor, ResetCursor
from ledger.cursor_log import recover_cursor_log
from ledger.errors import Corrupt, NotFound, Refused
from ledger.names import canonical_name
from ledger.position import EARLIEST, LATEST, PositionRange
from ledger.position_chunks import ENTRY_BYTES_MAX, compression_number, decode_state, encode_state, state_ending_at
from ledger.position_info import DecodedInfo, decode_info
from ledger.position_set import PositionSet
from ledger.read_calls import SeekTime

cursors = typer.Typer(no_args_is_help=True, help="Durable cursors of a ledger.")
_SHOWN_RANGES = 20


@cursors.command("list")
@reporting
def list_cursors(name: Name, store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """The cursors of a ledger, and what each has left."""
    client = opened(store).client
    described = client.describe(canonical_name(name))
    states, damage = cursor_states(client, described)
    table = Table("cursor", "next position", "backlog rows", "backlog bytes", "held by")
    for state in states:
        numbers = (str(state.next_position), f"{state.backlog_rows:,}", f"{state.backlog_bytes:,}")
        table.add_row(cursor_label(state, described), *numbers, state.lease_holder)
    show(output, states, lambda console: console.print(table))
    fail(*damage)


@cursors.command("create")
@reporting
def create_cursor(
    name: Name,
    cursor: str,
    start: Annotated[str, typer.Option(help="earliest, latest or LEDGER:ENTRY.")] = "earliest",
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Create a cursor; one that exists stays where it is."""
    state = opened(store).client.open_cursor(OpenCursor(canonical_name(name), cursor, position_at(start)))
    show(output, state, lambda console: console.print(f"{state.cursor} is at {state.next_position}"))


@cursors.command("reset")
@reporting
def reset_cursor(
    name: Name,
    cursor: str,
    position: Annotated[str, typer.Argument(help="earliest, latest or LEDGER:ENTRY.")] = "",
    at_time: Annotated[
        int | None, typer.Option(help="To the first entry of this time, ms by the broker's clock.")
    ] = None,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Move a cursor anywhere, backwards too. Stop the query that reads in its name first."""
    if bool(position) == (at_time is not None):
        raise typer.BadParameter("give a position or --at-time, one of them")
    client = opened(store).client
    log = client.end(canonical_name(name))
    if at_time is not None:
        position = str(client.call("seek", SeekTime(log.name, at_time)).position)
    wanted = (
        min(max(position_at(position), log.start), log.end)
        if position in ("earliest", "latest")
        else position_at(position)
    )
    state = client.call("cursor.reset", ResetCursor(canonical_name(name), cursor, wanted))
    show(output, state, lambda console: console.print(f"{state.cursor} is at {state.next_position}"))


@cursors.command("delete")
@reporting
def delete_cursor(name: Name, cursor: str, store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """Forget a cursor: it holds nothing back any more."""
    request = NameCursor(canonical_name(name), cursor)
    opened(store).client.call("cursor.delete", request)
    show(output, {"deleted": cursor}, lambda console: console.print(f"deleted {cursor} of {request.ledger}"))


@cursors.command("describe")
@reporting
def describe_cursor(name: Name, cursor: str, store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """A cursor: its mark-delete, what is acknowledged beyond it, what it has left, how large its state is."""
    client, ledger = opened(store).client, canonical_name(name)
    state: CursorState = client.call("cursor.describe", NameCursor(ledger, cursor))
    found: Holes = client.call("cursor.holes", AskHoles(ledger, cursor, PositionRange(state.next_position, LATEST)))
    said = decode_info(found.info, f"the holes of cursor {cursor!r}") if found.info else None
    shown = {
        "cursor": state.cursor,
        "ledger": state.ledger,
        "markDelete": f"{state.next_position.ledger_id}:{state.next_position.entry_id - 1}",
        "replayFloor": None if state.replay_floor is None else str(state.replay_floor),
        "backlog": {"entries": state.backlog_entries, "rows": state.backlog_rows, "bytes": state.backlog_bytes},
        "properties": state.properties,
        "leaseHolder": state.lease_holder,
        "cursorLedger": state.cursor_ledger,
        "stateBytes": len(found.info),
        **_of_positions(PositionSet() if said is None else said.acknowledged, "" if said is None else said.encoding),
    }
    _show(output, shown)


@cursors.command("export")
@reporting
def export_cursor(
    name: Name,
    cursor: str,
    directory: Annotated[Path, typer.Argument(help="A new or empty directory: a file for each entry of the state.")],
    entry_bytes: Annotated[int, typer.Option(help="Longer states are cut into entries of so many bytes.")] = (
        ENTRY_BYTES_MAX
    ),
    compression: Annotated[str, typer.Option(help="NONE, LZ4, ZLIB, ZSTD or SNAPPY.")] = "NONE",
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """A cursor's whole state as files: one PositionInfo, or PIP-381's chunks and their footer, in order."""
    codec = compression_number(compression)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Refused(f"{directory} is there and is not an empty directory", hint="Name a new one")
    client, ledger = opened(store).client, canonical_name(name)
    # One question: between two the cursor may move, and the state of before and after would be in no log.
    found: Holes = client.call("cursor.holes", AskHoles(ledger, cursor, PositionRange(EARLIEST, LATEST), whole=True))
    entries = encode_state(found.info, compression=codec, entry_bytes=entry_bytes)
    directory.mkdir(parents=True, exist_ok=True)
    for number, entry in enumerate(entries):
        (directory / f"{number:06}.entry").write_bytes(entry)
    _show(output, {"entries": len(entries), "bytes": len(found.info), "directory": str(directory)})


@reporting
def position_info(
    files: Annotated[list[Path], typer.Argument(help="A PositionInfo; or chunks and footer, in order; or a .ledger.")],
    compression: Annotated[
        str, typer.Option(help="Of the state: NONE, LZ4, ZLIB, ZSTD or SNAPPY. A .ledger tells it itself.")
    ] = "NONE",
    output: OutputOption = Output.text,
) -> None:
    """What a cursor's state says, Pulsar's or ours: mark-delete, ranges, rows that are left, properties."""
    for file in files:
        if not file.is_file():
            raise NotFound(f"there is no file {file}")
    if len(files) == 1 and files[0].suffix == ".ledger":
        _show(output, _of_ledger(files[0]))
        return
    where = ", ".join(file.name for file in files)
    entries = [memoryview(file.read_bytes()) for file in files]
    state = state_ending_at(len(entries) - 1, lambda number: entries[number], where)
    said = decode_info(decode_state(state, compression_number(compression), where), where)
    _show(output, {"parts": max(len(files) - 1, 1), "bytes": len(state), **_of_info(said)})


def _of_ledger(file: Path) -> dict[str, Any]:
    if not file.stem.isdecimal():
        raise Refused(f"{file} is no ledger's file: its name is no number")
    found = recover_cursor_log(file.parent, int(file.stem), "", take=False)
    if found is None:
        raise Corrupt(f"{file} holds no whole state of a cursor")
    said = DecodedInfo(found.mark_delete, found.acknowledged, {}, found.crossing, found.encoding)
    return {"entries": found.entries, "bytes": found.size_bytes, "deltas": found.deltas, **_of_info(said)}


def _of_info(said: DecodedInfo) -> dict[str, Any]:
    crossing = [f"({lower}..{upper}]" for lower, upper in said.crossing]
    return {
        "markDelete": str(said.mark_delete),
        **_of_positions(said.acknowledged, said.encoding),
        **({"overLedgers": crossing} if crossing else {}),
        "properties": dict(said.properties),
    }


def _of_positions(positions: PositionSet, encoding: str) -> dict[str, Any]:
    ranges: list[str] = []
    for runs in positions.runs():
        room = _SHOWN_RANGES - len(ranges)
        pairs = zip(runs.starts[:room].tolist(), runs.ends[:room].tolist(), strict=True)
        ranges += [f"({runs.ledger_id}:{start - 1}..{runs.ledger_id}:{end - 1}]" for start, end in pairs]
    return {
        "encoding": {"words": "field 6, words of bits", "ranges": "field 3, ranges"}.get(encoding, "none"),
        "acknowledgedRanges": positions.range_count(),
        "acknowledgedEntries": positions.entry_count(),
        "partialEntries": positions.batch_count(),
        "firstRanges": ranges,
    }


def _show(output: Output, shown: dict[str, Any]) -> None:
    def text(console: Console) -> None:
        for key, value in shown.items():
            console.print(f"{key}: {', '.join(value) if isinstance(value, list) else value}")

    show(output, shown, text)
