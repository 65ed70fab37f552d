"""The command `ledger`: inspect a store, write to it, tail it, serve it.

Rules
- Output is text for people, or one JSON document with `--output json`; for a stream of rows one a line.
- An error is one line on standard error and status 1; nothing prints a traceback.
- A time without a zone is in the host's zone. Text shows times as ISO 8601 in UTC, JSON as milliseconds since 1970.
- A store is named by `--store`, else `LEDGER_STORE`, else `./ledger-store`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import msgspec
import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from pyspark_ledger.connector.cli.wording import counted, row_words
from pyspark_ledger.connector.rows.text_files import (
    KeyedColumns,
    RowText,
    TextFormat,
    append_messages,
    append_rows,
    format_of,
)
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.clock import HOST_ZONE
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.hidden_characters import visible
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.names import canonical_name, short_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger, LedgerDescription
from pyspark_ledger.ledger.protocol.cursors import CursorState, NameCursor
from pyspark_ledger.ledger.protocol.reads import PositionReply, SeekTime
from pyspark_ledger.ledger.times import NotATime, milliseconds_of, require_time

# Locals in a traceback could show a token.
app = typer.Typer(
    no_args_is_help=True,
    help=__doc__.split("\n", 1)[0],
    pretty_exceptions_show_locals=False,
)

P = ParamSpec("P")
DAMAGE = (Corrupt, DataLoss, Unsupported)


class Output(StrEnum):
    """Format of results."""

    text = "text"
    json = "json"


class Durability(StrEnum):
    """Moment at which an append is acknowledged."""

    fsync = "fsync"
    os = "os"


StoreOption = Annotated[str | None, typer.Option("--store", "-s", help="Directory or broker address.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people, or for scripts.")]
TIME_FORMS = "2026-11-22T10:15:00Z, 2026-11-22 10:15 in the host's zone, or milliseconds since 1970"
Start = Annotated[str, typer.Option(help=f"earliest, latest, SEGMENT:ENTRY, or a time: {TIME_FORMS}.")]
EpochMs = Annotated[bool, typer.Option("--epoch-ms", help="Print times as milliseconds since 1970, as JSON has them.")]
Name = Annotated[str, typer.Argument(help="A ledger: orders, or tenant/namespace/orders.")]


def reporting(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command: this project's errors become one line and status 1."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except LedgerError as error:
            fail(error)

    return run


def fail(*said: object) -> None:
    """Print a line for each failure on standard error, and exit with status 1; nothing without one."""
    for one in said:
        literal_console(stderr=True).print(str(one), style="red")
    if said:
        raise typer.Exit(1)


def show(output: Output, value: Any, text: Callable[[Console], None]) -> None:
    """Print a result."""
    if output is Output.json:
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    else:
        text(literal_console())


def literal_console(*, stderr: bool = False) -> Console:
    """Return a console that prints texts literally: a name may look like markup, and `5:100:` like the emoji
    `:100:`.
    """
    return Console(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)


_shown: dict[str, str] = {}


@app.callback()
def credentials(
    ca: Annotated[
        str,
        typer.Option(
            "--tls-trust-certs-file-path",
            envvar="LEDGER_TLS_TRUST_CERTS_FILE_PATH",
            help="The authority of the broker's certificate.",
        ),
    ] = "",
    certificate: Annotated[
        str,
        typer.Option(
            "--tls-certificate-file-path",
            envvar="LEDGER_TLS_CERTIFICATE_FILE_PATH",
            help="The certificate to show to a broker.",
        ),
    ] = "",
    key: Annotated[str, typer.Option("--tls-key-file-path", envvar="LEDGER_TLS_KEY_FILE_PATH", help="Its key.")] = "",
    token: Annotated[
        str,
        typer.Option("--auth-params", envvar="LEDGER_AUTH_PARAMS", help="Where the token is: file:/path or env:NAME."),
    ] = "",
) -> None:
    """Inspect a store, write to it, tail it, check its bytes, serve it. The options are for a broker elsewhere."""
    _shown.clear()
    _shown.update(ca=ca, certificate=certificate, key=key, token=token)


def opened(store: str | None, *, create: bool = False) -> LedgerStore:
    """Return the store of the options. Inspection never creates one. A directory's broker gets no credentials."""
    given = _shown if "://" in store_location(store) else {}
    return connect(store, create=create, **given)


def source_options(store: str | None) -> dict[str, str]:
    """Return the same for `format("ledger")`, by its options' names."""
    location = store_location(store)
    named = {"ca": "TrustCertsFilePath", "certificate": "CertificateFilePath", "key": "KeyFilePath"}
    shown = {name: value for name, value in _shown.items() if value and "://" in location}
    names = {"token": "authParams", **{name: f"tls{rest}" for name, rest in named.items()}}
    return {"store": location, **{names[name]: value for name, value in shown.items()}}


@app.command("list")
@reporting
def list_ledgers(store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """List the ledgers of a store."""
    found = opened(store)
    described, damage = ledgers_described(found.client, found.names())
    show(output, described, lambda console: console.print(ledger_table(described)))
    fail(*damage)


@app.command()
@reporting
def create(
    name: Name,
    block_bytes: Annotated[int, typer.Option(help="Bytes of a block; 0: the broker's default.")] = 0,
    max_entries: Annotated[int, typer.Option(help="Roll over after so many entries; 0: the default.")] = 0,
    partitions: Annotated[int, typer.Option(help="Partitions; 0: none.")] = 0,
    deduplication: Annotated[bool, typer.Option("--deduplication", help="Write what comes again once.")] = False,
    durability: Annotated[Durability, typer.Option(help="Acknowledge synced entries, or written ones.")] = (
        Durability.fsync
    ),
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Create a ledger, and the store if it does not exist."""
    request = CreateLedger(
        canonical_name(name),
        block_bytes=block_bytes,
        max_entries_per_ledger=max_entries,
        partitions=partitions,
        deduplication=deduplication,
        durability=durability.value,
    )
    described = opened(store, create=True).client.create(request)
    show(output, described, lambda console: console.print(f"created {described.name}"))


@app.command()
@reporting
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Delete a ledger with its cursors and files, also a damaged one. This cannot be undone."""
    found, canonical = opened(store), canonical_name(name)
    try:
        described = found.client.describe(canonical)
        held = f" with {counted(described.rows, 'row')} and {counted(len(described.cursors), 'cursor')}"
    except DAMAGE as error:
        held = f", which is damaged: {error.message}"
    if not yes:
        typer.confirm(f"Delete {canonical}{held}?", abort=True)
    found.delete(canonical)
    show(output, {"deleted": canonical}, lambda console: console.print(f"deleted {canonical}"))


@app.command()
@reporting
def append(
    name: Name,
    messages: Annotated[
        list[str] | None, typer.Argument(help="Messages; without any, the lines of standard input.")
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="Rows: a .csv, .jsonl, .ndjson or .json; may be repeated.")
    ] = None,
    written: Annotated[
        TextFormat | None, typer.Option("--format", help="Of the files; without a file, of the rows of standard input.")
    ] = None,
    key_column: Annotated[str, typer.Option(help="Append messages, with their keys in this column.")] = "",
    properties_column: Annotated[str, typer.Option(help="The same for properties: JSON objects of texts.")] = "",
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Append messages, or the rows of CSV and JSON lines, and print the position after the last."""
    columns, rows = KeyedColumns(key_column, properties_column), bool(files or written)
    if rows and messages:
        raise Refused(f"{counted(len(messages), 'message')} and rows were given", hint="Append one or the other")
    if columns and not rows:
        raise Refused("a column is named, but no rows are given", hint="Name a --file, or the --format of the input")
    texts = _texts(files or [], written) if rows else []
    ledger = opened(store, create=True).ledger(name)
    end: Position | None = None
    if rows:
        end = append_messages(ledger, texts, columns) if columns else append_rows(ledger, texts)
    else:
        # Raw bytes: neither an argument nor a line need be text.
        lines = (line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer)
        for message in map(os.fsencode, messages) if messages else lines:
            end = ledger.append(message)
    said = "nothing was appended" if end is None else f"appended up to {end}"
    show(output, {"end": end}, lambda console: console.print(said))


@app.command()
@reporting
def tail(
    name: Name,
    start: Start = "latest",
    wait_ms: Annotated[int | None, typer.Option(help="End after this time without new rows; default: never.")] = None,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Print rows as they come."""
    ledger = opened(store).ledger(name)
    begin = ledger.end().end if start == "latest" else position_of(ledger.client, ledger.name, "--start", start)
    for table in ledger.tail(begin, wait_ms):
        for row in _rows(table):
            if output is Output.json:
                sys.stdout.write(msgspec.json.encode(row, enc_hook=str).decode() + "\n")
            else:
                literal_console().print(row_words(row))
        sys.stdout.flush()


@app.command()
@reporting
def seek(
    name: Name,
    time: Annotated[str, typer.Argument(help=f"By the broker's clock: {TIME_FORMS}.")],
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Print the first position at or after a time."""
    request = SeekTime(canonical_name(name), require_time("TIME", time, HOST_ZONE))
    found = opened(store).client.call("seek", request)
    show(output, found, lambda console: console.print(str(found.position)))


def _texts(files: list[Path], written: TextFormat | None) -> list[RowText]:
    """Return the files, or standard input, with their formats."""
    if written is not None and not files:
        return [RowText("standard input", written, sys.stdin.buffer.read())]
    formats = [written or format_of(str(file)) for file in files]
    try:
        return [RowText(str(file), kind, file.read_bytes()) for file, kind in zip(files, formats, strict=True)]
    except OSError as wrong:
        raise NotFound(f"{wrong.filename} cannot be read: {wrong.strerror}") from None


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as Python values; a time that Python cannot represent makes its column text."""
    columns: dict[str, list[Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            columns[name] = column.to_pylist()
        except (OverflowError, ValueError) as wrong:
            if pa.types.is_nested(column.type):
                raise Refused(f"column {name!r} ({column.type}) cannot be printed: {wrong}") from wrong
            columns[name] = column.cast(pa.string()).to_pylist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def ledgers_described(client: Client, names: Iterable[str]) -> tuple[list[LedgerDescription], list[str]]:
    """Return descriptions of ledgers without those that were deleted meanwhile.

    Return also a line for each damaged one, which does not hide the others.
    """
    described, damage = list[LedgerDescription](), list[str]()
    for name in names:
        try:
            described.append(client.describe(name))
        except NotFound:
            continue
        except DAMAGE as error:
            damage.append(f"{short_name(name)}: {error}")
    return described, damage


def cursor_states(client: Client, described: LedgerDescription) -> tuple[list[CursorState], list[str]]:
    """Return the states of a ledger's cursors, or of those of each of its partitions.

    Return also a line for each damaged one, which does not hide the others.
    """
    states, damage = list[CursorState](), list[str]()
    for log in described.partitions or [described]:
        for cursor in log.cursors:
            try:
                states.append(client.call("cursor.describe", NameCursor(log.name, cursor)))
            except DAMAGE as error:
                damage.append(f"{cursor}: {error}")
    return states, damage


def cursor_label(state: CursorState, described: LedgerDescription) -> str:
    """Return the name of a cursor beside the others of a ledger."""
    name = visible(state.cursor)
    return f"{name} of {visible(short_name(state.ledger))}" if described.partitions else name


def position_of(client: Client, name: str, option: str, text: str) -> Position:
    """Return the position of an argument: earliest, latest, SEGMENT:ENTRY, or the first one at or after a time."""
    named = {"earliest": EARLIEST, "latest": LATEST}
    if text in named:
        return named[text]
    with suppress(ValueError):
        return Position.parse(text)
    try:
        return position_at(client, name, milliseconds_of(text, HOST_ZONE))
    except NotATime as expected:
        raise Refused(f"{option} is {text!r}, expected earliest, latest, SEGMENT:ENTRY, or {expected}") from None


def position_at(client: Client, name: str, milliseconds: int) -> Position:
    """Return the first position whose entry the broker stored at or after a time; the end if there is none."""
    found: PositionReply = client.call("seek", SeekTime(name, milliseconds))
    return found.position


def ledger_table(described: Iterable[LedgerDescription], title: str = "ledger") -> Table:
    """Return a table with a row for each ledger, or for each partition of one."""
    table = Table(title, "rows", "entries", "bytes", "segments", "cursors", "end")
    for ledger in described:
        numbers = (ledger.rows, ledger.entries, ledger.size_bytes, ledger.segment_count, len(ledger.cursors))
        end = "empty" if ledger.end.ledger_id < 0 else str(ledger.end)
        end = counted(len(ledger.partitions), "partition") if ledger.partitions else end
        table.add_row(visible(short_name(ledger.name)), *(f"{number:,}" for number in numbers), end)
    return table
