"""The rows of a segment as columns of a published table.

    __position  __publishTime  __eventTime  __key  __topic  __incarnation  __messageProperties  [partitions]  rows …

Rules
- What says where and when a row was stands first: Delta keeps statistics of the first columns, so a range of positions
  or times names its files. New columns of the ledger come behind all others.
- `__incarnation` tells the lives of a log apart: one that was deleted and made again states the same topic.
- The date is that of the publish time in UTC, whatever the session's zone.
- A type that Delta has not is refused by column, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ledger.connector.publish.segments import INCARNATION, PUBLISHED_METADATA, RESCUED
from pyspark_ledger.connector.rows.metadata_columns import PROVENANCE
from pyspark_ledger.connector.schema import METADATA
from pyspark_ledger.ledger.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

PUBLISH_DATE = "__publishDate"
_DATE = "date_from_unix_date(cast(unix_micros(__publishTime) div 86400000000 as int))"
_NOT_OF_DELTA = frozenset({"DayTimeIntervalType", "YearMonthIntervalType", "CalendarIntervalType", "TimeType"})
_NOT_WITHIN = frozenset({"NullType"})  # a column of its own becomes text


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """One partition column: a column of the rows, or one that is made by an expression of SQL."""

    name: str
    expression: str = ""

    @classmethod
    def parse(cls, text: str) -> PartitionColumn:
        """From `NAME` or `NAME=EXPRESSION`; the publish date is known by its name."""
        name, _, expression = (part.strip() for part in text.partition("="))
        if not name or ("=" in text and not expression):
            raise Refused(f"{text!r} is no partition column", hint="Give NAME, or NAME=EXPRESSION of SQL")
        return cls(name, _DATE if name == PUBLISH_DATE and not expression else expression)


BY_DATE = (PartitionColumn.parse(PUBLISH_DATE),)


def computed_columns(
    wanted: Sequence[PartitionColumn], partitioned_by: Sequence[str], columns: Sequence[str]
) -> tuple[PartitionColumn, ...]:
    """What is to be made of rows for a table that is there: what it is partitioned by, and what it has of the rest.

    A partition column that nobody says an expression for has to be one of the rows.
    """
    known = {one.name: one for one in (*BY_DATE, *wanted) if one.expression}
    beside = [one for one in known.values() if one.name in columns and one.name not in partitioned_by]
    return (*(known.get(name, PartitionColumn(name)) for name in partitioned_by), *beside)


def table_rows(frame: DataFrame, partitions: Sequence[PartitionColumn], incarnation: str) -> DataFrame:
    """What goes into the table: rows that could be decoded, with all columns in the table's order."""
    from pyspark.sql import functions as f

    if RESCUED in frame.columns:
        frame = frame.where(_reason(frame).isNull())
    rows = [name for name in frame.columns if not is_metadata_column(name)]
    made = [one for one in partitions if one.expression]
    _require_partitions(partitions, [*rows, *PUBLISHED_METADATA, INCARNATION])
    require_types(frame.schema, rows)
    columns = [
        *_beside(incarnation),
        *(f.expr(one.expression).alias(one.name) for one in made),
        *(_column(frame.schema, name) for name in rows),
    ]
    return frame.select(*columns)


def dead_letters(frame: DataFrame, incarnation: str) -> DataFrame:
    """What goes into the dead-letter table: where each undecodable row is, and what it was."""
    from pyspark.sql import functions as f

    text = f.col(RESCUED)
    return frame.where(_reason(frame).isNotNull()).select(
        *_beside(incarnation),
        f.expr(_DATE).alias(PUBLISH_DATE),
        _reason(frame).alias("reason"),
        f.unbase64(f.get_json_object(text, "$.payload")).alias("payload"),
        text.alias("rescued"),
    )


def _beside(incarnation: str) -> list[Column]:
    from pyspark.sql import functions as f

    columns = [f.col(name) for name in PUBLISHED_METADATA]
    columns.insert(PUBLISHED_METADATA.index("__topic") + 1, f.lit(incarnation).alias(INCARNATION))
    return columns


def _reason(frame: DataFrame) -> Column:
    """Why a row could not be decoded; null for one that was, also where it has columns that nobody asked for."""
    from pyspark.sql import functions as f

    return f.get_json_object(frame[RESCUED], "$._reason")


def _column(schema: StructType, name: str) -> Column:
    """A column; one that is null in all rows as text, for Delta keeps no column without a type."""
    from pyspark.sql import functions as f

    column = f.col("`" + name.replace("`", "``") + "`")
    return column.cast("string") if schema[name].dataType.typeName() == "void" else column


def is_metadata_column(name: str) -> bool:
    """Whether a column is no part of the rows themselves."""
    return name in {RESCUED, INCARNATION} or name in METADATA.names or name in PROVENANCE.names


def _require_partitions(partitions: Sequence[PartitionColumn], known: Sequence[str]) -> None:
    for one in partitions:
        if not one.expression and one.name not in known:
            raise Refused(
                f"partition column {one.name!r} is none of {', '.join(known)}",
                hint=f"Give one of them, {PUBLISH_DATE}, or NAME=EXPRESSION: of a table that is there, as when it was "
                "made",
            )
        if one.expression and one.name in known:
            raise Refused(
                f"partition column {one.name!r} is made by {one.expression!r}, and the rows have one of that name",
                hint="Give it another name",
            )


def require_types(schema: StructType, rows: Sequence[str]) -> None:
    """Refuse the first of these columns that Delta cannot hold."""
    for name in rows:
        kind = schema[name].dataType
        if _found_within(kind, _NOT_OF_DELTA) or (kind.typeName() != "void" and _found_within(kind, _NOT_WITHIN)):
            raise Refused(
                f"column {name!r} is {kind.simpleString()}, which no Delta table can hold",
                hint="Name the columns to publish by option 'columns', without it",
            )


def _found_within(kind: DataType, names: frozenset[str]) -> bool:
    """Whether a type is one of these, or has one of them anywhere in it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    inner: list[DataType] = []
    if isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    elif isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    return type(kind).__name__ in names or any(_found_within(one, names) for one in inner)
