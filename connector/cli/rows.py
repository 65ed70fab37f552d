"""Rows at the command line: `append` reads them from files and standard input, and `read` prints those of a ledger."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from enum import StrEnum
from typing import IO, Annotated

import msgspec
import pyarrow as pa
import typer
from rich.table import Table

from pyspark_ledger.connector.cli.ledgers import (
    TIME_FORMS,
    Name,
    Output,
    OutputOption,
    StoreOption,
    literal_console,
    opened,
    position_of,
    python_rows,
    reporting,
    show,
)
from pyspark_ledger.connector.cli.wording import counted, row_words
from pyspark_ledger.connector.rows.row_input import RowInput, appends
from pyspark_ledger.connector.rows.text_files import KeyedColumns, TextFormat, append_messages, append_rows
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.scan import Scan
from pyspark_ledger.ledger.consumer.batch import Batch
from pyspark_ledger.ledger.consumer.batches import Batches
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.names import partition_name, short_name
from pyspark_ledger.ledger.position import Position

_PRINTED_ROWS = 1_000
_JSON = msgspec.json.Encoder(enc_hook=str)


class RowOutput(StrEnum):
    """Format in which `read` prints rows."""

    table = "table"
    jsonl = "jsonl"
    arrow = "arrow"
    parquet = "parquet"


class LineOutput(StrEnum):
    """Format in which `follow` prints rows, one line for each row."""

    text = "text"
    jsonl = "jsonl"


@reporting
def append(
    name: Name,
    messages: Annotated[
        list[str] | None, typer.Argument(help="Messages; without messages and rows, the lines of standard input.")
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            "-f",
            help="A file of rows: .csv, .jsonl, .ndjson, .json, .parquet or .arrow, or - for standard input; may be "
            "repeated.",
        ),
    ] = None,
    written: Annotated[
        TextFormat | None,
        typer.Option("--format", help="Format of the rows; default: as the file's name says, jsonl for -."),
    ] = None,
    key_column: Annotated[str, typer.Option(help="Append each row as a message, with its key from this column.")] = "",
    properties_column: Annotated[
        str, typer.Option(help="Append each row as a message, with its properties from this column: JSON objects.")
    ] = "",
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Append messages, or rows of files or standard input, and print the position after the last of them."""
    columns = KeyedColumns(key_column, properties_column)
    if sources and messages:
        raise Refused(f"{counted(len(messages), 'message')} and rows were given", hint="Append messages, or rows")
    if (columns or written) and not sources:
        what = f"format {written.value}" if written else "a column"
        raise Refused(
            f"{what} is named, but no rows are given",
            hint="Name their file with --from, or --from - to read standard input",
        )
    with ExitStack() as files:
        inputs = [files.enter_context(RowInput.open(source, written)) for source in sources or []]
        ledger = opened(store, create=True).ledger(name)
        if sources:
            end = _append_inputs(ledger, inputs, columns)
        else:
            # Arguments and lines are read as bytes, because a message need not be text.
            lines = (line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer)
            end = None
            for message in map(os.fsencode, messages) if messages else lines:
                end = ledger.append(message)
    result = "nothing was appended" if end is None else f"appended up to {end}"
    show(output, {"end": end}, lambda console: console.print(result))


def _append_inputs(ledger: Ledger, inputs: Iterable[RowInput], columns: KeyedColumns) -> Position | None:
    """Append rows, part after part. Return the position after the last row, None if there is no row.

    An error says how far rows were appended before. An interrupt also ends with this line.
    """
    end: Position | None = None
    try:
        for parts in appends(inputs):
            end = (append_messages(ledger, parts, columns) if columns else append_rows(ledger, parts)) or end
    except LedgerError as error:
        if end is None:
            raise
        raise type(error)(error.message, hint=f"The rows before were appended, up to {end}") from None
    except KeyboardInterrupt:
        literal_console(stderr=True).print("nothing was appended" if end is None else f"appended up to {end}")
        raise
    return end


Since = Annotated[str, typer.Option(help=f"First row: earliest, SEGMENT:ENTRY, or a time: {TIME_FORMS}.")]
Until = Annotated[str, typer.Option(help="End, which is left out, in the same forms; default: the present end.")]


@reporting
def read(
    name: Name,
    columns: Annotated[str, typer.Option(help="Names of columns, with commas between them; default: all.")] = "",
    since: Since = "earliest",
    until: Until = "",
    output: Annotated[
        RowOutput, typer.Option("--output", "-o", help="A table for people, or a format for programs.")
    ] = RowOutput.table,
    store: StoreOption = None,
) -> None:
    """Print the rows of a ledger up to its present end. Memory is bounded, however many rows there are."""
    if output in (RowOutput.arrow, RowOutput.parquet) and sys.stdout.isatty():
        raise Refused(f"{output.value} is no text for a terminal", hint="Write it to a file: ledger read … > FILE")
    rows = _selected(opened(store).ledger(name), columns, since, until)
    _WRITERS[output](rows.schema, rows.batches(), sys.stdout.buffer)
    sys.stdout.buffer.flush()


@reporting
def follow(
    name: Name,
    since: Annotated[
        str, typer.Option(help=f"First row: latest (new rows only), earliest, SEGMENT:ENTRY, or a time: {TIME_FORMS}.")
    ] = "latest",
    wait: Annotated[
        float | None, typer.Option(min=0, help="End after this number of seconds without a new row; default: never.")
    ] = None,
    output: Annotated[
        LineOutput, typer.Option("--output", "-o", help="Words for people, or JSON for programs.")
    ] = LineOutput.text,
    store: StoreOption = None,
) -> None:
    """Print rows as they are appended, until Ctrl-C."""
    ledger, console = opened(store).ledger(name), literal_console()
    for batch in _followed(ledger, since, wait):
        if output is LineOutput.jsonl:
            _write_jsonl(batch.table.schema, batch.table.to_batches(), sys.stdout.buffer)
        else:
            for row in python_rows(batch.table):
                console.print(row_words(row))
        sys.stdout.flush()


def _followed(ledger: Ledger, since: str, wait: float | None) -> Batches[Batch]:
    if not isinstance(ledger, PartitionedLedger):
        return ledger.follow(position_of(ledger.client, ledger.name, "--since", since), wait=wait)
    _require_no_position(ledger.name, {"--since": since})
    starts = {part.name: position_of(part.client, part.name, "--since", since) for part in ledger.partitions()}
    return ledger.follow(starts, wait=wait)


def _selected(ledger: Ledger, columns: str, since: str, until: str) -> Scan:
    names = [each.strip() for each in columns.split(",")] if columns else None
    if isinstance(ledger, PartitionedLedger):
        _require_no_position(ledger.name, {"--since": since, "--until": until})
        return ledger.scan(names, since=None if since == "earliest" else since, until=until or None)
    start = position_of(ledger.client, ledger.name, "--since", since)
    return ledger.scan(names, start, position_of(ledger.client, ledger.name, "--until", until) if until else None)


def _require_no_position(name: str, given: Mapping[str, str]) -> None:
    for option, text in given.items():
        with suppress(ValueError):
            raise Refused(
                f"{option} is the position {Position.parse(text)}, but {short_name(name)} has partitions",
                hint=f"Name a time, or a partition, such as {short_name(partition_name(name, 0))}",
            )


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield slices of limited size, because Python values take many times the memory of Arrow's."""
    for batch in batches:
        for at in range(0, batch.num_rows, _PRINTED_ROWS):
            yield pa.Table.from_batches([batch.slice(at, _PRINTED_ROWS)])


def _write_jsonl(_: pa.Schema, batches: Iterable[pa.RecordBatch], target: IO[bytes]) -> None:
    for piece in _pieces(batches):
        target.write(_JSON.encode_lines(python_rows(piece)))


def _write_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch], _: IO[bytes]) -> None:
    console = literal_console()
    for piece in _pieces(batches):
        table = Table(*schema.names)
        for row in python_rows(piece):
            table.add_row(*("" if value is None else str(value) for value in row.values()))
        console.print(table)


def _write_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch], target: IO[bytes]) -> None:
    with pa.ipc.new_stream(target, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], target: IO[bytes]) -> None:
    from pyarrow.parquet import ParquetWriter  # imported here, because each command would pay for it

    with ParquetWriter(target, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


_WRITERS: dict[RowOutput, Callable[[pa.Schema, Iterable[pa.RecordBatch], IO[bytes]], None]] = {
    RowOutput.table: _write_table,
    RowOutput.jsonl: _write_jsonl,
    RowOutput.arrow: _write_arrow,
    RowOutput.parquet: _write_parquet,
}
