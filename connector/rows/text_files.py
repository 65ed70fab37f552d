"""Rows of CSV, JSON lines, Parquet and Arrow, appended to a ledger as rows or as messages.

Rules
- All texts of a call are parsed before anything is appended. So a wrong line is refused, and nothing is appended.
- The error for a wrong line has the line's number and its text.
- A column of the ledger is parsed with the ledger's type. The type of another column is inferred from the whole text.
  A column without any value has no type. It gets the type of the first value that a later text appends.
- An empty field of CSV is null, unless it is quoted.
- A row of a message has its payload in the column `value`. Two more columns are optional: the key, and the properties.
  The properties are a JSON object whose values are texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.message.columns import ColumnFit, fields_beyond, is_typed, typed_columns

if TYPE_CHECKING:
    from pyspark_ledger.ledger.api.ledger import Ledger
    from pyspark_ledger.ledger.position import MessageId, Position

VALUE = "value"
_BYTES_MAX = 2**31 - 2  # the largest block of Arrow's parsers
_LINES = 1024 * 1024
_SHOWN = 300
_ROW = re.compile(r" in row \d+")  # counts from the start of the parsed block
_NULL_LINE = re.compile(rb"(?m)^[ \t\r]*(null)\b")  # Arrow's parser crashes if such a line is the first one


class TextFormat(StrEnum):
    """Format of a file with rows."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"
    arrow = "arrow"


_SUFFIXES = {
    ".csv": TextFormat.csv,
    ".jsonl": TextFormat.jsonl,
    ".ndjson": TextFormat.jsonl,
    ".json": TextFormat.jsonl,
    ".parquet": TextFormat.parquet,
    ".arrow": TextFormat.arrow,
}


class RowText(NamedTuple):
    """Text with rows, or the rows of a part of a Parquet or Arrow file.

    `where` names the text in errors. `first_line` is the number of its first line.
    """

    where: str
    written: TextFormat
    data: bytes | pa.Table
    first_line: int = 1

    @property
    def size(self) -> int:
        """Bytes of the text or of the rows."""
        return len(self.data) if isinstance(self.data, bytes) else self.data.nbytes


class RowMessage(NamedTuple):
    """Message of a row. None as value means a tombstone, which says that the key was deleted."""

    value: bytes | None
    key: str | None
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class KeyedColumns:
    """Names of the columns with a message's key and properties. An empty name means that there is no such column."""

    key: str = ""
    properties: str = ""

    def __bool__(self) -> bool:
        return bool(self.key or self.properties)

    def schema(self, written: TextFormat) -> pa.Schema:
        """Return the types of the columns. In JSON the properties are an object, whose type is inferred."""
        texts = [self.key, self.properties if written is TextFormat.csv else ""]
        return pa.schema([pa.field(VALUE, pa.binary()), *(pa.field(name, pa.string()) for name in texts if name)])


def format_of(path: str) -> TextFormat:
    """Return the format that a file's name states. Raises Refused for any other name."""
    suffix = PurePath(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise Refused(
            f"the name of file {path!r} ends with {suffix!r}, expected {', '.join(_SUFFIXES)}",
            hint="Name the format with --format",
        )
    return _SUFFIXES[suffix]


def append_rows(ledger: Ledger, texts: Iterable[RowText]) -> Position | None:
    """Append the rows of texts. Return the position after the last row, None if there is no row."""
    columns, texts = None, list(texts)
    with suppress(NotFound):
        columns = ledger.schema()
    parsed = list[pa.Table]()
    for text in texts:
        rows = parse_rows(text, columns)
        columns = typed_columns(columns or rows.schema, rows.schema)
        parsed.append(_like(rows, parsed[0], text.where) if parsed else rows)
    rows = pa.concat_tables([_typed(rows, columns, text.where) for rows, text in zip(parsed, texts, strict=True)])
    return ledger.append(rows) if rows.num_rows else None


def append_messages(ledger: Ledger, texts: Iterable[RowText], columns: KeyedColumns) -> Position | None:
    """Append the rows of texts as messages. Return the position after the last message, None if there is no row."""
    parsed = [messages_of(_keyed(text, columns), columns, text.where) for text in texts]
    with suppress(NotFound):
        if ledger.schema() is not None:
            raise Refused(
                f"ledger {ledger.name} holds rows, messages were given",
                hint="Leave out the columns of key and properties to append rows",
            )
    last: Future[MessageId] | None = None
    with ledger.producer() as producer:
        for message in chain.from_iterable(parsed):
            last = producer.send(message.value, key=message.key, properties=message.properties)
    return None if last is None else last.result().position.next()


def parse_rows(text: RowText, columns: pa.Schema | None) -> pa.Table:
    """Return the rows of a text. Raises Refused naming the text, the line and the reason."""
    where, data = text.where, text.data
    table = data if isinstance(data, pa.Table) else _parsed(text, data, columns)
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise Refused(f"{where} has two columns {twice[0]!r}", hint="Give each column another name")
    return table


def _keyed(text: RowText, columns: KeyedColumns) -> pa.Table:
    """Return the rows of messages. A payload or a key of Parquet or Arrow can be a text or bytes."""
    rows = parse_rows(text, columns.schema(text.written))
    for field in columns.schema(text.written) if isinstance(text.data, pa.Table) else ():
        place = rows.schema.get_field_index(field.name)
        if place >= 0 and rows.schema.field(place).type != field.type:
            try:
                rows = rows.set_column(place, field, rows.column(place).cast(field.type))
            except pa.ArrowException as wrong:
                raise Refused(
                    f"column {field.name!r} of {text.where} cannot be read as {field.type}: {wrong}",
                    hint="Nothing was appended",
                ) from None
    return rows


def _parsed(text: RowText, data: bytes, columns: pa.Schema | None) -> pa.Table:
    where, written = text.where, text.written
    if len(data) > _BYTES_MAX:
        raise Refused(f"{where} has {len(data)} bytes, at most {_BYTES_MAX} are read at once", hint="Split the text")
    if written is TextFormat.jsonl and (null := _NULL_LINE.search(data)):
        line = text.first_line + data.count(b"\n", 0, null.start(1))
        raise Refused(f"line {line} of {where} is null, expected a JSON object", hint="Nothing was appended")
    try:
        return _table(data, written, columns)
    except pa.ArrowException as wrong:
        reason = _ROW.sub("", str(wrong).partition("\n")[0])[:_SHOWN]
        line, shown = _wrong_line(data, written, columns)
        raise Refused(
            f"line {text.first_line + line} of {where} cannot be read as {written.value}: {reason}; it is {shown!r}",
            hint="Nothing was appended",
        ) from None


def _table(data: bytes, written: TextFormat, columns: pa.Schema | None) -> pa.Table:
    parse = _csv if written is TextFormat.csv else _json
    return parse(pa.BufferReader(data), max(len(data), _LINES), columns)


def row_ends(data: bytes | bytearray, written: TextFormat) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the offsets after the newline of each row, in ascending order. A quoted field of CSV can have newlines."""
    characters = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(characters == ord("\n"))
    if written is TextFormat.csv:  # outside of quotes, the number of quotes before is even
        quotes = np.flatnonzero(characters == ord('"'))
        newlines = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
    return newlines + 1


def _wrong_line(data: bytes, written: TextFormat, columns: pa.Schema | None) -> tuple[int, str]:
    """Return the first row without which the rows before it can be parsed: its line, counted from 0, and its text."""
    ends = [0, *row_ends(data, written).tolist()]
    ends += [len(data)] * (ends[-1] < len(data))
    good, bad = 0, len(ends) - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _table(data[: ends[middle]], written, columns)
            good = middle
        except pa.ArrowException:
            bad = middle
    shown = data[ends[good] : min(ends[bad], ends[good] + _SHOWN)]
    return data.count(b"\n", 0, ends[good]), shown.rstrip(b"\r\n").decode(errors="replace")


def _typed(rows: pa.Table, columns: pa.Schema, where: str) -> pa.Table:
    """Return rows of a text. A column without values has the type that the ledger or a later text gives it."""
    typed = typed_columns(rows.schema, columns)
    fit = ColumnFit(typed)
    return pa.Table.from_batches([fit.fit(batch, where) for batch in rows.to_batches()], typed)


def _like(rows: pa.Table, first: pa.Table, where: str) -> pa.Table:
    """Return rows with their columns in the order of `first`. Raises Refused if the columns differ."""
    if sorted(rows.column_names) != sorted(first.column_names):
        raise Refused(
            f"{where} has the columns {', '.join(rows.column_names)}, "
            f"the text before it has {', '.join(first.column_names)}",
            hint="Append texts with different columns in separate calls",
        )
    return rows.select(first.column_names)


def _csv(source: pa.BufferReader, block_bytes: int, columns: pa.Schema | None) -> pa.Table:
    types = {field.name: field.type for field in columns or () if is_typed(field.type)}
    convert = pyarrow.csv.ConvertOptions(
        column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    read = pyarrow.csv.ReadOptions(block_size=block_bytes)
    return pyarrow.csv.read_csv(source, read_options=read, parse_options=parse, convert_options=convert)


def _json(source: pa.BufferReader, block_bytes: int, columns: pa.Schema | None) -> pa.Table:
    known = columns or pa.schema([])
    # Arrow's parser cannot read dates, so they are read as texts and then cast.
    typed = [field for field in known if is_typed(field.type)]
    texts = [field.with_type(pa.string()) if pa.types.is_date(field.type) else field for field in typed]
    parse = pyarrow.json.ParseOptions(explicit_schema=pa.schema(texts), newlines_in_values=False)
    rows = pyarrow.json.read_json(source, pyarrow.json.ReadOptions(block_size=block_bytes), parse)
    known = typed_columns(known, rows.schema)
    if beyond := fields_beyond(rows.schema, known):  # Arrow's cast would leave them out
        raise pa.ArrowInvalid(f"the ledger has no field {beyond[0].name!r} ({beyond[0].type}): leave it out")
    return rows.cast(
        pa.schema([known.field(field.name) if field.name in known.names else field for field in rows.schema])
    )


def messages_of(rows: pa.Table, columns: KeyedColumns, where: str) -> list[RowMessage]:
    """Return the messages of rows. Raises Refused for other columns, and for properties that are not texts."""
    known = [VALUE, *filter(None, (columns.key, columns.properties))]
    if sorted(rows.column_names) != sorted(known):
        raise Refused(
            f"{where} has the columns {', '.join(rows.column_names)}, expected {', '.join(known)}",
            hint=f"A message has its payload in the column {VALUE!r}",
        )
    values, keys = rows.column(VALUE).to_pylist(), _texts(rows, columns.key)
    return [
        RowMessage(value, key, properties)
        for value, key, properties in zip(values, keys, _properties(rows, columns.properties, where), strict=True)
    ]


def _texts(rows: pa.Table, name: str) -> list[str | None]:
    return rows.column(name).to_pylist() if name else [None] * rows.num_rows


def _properties(rows: pa.Table, name: str, where: str) -> Iterator[dict[str, str]]:
    values: Iterable[object] = rows.column(name).to_pylist() if name else [None] * rows.num_rows
    for number, value in enumerate(values):
        found = _object(value) if isinstance(value, str) else value
        if found is None:
            yield {}
            continue
        properties = {key: text for key, text in found.items() if text is not None} if isinstance(found, dict) else None
        if properties is None or not all(isinstance(text, str) for text in properties.values()):
            raise Refused(
                f"column {name!r} of row {number} of {where} is {str(value)[:_SHOWN]!r}, expected an object of texts",
                hint='Give a JSON object such as {"source": "web"}',
            )
        yield properties


def _object(text: str) -> object:
    try:
        return json.loads(text)
    except JSON_FAULTS:
        return text
