"""The command `ledger`: inspect a store, write to it, read it, serve it.

The page docs/concepts.md explains the words entry, segment and cursor.

Rules
- Output is text for people, or one JSON document with `--output json`. `read` and `follow` have formats of their own.
- An error is one line on standard error, and status 1. No command prints a traceback.
- If the reader of the output ends, as `head` does, the command ends without an error, with status 141.
- A time without a zone is in the host's zone. Text shows times as ISO 8601 in UTC, JSON as milliseconds since 1970.
- The store is `--store`, else `LEDGER_STORE`, else `./ledger-store`.
"""

from __future__ import annotations

import os
import signal
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

from pyspark_ledger.connector.cli.wording import CommandGroup, counted
from pyspark_ledger.ledger.api.store import LedgerStore, open_store
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.clock import HOST_ZONE
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.hidden_characters import visible
from pyspark_ledger.ledger.location import bucket_of, store_location
from pyspark_ledger.ledger.names import canonical_name, short_name, without_partitions
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger, DescribeLedger, LedgerDescription, ListLedgers
from pyspark_ledger.ledger.protocol.cursors import CursorState, DescribeCursor
from pyspark_ledger.ledger.protocol.reads import SeekTime
from pyspark_ledger.ledger.times import NotATime, milliseconds_of, require_time

# Local variables in a traceback could show a token, so tracebacks do not show them.
app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help=__doc__.split("\n", 1)[0],
    pretty_exceptions_show_locals=False,
)

_READER_ENDED = 128 + signal.SIGPIPE  # what a shell reports for `head`
_COMPLETION_MS = 500
P = ParamSpec("P")
DAMAGE = (Corrupt, DataLoss, Unsupported)


class Output(StrEnum):
    """Format of results."""

    text = "text"
    json = "json"


class Durability(StrEnum):
    """Guarantee that an append has when the broker acknowledges it."""

    fsync = "fsync"
    os = "os"


StoreOption = Annotated[
    str | None, typer.Option("--store", "-s", help="Directory, s3://BUCKET/PREFIX, or broker address.")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Text for people, or JSON for scripts.")]
TIME_FORMS = "2026-11-22T10:15:00Z, 2026-11-22 10:15 in the host's zone, or milliseconds since 1970"
Start = Annotated[str, typer.Option(help=f"earliest, latest, SEGMENT:ENTRY, or a time: {TIME_FORMS}.")]
EpochMs = Annotated[bool, typer.Option("--epoch-ms", help="Print times as milliseconds since 1970, as JSON has them.")]


def _completed(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of ledgers that begin with a text. Starts no broker: without a running one, there is none."""
    with suppress(LedgerError, OSError):
        store = store_location(ctx.params.get("store"))
        client = connect_store(store, start=False, deadline_ms=_COMPLETION_MS)
        names = [short_name(name) for name in without_partitions(client.ask(ListLedgers()).names)]
        return [name for name in names if name.startswith(incomplete)]
    return []


Name = Annotated[str, typer.Argument(help="A ledger: orders, or tenant/namespace/orders.", autocompletion=_completed)]


def reporting(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command, so that a LedgerError becomes one line and status 1, and the end of its reader status 141."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except LedgerError as error:
            fail(error)
        except BrokenPipeError:
            # The interpreter writes what is left in the buffer at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_READER_ENDED) from None

    return run


def fail(*failures: object) -> None:
    """Print a line for each failure on standard error, and exit with status 1. Without a failure, do nothing."""
    for failure in failures:
        literal_console(stderr=True).print(str(failure), style="red")
    if failures:
        raise typer.Exit(1)


def show(output: Output, value: Any, text: Callable[[Console], None]) -> None:
    """Print a result."""
    if output is Output.json:
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    else:
        text(literal_console())


def literal_console(*, stderr: bool = False) -> Console:
    """Return a console that prints texts unchanged. Reason: a name may look like markup, and `5:100:` like an emoji."""
    return _LiteralConsole(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)


class _LiteralConsole(Console):
    """Console that leaves the end of its reader to `reporting`."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 — called while the error is handled


_shown: dict[str, str] = dict.fromkeys(("ca", "certificate", "key", "token"), "")


@app.callback()
def credentials(
    ca: Annotated[
        str,
        typer.Option(
            "--tls-trust-certs-file-path",
            envvar="LEDGER_TLS_TRUST_CERTS_FILE_PATH",
            help="The authority that signed the broker's certificate.",
        ),
    ] = "",
    certificate: Annotated[
        str,
        typer.Option(
            "--tls-certificate-file-path",
            envvar="LEDGER_TLS_CERTIFICATE_FILE_PATH",
            help="The client's certificate.",
        ),
    ] = "",
    key: Annotated[
        str,
        typer.Option(
            "--tls-key-file-path", envvar="LEDGER_TLS_KEY_FILE_PATH", help="The key of the client's certificate."
        ),
    ] = "",
    token: Annotated[
        str,
        typer.Option(
            "--auth-params", envvar="LEDGER_AUTH_PARAMS", help="The place of the token: file:/path or env:NAME."
        ),
    ] = "",
) -> None:
    """Inspect a store, write to it, read it, check its bytes, serve it. The options are for a broker's address."""
    _shown.update(ca=ca, certificate=certificate, key=key, token=token)


def opened(store: str | None, *, create: bool = False) -> LedgerStore:
    """Open a store. Raises NotFound if it does not exist, unless `create` is set.

    Credentials are sent only to a broker's address and to the broker of a bucket, not to the broker of a directory.
    """
    given = _shown if _takes_credentials(store_location(store)) else dict.fromkeys(_shown, "")
    return open_store(store, create=create, **given)


def _takes_credentials(location: str) -> bool:
    return "://" in location or bool(bucket_of(Path(location)))


def source_options(store: str | None) -> dict[str, str]:
    """Return the store and the credentials as options of `format("ledger")`."""
    location = store_location(store)
    named = {"ca": "TrustCertsFilePath", "certificate": "CertificateFilePath", "key": "KeyFilePath"}
    shown = {name: value for name, value in _shown.items() if value and _takes_credentials(location)}
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
    max_entries: Annotated[int, typer.Option(help="Entries of a segment; 0: the broker's default.")] = 0,
    partitions: Annotated[int, typer.Option(help="Number of partitions; 0: not partitioned.")] = 0,
    deduplication: Annotated[
        bool, typer.Option("--deduplication", help="Store a message once, even if a producer sends it again.")
    ] = False,
    durability: Annotated[
        Durability,
        typer.Option(
            help="Acknowledge an append after fsync (fsync), or when the operating system has its bytes (os)."
        ),
    ] = Durability.fsync,
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
    described = opened(store, create=True).client.ask(request)
    show(output, described, lambda console: console.print(f"created {described.name}"))


@app.command()
@reporting
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Delete a ledger with its cursors and files. A damaged ledger can be deleted too. This cannot be undone."""
    found, canonical = opened(store), canonical_name(name)
    try:
        described = found.client.ask(DescribeLedger(canonical))
        held = f" with {counted(described.rows, 'row')} and {counted(len(described.cursors), 'cursor')}"
    except DAMAGE as error:
        held = f", which is damaged: {error.message}"
    if not yes:
        typer.confirm(f"Delete {canonical}{held}?", abort=True)
    found.delete(canonical)
    show(output, {"deleted": canonical}, lambda console: console.print(f"deleted {canonical}"))


@app.command()
@reporting
def seek(
    name: Name,
    time: Annotated[str, typer.Argument(help=f"A time of the broker's clock: {TIME_FORMS}.")],
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Print the first position at or after a time."""
    request = SeekTime(canonical_name(name), require_time("TIME", time, HOST_ZONE))
    found = opened(store).client.ask(request)
    show(output, found, lambda console: console.print(str(found.position)))


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as Python values. A column with a time that Python cannot represent becomes text."""
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
    """Return the descriptions of ledgers, and a line for each damaged ledger.

    Ledgers that were deleted since their names were listed are left out.
    """
    described, damage = list[LedgerDescription](), list[str]()
    for name in names:
        try:
            described.append(client.ask(DescribeLedger(name)))
        except NotFound:
            continue
        except DAMAGE as error:
            damage.append(f"{short_name(name)}: {error}")
    return described, damage


def cursor_states(client: Client, described: LedgerDescription) -> tuple[list[CursorState], list[str]]:
    """Return the states of the cursors of a ledger or of its partitions, and a line for each damaged cursor."""
    states, damage = list[CursorState](), list[str]()
    for log in described.partitions or [described]:
        for cursor in log.cursors:
            try:
                states.append(client.ask(DescribeCursor(log.name, cursor)))
            except DAMAGE as error:
                damage.append(f"{cursor}: {error}")
    return states, damage


def cursor_label(state: CursorState, described: LedgerDescription) -> str:
    """Return the name of a cursor; in a partitioned ledger, with the name of the partition."""
    name = visible(state.cursor)
    return f"{name} of {visible(short_name(state.ledger))}" if described.partitions else name


def position_of(client: Client, name: str, option: str, text: str) -> Position:
    """Return the position that a command's argument names: earliest, latest, SEGMENT:ENTRY, or a time."""
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
    """Return the position of the first entry that the broker stored at or after a time; else the end."""
    found = client.ask(SeekTime(name, milliseconds))
    return found.position


def ledger_table(described: Iterable[LedgerDescription], title: str = "ledger") -> Table:
    """Return a table with a row for each ledger or partition in `described`."""
    table = Table(title, "rows", "entries", "bytes", "segments", "cursors", "end")
    for ledger in described:
        numbers = (ledger.rows, ledger.entries, ledger.size_bytes, ledger.segment_count, len(ledger.cursors))
        end = "empty" if ledger.end.ledger_id < 0 else str(ledger.end)
        end = counted(len(ledger.partitions), "partition") if ledger.partitions else end
        table.add_row(visible(short_name(ledger.name)), *(f"{number:,}" for number in numbers), end)
    return table
