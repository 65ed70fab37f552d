"""Columns as Spark's and Arrow's types: those of a ledger, the metadata columns, and those that a write adds.

Rules
- A ledger's columns are registered as an Arrow schema, all nullable, by the first write.
- Columns only grow, behind the existing ones. A type never changes, and a column is never removed.
- A reader's schema must equal `to_arrow_schema(schema, timezone="UTC")` exactly. It is made in one place.
- A ledger without registered columns holds messages as a Pulsar client wrote them: one column, `value binary`. Except
  when the schema of their payloads is known (`connector.rows.shape`).
- A type that Arrow, Spark or the log cannot carry is refused naming the column.
- A write has the columns of its ledger. With `mergeSchema` it may add columns.
- Rows that cannot be written are refused before anything is registered or staged.
- If two writers add columns at once, each finds the other's columns and adds its own behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ledger.ledger.api.schemas import require_columns_registered
from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.message.columns import require_columns, schema_bytes, schema_from_bytes
from pyspark_ledger.ledger.protocol.actions import RegisterSchema, SchemaVersion

if TYPE_CHECKING:
    import msgspec
    from pyspark.sql.types import DataType, StructType


RAW = pa.schema([pa.field("value", pa.binary())])
METADATA = pa.schema(
    [
        pa.field("__key", pa.string()),
        pa.field("__topic", pa.string()),
        pa.field("__messageId", pa.binary()),
        pa.field("__publishTime", pa.timestamp("us", tz="UTC")),
        pa.field("__eventTime", pa.timestamp("us", tz="UTC")),
        pa.field("__messageProperties", pa.map_(pa.string(), pa.string())),
        pa.field(
            "__position",
            pa.struct(
                [
                    pa.field("ledgerId", pa.int64()),
                    pa.field("entryId", pa.int64()),
                    pa.field("batchIndex", pa.int32()),
                ]
            ),
        ),
    ]
)
# How often a row was delivered before, where rows are acknowledged one by one; the last column of all.
REDELIVERY_COUNT = pa.field("__redeliveryCount", pa.int32())
# Metadata columns that a row is written with; the rest of METADATA follows from the row's place.
SAID_BY_ROWS = ("__key", "__eventTime", "__messageProperties")
# Names that no column of a ledger may have, in any case.
_BESIDE_ROWS = {name.lower(): name for name in (*METADATA.names, "__ledger")}
# Arrow could carry some of these; a reader other than this Spark could not tell what they are.
_NOT_CARRIED = frozenset(
    {"VariantType", "CalendarIntervalType", "YearMonthIntervalType", "GeometryType", "GeographyType"}
)


def spark_schema(columns: pa.Schema, ledger: str) -> StructType:
    """The Spark schema of Arrow columns, all nullable; Unsupported names the column that has none."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = []
    for field in columns:
        try:
            kind = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        except (PySparkException, TypeError, ValueError) as wrong:
            raise Unsupported(
                f"column {field.name!r} of ledger {ledger!r} is {field.type}, which Spark has no type for",
                hint="Read it without Spark, through pyspark_ledger.connect()",
            ) from wrong
        fields.append(StructField(field.name, nullable_type(kind), nullable=True))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a reader of these columns, to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.0 and 4.1 have no argument for it: there a timestamp is in UTC by default.
    named: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **named)


def require_same_schema(given: StructType, own: StructType, ledger: str) -> None:
    """Refuse a schema handed to `.schema()` that is not the ledger's own; the first difference is named."""
    for position, field in enumerate(own):
        if position >= len(given) or given[position].name != field.name:
            found = f"{given[position].name!r}" if position < len(given) else "nothing"
            raise Refused(
                f"the schema given for ledger {ledger!r} has {found} where the ledger has column {field.name!r}",
                hint="Leave .schema() out: the ledger knows its columns",
            )
        if nullable_type(given[position].dataType) != field.dataType:
            raise Refused(
                f"the schema given for ledger {ledger!r} says column {field.name!r} is "
                f"{given[position].dataType.simpleString()}, the ledger says {field.dataType.simpleString()}",
                hint="Leave .schema() out and cast afterwards",
            )
    if len(given) > len(own):
        raise Refused(
            f"the schema given for ledger {ledger!r} has column {given[len(own)].name!r}, which the ledger has not",
            hint="Leave .schema() out: the ledger knows its columns",
        )


def columns_to_write(schema: StructType, ledger: str) -> pa.Schema:
    """The columns to register for rows of this Spark schema; a type that cannot be kept is refused by column."""
    if not len(schema):
        raise Refused(f"rows without columns cannot be written to ledger {ledger!r}", hint="Select at least one column")
    seen: dict[str, str] = {}
    for field in schema:
        named = _BESIDE_ROWS.get(field.name.lower())
        if named is not None:
            raise Refused(
                f"column {field.name!r} of what is written to ledger {ledger!r} has the name of a metadata column",
                hint=f"Rename it or drop it: Spark ignores case, and {named!r} is not a column of rows",
            )
        if seen.setdefault(field.name.lower(), field.name) != field.name or schema.names.count(field.name) > 1:
            raise Refused(
                f"columns {seen[field.name.lower()]!r} and {field.name!r} of ledger {ledger!r} cannot be told apart",
                hint="Give each column its own name; Spark ignores case",
            )
        _require_carried(field.name, field.dataType, ledger)
    return arrow_schema(nullable_type(schema))


def require_writable(given: StructType, registered: pa.Schema, ledger: str) -> None:
    """Refuse to write columns that are not those of the ledger, by name; types must be the same to Spark."""
    columns = columns_to_write(given, ledger)
    require_columns(columns, registered, ledger)
    own = spark_schema(registered, ledger)
    for field in given:
        _require_same_type(field.name, own[field.name].dataType, field.dataType, ledger)


def grown_columns(given: StructType, registered: pa.Schema, ledger: str) -> pa.Schema:
    """The columns of a ledger with those that rows of this schema add, behind its own; its own, where they add none.

    Refused, naming the column and both types, when a column would change.
    """
    columns = columns_to_write(given, ledger)
    own = spark_schema(registered, ledger)
    spelled = {name.lower(): name for name in registered.names}
    for field in given:
        known = spelled.get(field.name.lower())
        if known is not None and known != field.name:
            raise Refused(
                f"column {field.name!r} cannot be added to ledger {ledger!r}, which has {known!r}",
                hint="Spark ignores case: rename it to what the ledger has",
            )
        if known is not None:
            _require_same_type(field.name, own[field.name].dataType, field.dataType, ledger)
    return pa.schema([*registered, *(field for field in columns if field.name not in registered.names)])


def _require_same_type(column: str, wanted: DataType, given: DataType, ledger: str) -> None:
    found = nullable_type(given)
    if found != wanted:
        raise Refused(
            f"column {column!r} of ledger {ledger!r} is {wanted.simpleString()}, "
            f"what is written is {found.simpleString()}",
            hint=f"Cast it: col({column!r}).cast({wanted.simpleString()!r})",
        )


def _require_carried(column: str, kind: DataType, ledger: str) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import ArrayType, MapType, StructType

    if type(kind).__name__ in _NOT_CARRIED:
        raise Refused(
            f"column {column!r} is {kind.simpleString()}, which ledger {ledger!r} cannot keep",
            hint="Cast it to a type with values of its own, such as string",
        )
    inner = {ArrayType: ("elementType",), MapType: ("keyType", "valueType")}.get(type(kind), ())
    for name in inner:
        _require_carried(column, getattr(kind, name), ledger)
    if isinstance(kind, StructType):
        for field in kind:
            _require_carried(f"{column}.{field.name}", field.dataType, ledger)
        return
    try:
        arrow_schema(StructType().add("c", nullable_type(kind)))
    except (PySparkException, TypeError) as wrong:
        raise Refused(
            f"column {column!r} is {kind.simpleString()}, which Arrow cannot carry into ledger {ledger!r}",
            hint="Cast it, for example to string",
        ) from wrong


def nullable_type(kind: Any) -> Any:
    """The same type with null allowed everywhere inside: what a log keeps is not bound by one query's plan.

    Nor does it keep a collation, or that a type is a user's own: else what was written once could not be written again.
    """
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType, UserDefinedType

    if isinstance(kind, UserDefinedType):
        return nullable_type(kind.sqlType())
    if type(kind) is StringType:
        return StringType()
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable_type(field.dataType), nullable=True) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable_type(kind.elementType), containsNull=True)
    if isinstance(kind, MapType):
        return MapType(nullable_type(kind.keyType), nullable_type(kind.valueType), valueContainsNull=True)
    return kind


Ask = Callable[[str, "msgspec.Struct"], Any]
"""A call of the broker's protocol: an action and its request."""
_ROUNDS_MAX = 100


def settled_columns(ask: Ask, given: StructType, found: SchemaVersion, ledger: str, *, merge: bool) -> SchemaVersion:
    """The registered columns to write rows of this Spark schema with; `found` are those that the ledger has."""
    require_columns_registered(found, ledger)
    if not merge:
        require_writable(given, schema_from_bytes(found.arrow_schema), ledger)
        return found
    for _ in range(_ROUNDS_MAX):
        registered = schema_from_bytes(found.arrow_schema)
        columns = grown_columns(given, registered, ledger)
        if columns.equals(registered):
            return found
        found = ask("schema.register", RegisterSchema(ledger, schema_bytes(columns), found.version))
    raise AssertionError(f"{_ROUNDS_MAX} others added columns to {ledger} meanwhile")
