"""Columns as Spark and Arrow types: columns of a ledger, metadata columns, and columns that a write adds.

Rules
- A ledger's columns are registered as an Arrow schema, all nullable, by the first write.
- New columns follow the existing columns. The type of a column only becomes wider (`ledger.message.columns`). A column
  is never removed.
- Spark requires that a reader's Arrow schema equals `to_arrow_schema(schema, timezone="UTC")` exactly. Only
  `arrow_schema` calls that function.
- A ledger without registered columns contains messages of a Pulsar client, and has one column, `value binary`.
  Exception: if the schema of the payloads is known, it has the columns of this schema (`connector.rows.shape`).
- If Arrow, Spark or the ledger cannot store a type, the error names the column.
- A write must have the columns of its ledger, or narrower columns, which are cast. With `mergeSchema` it may add and
  widen columns, and fields of structs. Columns and fields are matched by name at every depth.
- A column that was always null has no type. The first write with a type gives it this type, without an option.
- A write that cannot succeed is refused before it registers columns or stages rows.
- If two writers add columns at the same time, the second writer adds its columns after the columns of the first writer.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ledger.connector.cast_hint import cast_hint, fields_hint, ordered_like
from pyspark_ledger.ledger.client.schemas import require_columns_registered
from pyspark_ledger.ledger.errors import Outdated, Refused, Unsupported
from pyspark_ledger.ledger.message.columns import (
    common_type,
    require_columns,
    require_fields,
    schema_bytes,
    schema_from_bytes,
    typed_columns,
    widens,
)
from pyspark_ledger.ledger.message.struct_fields import lacking_fields
from pyspark_ledger.ledger.protocol.actions import RegisterSchema, SchemaVersion
from pyspark_ledger.ledger.protocol.request import Ask
from pyspark_ledger.ledger.rows.metadata_columns import METADATA

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType


# Column with the number of earlier deliveries of a row, in ack mode `explicit`. It is always the last column.
REDELIVERY_COUNT = pa.field("__redeliveryCount", pa.int32())
# Names that no column of a ledger may have, in any case.
_RESERVED_NAMES = {name.lower(): name for name in (*METADATA.names, "__ledger")}
# Types that no ledger stores. Arrow can store some of them, but only Spark can interpret the stored values.
_UNSUPPORTED_TYPES = frozenset({"CalendarIntervalType", "YearMonthIntervalType", "GeometryType", "GeographyType"})
_PLAN_AGAIN = "Call load() again: a DataFrame keeps the columns of its load()"


def spark_schema(columns: pa.Schema, ledger: str) -> StructType:
    """Return the Spark schema of Arrow columns, all nullable. Raises Unsupported for a column without a Spark type."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = []
    for field in columns:
        try:
            kind = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        except (PySparkException, TypeError, ValueError) as wrong:
            raise Unsupported(
                f"column {field.name!r} of ledger {ledger!r} is {field.type}, and Spark has no such type",
                hint="Read it without Spark, through pyspark_ledger.connect()",
            ) from wrong
        fields.append(StructField(field.name, nullable_type(kind), nullable=True))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema that Spark expects of a reader of these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.0 and 4.1 do not have the argument `timezone`. Their timestamps are in UTC by default.
    arguments: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **arguments)


def require_same_schema(user_schema: StructType, own: StructType, ledger: str, row_columns: int) -> None:
    """Raise Outdated if Spark's schema for a read differs from the ledger's.

    It is the schema of `.schema()`, or of a DataFrame that was planned before the columns changed. The first
    `row_columns` columns, which are columns of rows, may have wider types.
    """
    for position, field in enumerate(own):
        if position >= len(user_schema) or user_schema[position].name != field.name:
            found = f"{user_schema[position].name!r}" if position < len(user_schema) else "nothing"
            raise Outdated(
                f"the read was planned with {found} where ledger {ledger!r} has column {field.name!r}",
                hint=_PLAN_AGAIN,
            )
        kind = nullable_type(user_schema[position].dataType)
        own_type, given_type = arrow_type(field.dataType), arrow_type(kind)
        may_widen = position < row_columns and widens(own_type, given_type)
        may_widen = may_widen and not lacking_fields(own_type, given_type, field.name)
        if kind != field.dataType and not may_widen:
            raise Outdated(
                f"column {field.name!r} of ledger {ledger!r} is {field.dataType.simpleString()}, "
                f"the read was planned with {user_schema[position].dataType.simpleString()}",
                hint=_PLAN_AGAIN,
            )
    if len(user_schema) > len(own):
        raise Outdated(
            f"the read was planned with column {user_schema[len(own)].name!r}, which ledger {ledger!r} does not have",
            hint=_PLAN_AGAIN,
        )


def columns_to_write(schema: StructType, ledger: str) -> pa.Schema:
    """Return the columns to register for a Spark schema. Raises Refused for a type that cannot be stored."""
    if not len(schema):
        raise Refused(f"rows without columns cannot be written to ledger {ledger!r}", hint="Select at least one column")
    spelled: dict[str, str] = {}
    for field in schema:
        reserved = _RESERVED_NAMES.get(field.name.lower())
        if reserved is not None:
            raise Refused(
                f"column {field.name!r} of a write to ledger {ledger!r} has the name of a metadata column",
                hint=f"Rename or drop the column: Spark ignores case, and {reserved!r} is reserved",
            )
        if spelled.setdefault(field.name.lower(), field.name) != field.name or schema.names.count(field.name) > 1:
            raise Refused(
                f"columns {spelled[field.name.lower()]!r} and {field.name!r} of ledger {ledger!r} have the same name",
                hint="Give each column its own name; Spark ignores case",
            )
        _require_supported(field, ledger)
    return arrow_schema(nullable_type(schema))


def require_writable(schema: StructType, registered: pa.Schema, ledger: str) -> None:
    """Raise Refused if the columns of a write are not the ledger's columns. Their types may be narrower.

    A column of the ledger without a type accepts every type.
    """
    columns = columns_to_write(_in_order(schema, spark_schema(registered, ledger)), ledger)
    registered = typed_columns(registered, columns)
    own = spark_schema(registered, ledger)
    require_columns(columns, registered, ledger, _field_advice(schema, own))
    for field in schema:
        written, kept = columns.field(field.name).type, registered.field(field.name).type
        if not widens(written, kept):
            _require_same_type(field, own[field.name].dataType, ledger, may_merge=widens(kept, written))


def merged_columns(schema: StructType, registered: pa.Schema, ledger: str) -> pa.Schema:
    """Return the ledger's columns, widened for a Spark schema, followed by the columns that the schema adds.

    A struct gets the fields that the schema adds, too. Raises Refused with the column and both types if no type has the
    values of both.
    """
    own = spark_schema(registered, ledger)
    columns = columns_to_write(_in_order(schema, own), ledger)
    spelling = {name.lower(): name for name in registered.names}
    for field in schema:
        spelled = spelling.get(field.name.lower())
        if spelled is not None and spelled != field.name:
            raise Refused(
                f"column {field.name!r} cannot be added to ledger {ledger!r}, which has {spelled!r}",
                hint=f"Spark ignores case: rename the column to {spelled!r}",
            )
    merged = []
    for kept in registered:
        kind = kept.type
        if kept.name in columns.names:
            kind = common_type(kept.type, columns.field(kept.name).type)
            _require_spelling(kept, columns.field(kept.name), ledger)
            if kind is None:
                require_fields(pa.schema([columns.field(kept.name)]), registered, ledger, _field_advice(schema, own))
                _require_same_type(schema[kept.name], own[kept.name].dataType, ledger)
        merged.append(kept.with_type(kind))
    return pa.schema([*merged, *(field for field in columns if field.name not in registered.names)])


def _require_spelling(kept: pa.Field, given: pa.Field, ledger: str) -> None:
    """Raise Refused if a new field of a struct differs only in case from a field of the ledger that it lacks."""
    lacking = {field.name.lower(): field.name for field in lacking_fields(given.type, kept.type, kept.name)}
    for field in lacking_fields(kept.type, given.type, kept.name):
        if field.name.lower() in lacking:
            raise Refused(
                f"field {field.name!r} cannot be added to ledger {ledger!r}, which has {lacking[field.name.lower()]!r}",
                hint="Spark ignores case: rename the field",
            )


def _in_order(schema: StructType, own: StructType) -> StructType:
    """Return the columns of a write. Their structs have the fields in the order of the ledger's columns `own`."""
    from pyspark.sql.types import StructField, StructType

    kept = {field.name: field.dataType for field in own}
    return StructType(
        [
            StructField(field.name, ordered_like(nullable_type(field.dataType), kept.get(field.name)), nullable=True)
            for field in schema
        ]
    )


def _field_advice(schema: StructType, own: StructType) -> Callable[[str], str]:
    def advise(column: str) -> str:
        found, kept = nullable_type(schema[column].dataType), own[column].dataType
        return fields_hint(column, found, kept, merges=common_type(arrow_type(kept), arrow_type(found)) is not None)

    return advise


def _require_same_type(field: StructField, expected: DataType, ledger: str, *, may_merge: bool = False) -> None:
    found = nullable_type(field.dataType)
    if ordered_like(found, expected) == expected:
        return
    convert = f"Convert the column to {expected.simpleString()}, or keep it as a new one: rename it and set mergeSchema"
    hint = cast_hint(field.name, found, expected) or ("" if may_merge else convert)
    if may_merge:
        hint = f"{hint}; or set mergeSchema, which widens the column" if hint else "Set mergeSchema to widen the column"
    raise Refused(
        f"column {field.name!r} of ledger {ledger!r} is {expected.simpleString()}, "
        f"but {found.simpleString()} in the rows to write",
        hint=hint,
    )


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the exact Arrow type that Spark expects of a reader of this type."""
    from pyspark.sql.types import StructType

    return arrow_schema(StructType().add("c", kind)).field(0).type


def _require_supported(field: StructField, ledger: str) -> None:
    from pyspark.sql.types import StringType, StructType

    unsupported = _unsupported(field.name, field.dataType)
    if unsupported is None:
        return
    hint: str | None = "Give each field of the struct a name of its own"
    if not isinstance(unsupported.dataType, StructType):
        stored = nullable_type(field.dataType, lambda kind: kind if _is_stored(kind) else StringType())
        hint = cast_hint(field.name, nullable_type(field.dataType), stored)
    raise Refused(
        f"column {unsupported.name!r} is {unsupported.dataType.simpleString()}, which ledger {ledger!r} cannot store",
        hint=hint or "Convert it to another type, such as string, or leave it out",
    )


def _unsupported(path: str, kind: DataType) -> StructField | None:
    """Return the first type inside `kind` that no ledger stores, named by its path. None if there is none."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    inner: list[tuple[str, DataType]] = []
    if isinstance(kind, ArrayType):
        inner = [(path, kind.elementType)]
    elif isinstance(kind, MapType):
        inner = [(path, kind.keyType), (path, kind.valueType)]
    elif isinstance(kind, StructType) and len(set(kind.names)) == len(kind.names):
        inner = [(f"{path}.{field.name}", field.dataType) for field in kind]
    elif isinstance(kind, StructType) or not _is_stored(kind):
        return StructField(path, kind)
    found = (_unsupported(*pair) for pair in inner)
    return next((field for field in found if field is not None), None)


def _is_stored(kind: DataType) -> bool:
    """Return whether a ledger stores a type that contains no other types."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        arrow_schema(StructType().add("c", nullable_type(kind)))
    except (PySparkException, TypeError):
        return False
    return type(kind).__name__ not in _UNSUPPORTED_TYPES


def nullable_type(kind: Any, leaf: Callable[[Any], Any] = lambda kind: kind) -> Any:
    """Return the type with null allowed at every level, without collations and user-defined types.

    `leaf` may replace each type that contains no other types. Reason for null: Spark derives nullability from the plan
    of a query. Two queries with the same rows must both be able to write them.
    """
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType, UserDefinedType

    if isinstance(kind, UserDefinedType):
        return nullable_type(kind.sqlType(), leaf)
    if type(kind) is StringType:
        return StringType()
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable_type(field.dataType, leaf)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable_type(kind.elementType, leaf))
    if isinstance(kind, MapType):
        return MapType(nullable_type(kind.keyType, leaf), nullable_type(kind.valueType, leaf))
    return leaf(kind)


_ROUNDS_MAX = 100


def resolve_columns(ask: Ask, schema: StructType, current: SchemaVersion, ledger: str, *, merge: bool) -> SchemaVersion:
    """Return the ledger's columns for a write of a Spark schema. With `merge`, first register new and wider columns.

    A column without a type gets the type of the write, also without `merge`. If two writers give it different types at
    the same time, the second one is refused.

    `current` has the columns that the ledger has before the call.
    """
    require_columns_registered(current, ledger)
    for _ in range(_ROUNDS_MAX):
        registered = schema_from_bytes(current.arrow_schema, ledger)
        if merge:
            columns = merged_columns(schema, registered, ledger)
        else:
            require_writable(schema, registered, ledger)
            columns = typed_columns(registered, columns_to_write(schema, ledger))
        if columns.equals(registered):
            return current
        current = ask(RegisterSchema(ledger, schema_bytes(columns), current.version))
    raise AssertionError(f"{_ROUNDS_MAX} other writers added columns to {ledger} meanwhile")
