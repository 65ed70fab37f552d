"""The command `ledger`: inspect a store, write to it, tail it, serve it.

Rules
- Output is text for people, or one JSON document with `--output json`; for a stream of rows one a line.
- An error is one line on standard error and status 1; nothing prints a traceback.
- A store is named by `--store`, else `LEDGER_STORE`, else `./ledger-store`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, ParamSpec

import msgspec
import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from pyspark_ledger.connector.cli.cache import show_cache
from pyspark_ledger.connector.cli.wording import counted, next_words
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.schemas import registered_columns
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.hidden_characters import visible
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.names import canonical_name, short_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger, Empty, LedgerDescription
from pyspark_ledger.ledger.protocol.cursors import CursorState, NameCursor
from pyspark_ledger.ledger.protocol.reads import SeekTime
from pyspark_ledger.ledger.times import TIME_FORMS, parse_time_ms

# Locals in a traceback could show a token.
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help=__doc__.split("\n", 1)[0],
    pretty_exceptions_show_locals=False,
)

P = ParamSpec("P")
_DAMAGE = (Corrupt, DataLoss, Unsupported)


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
    show(output, described, lambda console: console.print(_ledger_table(described)))
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
def describe(
    name: Name,
    cache: Annotated[bool, typer.Option("--cache", help="What the broker's cache holds of it, and for whom.")] = False,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Describe a ledger: its end, its segments, its cursors."""
    client = opened(store).client
    described = client.describe(canonical_name(name))
    if cache:
        counted = client.call("cache", Empty())
        show(output, counted, lambda console: show_cache(console, counted, described.name))
        return
    if output is Output.json:
        show(output, described, lambda _: None)
        return
    states, damage = cursor_states(client, described)
    # A partition has the columns since its first row.
    written = max(described.partitions or [described], key=lambda log: log.schema_version)
    columns = registered_columns(client, written.name)
    show(output, described, lambda console: _describe(console, described, states, columns, written.schema_version))
    fail(*damage)


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
    except _DAMAGE as error:
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
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Append messages to a ledger of messages, and print the position after the last."""
    ledger = opened(store, create=True).ledger(name)
    end: Position | None = None
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
    start: Annotated[str, typer.Option(help=f"earliest, latest, LEDGER:ENTRY or TIME: {TIME_FORMS}.")] = "latest",
    wait_ms: Annotated[int | None, typer.Option(help="End after so much silence; default: never.")] = None,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Print rows as they come."""
    ledger = opened(store).ledger(name)
    for table in ledger.tail(_tail_start(ledger, start), wait_ms):
        for row in _rows(table):
            if output is Output.json:
                sys.stdout.write(msgspec.json.encode(row, enc_hook=str).decode() + "\n")
            else:
                Console(soft_wrap=True).print(row)
        sys.stdout.flush()


@app.command()
@reporting
def seek(
    name: Name,
    time: Annotated[
        int, typer.Argument(parser=time_ms, metavar="TIME", help=f"Time by the broker's clock: {TIME_FORMS}.")
    ],
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Print the first position at or after a time."""
    found = opened(store).client.call("seek", SeekTime(canonical_name(name), time))
    show(output, found, lambda console: console.print(str(found.position)))


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
        except _DAMAGE as error:
            damage.append(f"{short_name(name)}: {error}")
    return described, damage


def cursor_states(
    client: Client, described: LedgerDescription, *, precise: bool = True
) -> tuple[list[CursorState], list[str]]:
    """Return the states of a ledger's cursors, or of those of each of its partitions.

    Without `precise`, rows and bytes of a backlog are estimates. Return also a line for each damaged one, which
    does not hide the others.
    """
    states, damage = list[CursorState](), list[str]()
    for log in described.partitions or [described]:
        for cursor in log.cursors:
            try:
                states.append(client.call("cursor.describe", NameCursor(log.name, cursor, precise=precise)))
            except _DAMAGE as error:
                damage.append(f"{cursor}: {error}")
    return states, damage


def cursor_label(state: CursorState, described: LedgerDescription) -> str:
    """Return the name of a cursor beside the others of a ledger."""
    name = visible(state.cursor)
    return f"{name} of {visible(short_name(state.ledger))}" if described.partitions else name


def _tail_start(ledger: Ledger, text: str) -> Position:
    """Return the position of an argument, which may be a time."""
    if text == "latest":
        return ledger.end().end
    try:
        milliseconds = parse_time_ms(text)
    except ValueError:
        return position_at(text, f", LEDGER:ENTRY nor {TIME_FORMS}")
    return ledger.position_at(milliseconds)


def time_ms(text: str) -> int:
    """Return the milliseconds of an argument."""
    try:
        return parse_time_ms(text)
    except ValueError as expected:
        raise typer.BadParameter(f"{text!r} is no time, expected {expected}") from None


def position_at(text: str, others: str = " nor LEDGER:ENTRY") -> Position:
    """Return the position of an argument. `others` are the other forms that the argument may have."""
    named = {"earliest": EARLIEST, "latest": LATEST}
    if text in named:
        return named[text]
    try:
        return Position.parse(text)
    except ValueError as wrong:
        raise typer.BadParameter(f"{text!r} is neither earliest, latest{others}") from wrong


def _ledger_table(described: Iterable[LedgerDescription], title: str = "ledger") -> Table:
    table = Table(title, "rows", "entries", "bytes", "segments", "cursors", "end")
    for ledger in described:
        numbers = (ledger.rows, ledger.entries, ledger.size_bytes, ledger.segment_count, len(ledger.cursors))
        end = "empty" if ledger.end.ledger_id < 0 else str(ledger.end)
        end = counted(len(ledger.partitions), "partition") if ledger.partitions else end
        table.add_row(visible(short_name(ledger.name)), *(f"{number:,}" for number in numbers), end)
    return table


def _describe(
    console: Console,
    described: LedgerDescription,
    cursors: list[CursorState],
    columns: pa.Schema | None,
    version: int,
) -> None:
    console.print(f"{visible(described.name)}  ({described.incarnation})")
    where = f"[{next_words(described.start)}, {next_words(described.end)})"
    if described.partitions:
        where = counted(len(described.partitions), "partition")
    held = f"{counted(described.rows, 'row')} in {counted(described.entries, 'entry', 'entries')}"
    console.print(f"  {held}, {where}")
    typed = ", ".join(f"{visible(field.name)} {field.type}" for field in columns or ())
    said = f"{typed or 'a payload schema'} (version {version})" if version >= 0 else "none"
    console.print(f"  columns: {said}", markup=False)
    console.print(f"  cursors: {', '.join(map(visible, described.cursors)) or 'none'}")
    for state in cursors:
        # Spark has read it, no query reads it now, and it has a backlog: most likely the last batch of its last run.
        if state.replay_floor is not None and state.backlog_rows and not state.lease_holder:
            console.print(
                f"  {cursor_label(state, described)}: {counted(state.backlog_rows, 'row')} not acknowledged. "
                "A query's last batch stays until it starts again, unless its session comes from session() or "
                "configure()"
            )
    if described.terminated is not None:
        console.print(f"  terminated: its last entry is {described.terminated}")
    if described.partitions:
        console.print(_ledger_table(described.partitions, "partition"))
        return
    table = Table("segment", "entries", "rows", "bytes", "state")
    for segment in described.segments:
        numbers = (segment.entries, segment.rows, segment.size_bytes)
        kind = "sealed" if segment.close_ms else "open"
        table.add_row(str(segment.ledger_id), *(f"{number:,}" for number in numbers), kind)
    console.print(table)
