"""`ledger cursor`: positions of cursors and their acknowledgements.

The page docs/concepts.md explains the words cursor, entry, mark-delete and chunk.

Rules
- `show` reads the checkpoint of a query, and asks the broker for the state to which the checkpoint refers.
- No command changes an existing file. An export writes only new files.
- If a cursor is damaged, the other cursors are still shown.
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
from pyspark_ledger.connector.read.offsets import newest_batch
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.clock import HOST_ZONE
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.hidden_characters import visible
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.position_chunks import (
    ENTRY_BYTES_MAX,
    compression_number,
    encode_state,
)
from pyspark_ledger.ledger.positions.position_info import DecodedInfo, decode_info, encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import DescribeLedger
from pyspark_ledger.ledger.protocol.cursors import (
    AskAckedRanges,
    AskDelivery,
    CursorState,
    DeleteCursor,
    DescribeCursor,
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
    described = client.ask(DescribeLedger(canonical_name(name)))
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
    state = client.ask(OpenCursor(name, cursor, position_of(client, name, "--start", start)))
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
        typer.Option(help=f"Move to the first entry at or after this time: {TIME_FORMS}."),
    ] = None,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Move a cursor to any position, also backwards. First stop the query that uses the cursor."""
    if bool(position) == (at_time is not None):
        raise typer.BadParameter("give either a position or --at-time")
    client = opened(store).client
    name = canonical_name(name)
    if at_time is not None:
        wanted = position_at(client, name, require_time("--at-time", at_time, HOST_ZONE))
    else:
        wanted = position_of(client, name, "POSITION", position)
    state = client.ask(ResetCursor(name, cursor, wanted))

    def text(console: Console) -> None:
        console.print(_place(state))
        if state.replay_floor is not None:
            console.print(
                "A query of Spark has used the cursor. With its checkpoint it continues where the checkpoint ends; to "
                "begin at the cursor, start it with a new checkpoint"
            )

    show(output, state, text)


def _place(state: CursorState) -> str:
    left = counted(state.backlog_rows, "row")
    return f"{visible(state.cursor)} is at {next_words(state.next_position)}, {left} left"


@cursors.command("delete")
@reporting
def delete_cursor(
    name: Name, cursor: CursorName, store: StoreOption = None, output: OutputOption = Output.text
) -> None:
    """Delete a cursor. Its backlog becomes subject to retention."""
    request = DeleteCursor(canonical_name(name), cursor)
    opened(store).client.ask(request)
    show(output, {"deleted": cursor}, lambda console: console.print(f"deleted {cursor} of {request.ledger}"))


@cursors.command("describe")
@reporting
def describe_cursor(
    name: Name, cursor: CursorName, whole: All = False, store: StoreOption = None, output: OutputOption = Output.text
) -> None:
    """Describe a cursor: mark-delete position, acknowledged ranges after this position, backlog, size of the state."""
    client, ledger = opened(store).client, canonical_name(name)
    state = client.ask(DescribeCursor(ledger, cursor))
    found = client.ask(AskAckedRanges(ledger, cursor, PositionRange(state.next_position, LATEST)))
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
        **fields_of_positions(info or DecodedInfo(EARLIEST, PositionSet()), whole=whole),
    }
    show_fields(output, shown)


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
    """Write a cursor's whole state to files, in Pulsar's format: one PositionInfo, or chunks and a footer (PIP-381)."""
    codec = compression_number(compression)
    _require_new(directory)
    client, ledger = opened(store).client, canonical_name(name)
    # One call gets the whole state. Between two calls the cursor could move, so that their results would not match.
    found = client.ask(AskAckedRanges(ledger, cursor, PositionRange(EARLIEST, LATEST), whole=True))
    entries = encode_state(found.info, compression=codec, entry_bytes=entry_bytes)
    _write_entries(directory, entries)
    show_fields(output, {"entries": len(entries), "bytes": len(found.info), "directory": str(directory)})


@cursors.command("show")
@reporting
def show_checkpoint(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint of a streaming query: a local directory.")],
    subscription: Annotated[
        str, typer.Option(help="The query's subscription. Default: the ledger's only cursor.")
    ] = "",
    export: Annotated[
        Path | None,
        typer.Option(help="A new or empty directory: write the state at the checkpoint there, as PositionInfo."),
    ] = None,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Show what a query's checkpoint refers to: positions, delivery records, and the stored states of cursors."""
    if export is not None:
        _require_new(export)
    batch, client = newest_batch(checkpoint), opened(store).client
    shown: list[dict[str, Any]] = []
    for source, offset in batch.offsets.items():
        for name, at in offset.ledgers.items():
            known = client.ask(DescribeLedger(name))
            cursor = subscription or (known.cursors[0] if len(known.cursors) == 1 else "")
            place = {"source": source, "ledger": name, "incarnation": at.incarnation, "position": str(at.position)}
            if at.incarnation != known.incarnation:
                raise Refused(
                    f"the checkpoint is of incarnation {at.incarnation} of ledger {name!r}, the store has "
                    f"{known.incarnation}",
                    hint="The ledger was deleted and created again, or --store names another store",
                )
            if at.delivery and not cursor:
                raise Refused(
                    f"the checkpoint names delivery record {at.delivery} of ledger {name!r}, which has "
                    f"{len(known.cursors)} cursors",
                    hint="Name the query's subscription with --subscription",
                )
            info = _info_of(client, name, cursor, at.position)
            entries = encode_state(info)
            shown.append({**place, **_stored(client, name, cursor, at.delivery), **_pieces(info, entries)})
            if export is not None:
                _write_entries(export / f"{source}-{name.replace('/', '_')}", entries)
    value = {"batch": batch.number, "committed": batch.committed, "ledgers": shown}

    def text(console: Console) -> None:
        console.print(f"batch {batch.number} is {'committed' if batch.committed else 'planned, and not committed'}")
        for place in shown:
            console.print("\n".join(f"{key}: {_words(key, value)}" for key, value in place.items()))

    show(output, value, text)


def _info_of(client: Client, ledger: str, cursor: str, position: Position) -> bytes:
    """Return a PositionInfo: the state of the cursor, or without a cursor the position of the checkpoint."""
    if not cursor:
        return encode_info(Position(position.ledger_id, position.entry_id - 1), PositionSet())
    request = AskAckedRanges(ledger, cursor, PositionRange(EARLIEST, LATEST), whole=True)
    found = client.ask(request)
    return found.info


def _stored(client: Client, ledger: str, cursor: str, record: int) -> dict[str, Any]:
    """Return where the store has the state of a cursor, and the delivery record that the checkpoint names."""
    if not cursor:
        return {"cursor": "", "deliveryRecord": None}
    state = client.ask(DescribeCursor(ledger, cursor))
    place = {"cursor": cursor, "cursorLedger": state.cursor_ledger, "deliveryRecord": record or None}
    if not record:
        return place
    delivery = client.ask(AskDelivery(ledger, cursor, record))
    ranges = [f"[{share.range.start}..{share.range.end})" for share in delivery.shares]
    return {**place, "deliveryNext": str(delivery.position), "deliveryRanges": ranges}


def _pieces(info: bytes, entries: list[bytes]) -> dict[str, Any]:
    """Return the parts of a whole state in PIP-381's form: the chunks, and the footer after them."""
    footer = entries[-1].decode() if len(entries) > 1 else None
    mark = decode_info(info, "the state at the checkpoint").mark_delete
    return {"markDelete": str(mark), "stateBytes": len(info), "chunks": max(len(entries) - 1, 1), "footer": footer}


def _require_new(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Refused(f"{directory} exists and is not an empty directory", hint="Name a new directory")


def _write_entries(directory: Path, entries: list[bytes]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number, entry in enumerate(entries):
        (directory / f"{number:06}.entry").write_bytes(entry)


def fields_of_positions(info: DecodedInfo, *, whole: bool) -> dict[str, Any]:
    """Return the position, acknowledged ranges and remaining rows of a cursor's state. Not `whole`: the first ones."""
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


def show_fields(output: Output, shown: dict[str, Any]) -> None:
    """Print the fields of a cursor's state, one a line, or as JSON."""

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
