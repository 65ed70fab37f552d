"""Columns of a published table, computed from the rows of a segment.

The page docs/concepts.md explains the words segment, log and incarnation.

    __position  __publishTime  __eventTime  __key  __topic  __incarnation  __messageProperties  [partitions]  rows …

Rules
- Position and times are the first columns. Reason: Delta has statistics of the first columns only. By these statistics
  a query over a range of positions or times skips files.
- New columns of the ledger are added at the end. New fields of structs are added to the table's structs.
- `__incarnation` distinguishes the rows of a log from the rows of a deleted log with the same name.
- The publish date is in UTC, independent of the session's time zone.
- A partition column of times needs a session in UTC.
- A column of a type that Delta does not support is refused before any write. The error names the column.
- A column that was always null has no type yet. The table gets the column with the first value. A column whose elements
  or fields have no type yet is refused, because the table would not have its lists or structs.
- A row that cannot be decoded has a *rescue text*: JSON with reason, position and payload (option `rescuedDataColumn`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ledger.connector.publish.segments import INCARNATION, PUBLISHED_METADATA, RESCUED
from pyspark_ledger.connector.schema import nullable_type
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, PROVENANCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

PUBLISH_DATE = "__publishDate"
_DATE = "date_from_unix_date(cast(unix_micros(__publishTime) div 86400000000 as int))"
_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})
_UNSUPPORTED_TYPES = frozenset(
    {"VariantType", "DayTimeIntervalType", "YearMonthIntervalType", "CalendarIntervalType", "TimeType"}
)
_NO_TYPE = "NullType"


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """Partition column. It is a column of the rows, or an SQL expression computes it."""

    name: str
    expression: str = ""

    @classmethod
    def parse(cls, text: str) -> PartitionColumn:
        """Parse `NAME` or `NAME=EXPRESSION`. `__publishDate` needs no expression. Raises Refused."""
        name, _, expression = (part.strip() for part in text.partition("="))
        if not name or ("=" in text and not expression):
            raise Refused(
                f"{text!r} is no partition column", hint="Give NAME, or NAME=EXPRESSION with an SQL expression"
            )
        return cls(name, _DATE if name == PUBLISH_DATE and not expression else expression)


BY_DATE = (PartitionColumn.parse(PUBLISH_DATE),)


def computed_columns(
    wanted: Sequence[PartitionColumn], partitioned_by: Sequence[str], columns: Sequence[str]
) -> tuple[PartitionColumn, ...]:
    """Return the columns that a write to an existing table must compute.

    The first columns are the table's partition columns. Then follow other columns of the table, if `wanted` has an
    expression for them. A partition column without an expression must be a column of the rows.
    """
    expressions = {column.name: column for column in (*BY_DATE, *wanted) if column.expression}
    extra = [column for column in expressions.values() if column.name in columns and column.name not in partitioned_by]
    return (*(expressions.get(name, PartitionColumn(name)) for name in partitioned_by), *extra)


def table_rows(frame: DataFrame, partitions: Sequence[PartitionColumn], incarnation: str) -> DataFrame:
    """Return the decoded rows with all columns in the table's order.

    Raises Refused for a wrong partition column, and for a type that Delta does not support.
    """
    from pyspark.sql import functions as f

    if RESCUED in frame.columns:
        frame = frame.where(_reason(frame).isNull())
    rows = [
        field.name
        for field in frame.schema
        if not is_metadata_column(field.name) and type(field.dataType).__name__ != _NO_TYPE
    ]
    computed = [column for column in partitions if column.expression]
    _require_partitions(partitions, [*rows, *PUBLISHED_METADATA, INCARNATION])
    require_types(frame.schema, rows)
    columns = [
        *_provenance_columns(incarnation),
        *(f.expr(column.expression).alias(column.name) for column in computed),
        *(f.col("`" + name.replace("`", "``") + "`") for name in rows),
    ]
    found = frame.select(*columns)
    _require_exact_times(found, partitions)
    return found


def dead_letters(frame: DataFrame, incarnation: str) -> DataFrame:
    """Return position, reason, payload and rescue text of each undecodable row, for the dead-letter table."""
    from pyspark.sql import functions as f

    text = f.col(RESCUED)
    return frame.where(_reason(frame).isNotNull()).select(
        *_provenance_columns(incarnation),
        f.expr(_DATE).alias(PUBLISH_DATE),
        _reason(frame).alias("reason"),
        f.unbase64(f.get_json_object(text, "$.payload")).alias("payload"),
        text.alias("rescued"),
    )


def _provenance_columns(incarnation: str) -> list[Column]:
    from pyspark.sql import functions as f

    columns = [f.col(name) for name in PUBLISHED_METADATA]
    columns.insert(PUBLISHED_METADATA.index("__topic") + 1, f.lit(incarnation).alias(INCARNATION))
    return columns


def _reason(frame: DataFrame) -> Column:
    """Return the column with the reason why a row could not be decoded. It is null for decoded rows.

    A decoded row may also have a rescue text: it has the values of columns that were added after the read was planned.
    """
    from pyspark.sql import functions as f

    return f.get_json_object(frame[RESCUED], "$._reason")


def is_metadata_column(name: str) -> bool:
    """Return whether a column is metadata and not part of the rows."""
    return name in {RESCUED, INCARNATION} or name in METADATA.names or name in PROVENANCE.names


def _require_partitions(partitions: Sequence[PartitionColumn], columns: Sequence[str]) -> None:
    for column in partitions:
        if not column.expression and column.name not in columns:
            raise Refused(
                f"partition column {column.name!r} is none of {', '.join(columns)}",
                hint=f"Give one of these columns, {PUBLISH_DATE}, or NAME=EXPRESSION. For an existing table, give the "
                "expression with which the table was created",
            )
        if column.expression and column.name in columns:
            raise Refused(
                f"partition column {column.name!r} is computed by {column.expression!r}, but the rows have a column "
                "of this name",
                hint="Rename the partition column",
            )


def _require_exact_times(rows: DataFrame, partitions: Sequence[PartitionColumn]) -> None:
    """Raise Refused for a partition column of times in a session whose zone is not UTC.

    Reason: Spark writes the values of partition columns as local times. At the end of summer time, two hours have the
    same local times, so rows of the second hour would get times of the first.
    """
    setting = "spark.sql.session.timeZone"
    for column in partitions:
        if rows.schema[column.name].dataType.typeName() == "timestamp":
            zone = rows.sparkSession.conf.get(setting)
            if zone not in _UTC_NAMES:
                raise Refused(
                    f"partition column {column.name!r} has times, which Spark writes as local times, and {setting} is "
                    f"{zone}: times of the hour that summer time repeats would change",
                    hint=f"Set {setting} to UTC, or partition by a date",
                )


def require_types_of_table(table_schema: StructType, rows: StructType, table: str) -> None:
    """Raise Refused if a column has another type in the table, for example because the ledger's column was widened.

    Structs may have other fields: the commit adds the fields that the table lacks, and a field that the rows lack is
    null.
    """
    for field in rows:
        if field.name in table_schema.names and not _same_but_for_fields(
            nullable_type(table_schema[field.name].dataType), nullable_type(field.dataType)
        ):
            raise Refused(
                f"column {field.name!r} of the ledger is {field.dataType.simpleString()}, {table} has "
                f"{table_schema[field.name].dataType.simpleString()}: nothing was published",
                hint="Publish to another table, because a column of a table is not widened",
            )


def _same_but_for_fields(one: DataType, other: DataType) -> bool:
    """Return whether two types are equal, apart from fields that only one of two structs has. At every depth."""
    if type(one) is not type(other):
        return False
    own, others = _inner_types(one), _inner_types(other)
    if not own or not others:
        return one == other
    return all(_same_but_for_fields(own[name], others[name]) for name in own.keys() & others.keys())


def require_types(schema: StructType, rows: Sequence[str]) -> None:
    """Raise Refused for the first of these columns whose type Delta does not support."""
    for name in rows:
        kind, apart = schema[name].dataType, "name the columns to publish with option 'columns', without this column"
        if _contains_type(kind, _UNSUPPORTED_TYPES):
            raise Refused(
                f"column {name!r} is {kind.simpleString()}, which is not published to Delta tables",
                hint=apart.capitalize(),
            )
        if type(kind).__name__ != _NO_TYPE and _contains_type(kind, frozenset({_NO_TYPE})):
            raise Refused(
                f"column {name!r} is {kind.simpleString()}: a part of it was always null, so it has no type yet",
                hint=f"Publish after a row has a value there, or {apart}",
            )


def _contains_type(kind: DataType, names: frozenset[str]) -> bool:
    """Return whether a type has one of `names`, or contains such a type at any depth."""
    return type(kind).__name__ in names or any(_contains_type(part, names) for part in _inner_types(kind).values())


def _inner_types(kind: DataType) -> dict[str, DataType]:
    """Return the types of elements, of keys and values, or of fields by name. Returns nothing for other types."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return {"element": kind.elementType}
    if isinstance(kind, MapType):
        return {"key": kind.keyType, "value": kind.valueType}
    return {field.name: field.dataType for field in kind.fields} if isinstance(kind, StructType) else {}
