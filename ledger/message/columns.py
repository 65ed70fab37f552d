"""Conversion of record batches to another schema: columns are matched by name.

Rules
- A column that the batch lacks becomes null. A column that the schema lacks is left out.
- A column of another type is cast if no value is lost. Otherwise an error names the column and both types.
- The fields of a struct are matched by name too, at every depth. A writer's struct has exactly the ledger's fields.
- A column of the same type is not copied.

A type *widens* to another type if the other type has all of its values:

    narrow                      wide
    signed whole number         signed whole number with more bits
    float                       double
    date                        timestamp without a zone
    decimal(p, s)               decimal with as many digits before the point and behind it, or more
    list, struct                the same with wider elements or fields

Spark's Parquet reader and Delta also allow these changes. They also widen whole numbers to doubles or decimals, which
this module refuses.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as of

from pyspark_ledger.ledger.errors import Corrupt, Refused

_NAMED_MAX = 8


class ColumnFit:
    """Conversion of batches to `target`. Remembers the last schema, because schemas of one ledger rarely change."""

    def __init__(self, target: pa.Schema) -> None:
        self.target = target
        self._source: pa.Schema | None = None
        self._sources: list[int] = []
        self._same = False

    def fit(self, batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
        """Return the batch with exactly the target's columns. `where` names the batch in errors."""
        if self._source is None or not batch.schema.equals(self._source):
            self._plan(batch.schema, where)
        if self._same:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self.target)
        columns = [
            pa.nulls(batch.num_rows, field.type) if source < 0 else cast_column(batch.column(source), field, where)
            for source, field in zip(self._sources, self.target, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.target)

    def _plan(self, schema: pa.Schema, where: str) -> None:
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise Refused(f"{where} has more than one column {repeated[0]!r}", hint="Give each column its own name")
        self._source = schema
        self._sources = [schema.get_field_index(field.name) for field in self.target]
        self._same = list(schema.names) == list(self.target.names) and all(
            schema.field(i).type == field.type for i, field in enumerate(self.target)
        )


def cast_column(column: pa.Array, field: pa.Field, where: str) -> pa.Array:
    """Cast a column to the field's type. Raises Refused if a value would be lost or no cast exists."""
    if column.type == field.type:
        return column
    column = _ordered_like(column, field.type)
    try:
        cast = column.cast(field.type, safe=True)
        if widens(field.type, column.type):
            _require_same_values(cast.cast(column.type), column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
        raise Refused(
            f"column {field.name!r} of {where} is {column.type} and cannot become {field.type}: {wrong}",
            hint="Convert the column before you write it, or read with a schema that has its type",
        ) from wrong
    return cast


def _ordered_like(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column with the fields of its structs in the order of `kind`. A struct with other fields is kept.

    Arrow's own cast is not used: before version 26 it refuses another order, and since then it drops fields.
    """
    if of.is_struct(column.type) and of.is_struct(kind) and _same_names(column.type, kind):
        fields = [_ordered_like(column.field(field.name), field.type) for field in kind]
        named = [pa.field(field.name, values.type) for field, values in zip(kind, fields, strict=True)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(fields, fields=named, mask=mask)
    if _is_list(column.type) and of.is_list(kind) and not of.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_field))
    if not ((of.is_list(column.type) and of.is_list(kind)) or (of.is_map(column.type) and of.is_map(kind))):
        return column
    if of.is_list(kind):
        inner = _ordered_like(column.values, kind.value_type)
        outer: pa.DataType = pa.list_(pa.field(column.type.value_field.name, inner.type))
    else:
        pairs = [_ordered_like(column.keys, kind.key_type), _ordered_like(column.items, kind.item_type)]
        inner = pa.StructArray.from_arrays(pairs, fields=[
            pa.field("key", pairs[0].type, nullable=False), pa.field("value", pairs[1].type)
        ])  # fmt: skip
        outer = pa.map_(pairs[0].type, pairs[1].type)
    buffers = column.buffers()[:2]  # validity and offsets, which a slice shares with the whole column
    return pa.Array.from_buffers(outer, len(column), buffers, column.null_count, column.offset, [inner])


def _same_names(first: pa.StructType, second: pa.StructType) -> bool:
    names = [field.name for field in first]
    return len(set(names)) == len(names) and sorted(names) == sorted(field.name for field in second)


def _require_same_values(found: pa.Array, column: pa.Array) -> None:
    """Raise ArrowInvalid if a value changed. Arrow's safe casts round numbers and drop times of day."""
    import pyarrow.compute as pc  # imported here, because few processes narrow a column

    if of.is_floating(column.type):
        found, column = (pc.if_else(pc.is_nan(values), 0.0, values) for values in (found, column))
    if not found.equals(column):
        raise pa.ArrowInvalid("a value would be lost")


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether every value of the narrow type is a value of the wide type. Returns False for equal types."""
    if of.is_list(narrow) and of.is_list(wide):
        return widens(narrow.value_type, wide.value_type)
    if of.is_struct(narrow) and of.is_struct(wide):
        return narrow != wide and _fields_widen(narrow, wide)
    return _number_widens(narrow, wide) or (of.is_date32(narrow) and of.is_timestamp(wide) and wide.tz is None)


def _number_widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if of.is_signed_integer(narrow) and of.is_signed_integer(wide):
        return bool(narrow.bit_width < wide.bit_width)
    if of.is_decimal(narrow) and of.is_decimal(wide):
        whole_digits = narrow.precision - narrow.scale, wide.precision - wide.scale
        return bool(narrow != wide and narrow.scale <= wide.scale and whole_digits[0] <= whole_digits[1])
    return bool(of.is_float32(narrow) and of.is_float64(wide))


def _fields_widen(narrow: pa.StructType, wide: pa.StructType) -> bool:
    """Return whether two structs have the same fields in order, each with the same or a wider type."""
    if [field.name for field in narrow] != [field.name for field in wide]:
        return False
    return all(old.type == new.type or widens(old.type, new.type) for old, new in zip(narrow, wide, strict=True))


def schema_bytes(schema: pa.Schema) -> bytes:
    """Serialize a schema for registration: names, types and nullability, without metadata."""
    return bytes(schema.remove_metadata().serialize())


def schema_from_bytes(data: bytes, ledger: str = "") -> pa.Schema:
    """Parse the columns of a ledger. The inverse of `schema_bytes`. Raises Corrupt for bytes that are no Arrow schema.

    The broker registers no such bytes. But an earlier version of the broker did.
    """
    try:
        columns = pa.ipc.read_schema(pa.py_buffer(data))
        columns.names  # noqa: B018 — raises UnicodeDecodeError for a name that is no UTF-8
    except (pa.ArrowException, OSError, ValueError) as wrong:
        raise unreadable_schema(ledger, f"it has {len(data)} bytes that are no columns") from wrong
    return columns


def unreadable_schema(ledger: str, reason: str) -> Corrupt:
    """Return the error of a reader for the newest schema of a ledger."""
    return Corrupt(
        f"the newest schema of {f'ledger {ledger!r}' if ledger else 'a ledger'} is unreadable: {reason}",
        hint=f"Delete this version of the schema: ledger restore-schema {ledger or 'LEDGER'}",
    )


def require_columns(given: pa.Schema, registered: pa.Schema, ledger: str) -> None:
    """Raise Refused if a writer's columns, or the fields of its structs, differ from the ledger's."""
    _require_none(
        [field for field in registered if field.name not in given.names],
        [field for field in given if field.name not in registered.names],
        ledger,
        "Write all columns of the ledger, with null if there is no value, or write to another ledger. "
        "In Spark the option mergeSchema adds new columns",
    )
    require_fields(given, registered, ledger)


def require_fields(given: pa.Schema, registered: pa.Schema, ledger: str) -> None:
    """Raise Refused if a struct of a writer has other fields than the ledger's. Their order may differ."""
    _require_none(
        fields_beyond(registered, given),
        fields_beyond(given, registered),
        ledger,
        "Give each struct the ledger's fields, with null if there is no value, in any order (in Spark: withField, "
        "dropFields), or write to another ledger. No option adds fields to a struct",
    )


def fields_beyond(given: pa.Schema, known: pa.Schema) -> list[pa.Field]:
    """Return the fields of structs in `given` that the same columns of `known` lack. Each is named by its path."""
    common = [(known.field(field.name).type, field) for field in given if field.name in known.names]
    return [lacking for kind, field in common for lacking in _lacking(kind, field.type, field.name)]


def _lacking(kind: pa.DataType, wanted: pa.DataType, path: str) -> list[pa.Field]:
    """Return the fields of structs in `wanted` that `kind` lacks, at every depth. Each is named by its path."""
    if of.is_struct(kind) and of.is_struct(wanted):
        own = {field.name: field.type for field in kind}
        found = [field.with_name(f"{path}.{field.name}") for field in wanted if field.name not in own]
        for field in wanted:
            found += _lacking(own.get(field.name, field.type), field.type, f"{path}.{field.name}")
        return found
    if of.is_map(kind) and of.is_map(wanted):
        keys = _lacking(kind.key_type, wanted.key_type, f"{path}.key")
        return keys + _lacking(kind.item_type, wanted.item_type, f"{path}.value")
    if _is_list(kind) and _is_list(wanted):
        return _lacking(kind.value_type, wanted.value_type, f"{path}.element")
    return []


def _is_list(kind: pa.DataType) -> bool:
    return bool(of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind))


def _require_none(missing: list[pa.Field], extra: list[pa.Field], ledger: str, hint: str) -> None:
    differs = [
        f"{_named(fields)} {word}" for word, fields in (("missing", missing), ("not in the ledger", extra)) if fields
    ]
    if differs:
        raise Refused(
            f"the written columns do not match the columns of ledger {ledger!r}: {', and '.join(differs)}", hint=hint
        )


def _named(fields: list[pa.Field]) -> str:
    names = [f"{field.name!r} ({field.type})" for field in fields[:_NAMED_MAX]]
    return (
        f"column{'s'[: len(fields) - 1]} "
        + ", ".join(names)
        + (f" and {len(fields) - len(names)} more" if len(fields) > len(names) else "")
    )
