"""Conversion of record batches to another schema: columns are matched by name.

Rules
- A column that the batch lacks becomes null. A column that the schema lacks is left out.
- A column of another type is cast if no value is lost. Otherwise an error names the column and both types.
- The fields of a struct are matched by name too (`struct_fields`). A field that the rows lack becomes null. A field
  that the schema lacks is an error, because a value would be lost.
- A column of the same type is not copied.

A type *widens* to another type if the other type has all of its values:

    narrow                      wide
    signed whole number         signed whole number with more bits
    float                       double
    date                        timestamp without a zone
    decimal(p, s)               decimal with as many digits before the point and behind it, or more
    null                        every type
    list, map                   the same with wider elements, keys or values
    struct                      the same with wider fields, and with more fields at the end

A column that was always null has the type null. It gets the type of the first value that a writer appends, without
any option, also inside lists, maps and structs (`typed_columns`). The same holds for a struct without fields, which is
what an empty mapping of Python or JSON gives. A reader that was planned before raises `Outdated` at
this value, because it has no place for the value.

Spark's Parquet reader and Delta also allow these changes. They also widen whole numbers to doubles or decimals, which
this module refuses.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as of

from pyspark_ledger.ledger.errors import Corrupt, Outdated, Refused
from pyspark_ledger.ledger.message.struct_fields import is_list, lacking_fields, match_fields

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
    try:
        matched = match_fields(column, field.type)
        if matched.type == field.type:
            return matched
        cast = matched.cast(field.type, safe=True)
        if widens(field.type, matched.type):
            _require_same_values(cast.cast(matched.type), matched)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
        if is_older(field.type, column.type):
            raise Outdated(
                f"column {field.name!r} of {where} is {column.type}, "
                f"but it was {field.type} when this read was planned",
                hint="Start again: call load() again, and start the query with the new DataFrame. Nothing was skipped",
            ) from wrong
        raise Refused(
            f"column {field.name!r} of {where} is {column.type} and cannot become {field.type}: {wrong}",
            hint="Convert the column before you write it, or read with a schema that has its type",
        ) from wrong
    return cast


def _require_same_values(found: pa.Array, column: pa.Array) -> None:
    """Raise ArrowInvalid if a value changed. Arrow's safe casts round numbers and drop times of day."""
    import pyarrow.compute as pc  # imported here, because few processes narrow a column

    if of.is_floating(column.type):
        found, column = (pc.if_else(pc.is_nan(values), 0.0, values) for values in (found, column))
    if not found.equals(column):
        raise pa.ArrowInvalid("a value would be lost")


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether every value of the narrow type is a value of the wide type. Returns False for equal types."""
    return bool(narrow != wide and common_type(narrow, wide) == wide)


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that has all values of both types; None if there is none.

    A struct has the fields of `one`, and then the fields that only `other` has.
    """
    if one == other or of.is_null(other):
        return one
    if of.is_null(one):
        return other
    if of.is_list(one) and of.is_list(other):
        inner = common_type(one.value_type, other.value_type)
        return None if inner is None else pa.list_(one.value_field.with_type(inner))
    if of.is_map(one) and of.is_map(other):
        key, item = common_type(one.key_type, other.key_type), common_type(one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if of.is_struct(one) and of.is_struct(other):
        return _common_struct(one, other)
    return other if _atom_widens(one, other) else one if _atom_widens(other, one) else None


def _common_struct(one: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    own, others = {field.name: field for field in one}, {field.name: field for field in other}
    if len(own) < one.num_fields or len(others) < other.num_fields:
        return None  # a field cannot be found by its name
    fields = []
    for name in own | others:
        field = own.get(name) or others[name]
        kind = common_type(field.type, others[name].type) if name in others else field.type
        if kind is None:
            return None
        fields.append(field.with_type(kind))
    return pa.struct(fields)


def _atom_widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if of.is_signed_integer(narrow) and of.is_signed_integer(wide):
        return bool(narrow.bit_width < wide.bit_width)
    if of.is_decimal(narrow) and of.is_decimal(wide):
        whole_digits = narrow.precision - narrow.scale, wide.precision - wide.scale
        return bool(narrow != wide and narrow.scale <= wide.scale and whole_digits[0] <= whole_digits[1])
    if of.is_date32(narrow):
        return bool(of.is_timestamp(wide) and wide.tz is None)
    return bool(of.is_float32(narrow) and of.is_float64(wide))


def typed_columns(registered: pa.Schema, given: pa.Schema) -> pa.Schema:
    """Return the ledger's columns. Those that have no type yet get the type of the given rows, at every depth."""
    if given.equals(registered):
        return registered
    kinds = {field.name: field.type for field in given}
    return pa.schema(
        [field.with_type(typed_type(field.type, kinds.get(field.name, pa.null()))) for field in registered]
    )


def typed_type(kind: pa.DataType, given: pa.DataType) -> pa.DataType:
    """Return `kind` with the types of `given` where `kind` has none. Fields of structs are matched by name."""
    if of.is_null(kind) or kind == given or (of.is_struct(kind) and of.is_struct(given) and not kind.num_fields):
        return given
    if of.is_struct(kind) and of.is_struct(given):
        types = {field.name: field.type for field in given}
        return pa.struct([field.with_type(typed_type(field.type, types.get(field.name, pa.null()))) for field in kind])
    if of.is_map(kind) and of.is_map(given):
        return pa.map_(typed_type(kind.key_type, given.key_type), typed_type(kind.item_type, given.item_type))
    if of.is_list(kind) and is_list(given):
        return pa.list_(kind.value_field.with_type(typed_type(kind.value_type, given.value_type)))
    return kind


def is_older(planned: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether a column of type `kind` has got a type or fields since a read was planned with type `planned`."""
    return bool(typed_type(planned, kind) != planned or lacking_fields(planned, kind, ""))


def is_typed(kind: pa.DataType) -> bool:
    """Return whether a type has no part without a type, at any depth. A struct without fields has no type yet."""
    if of.is_null(kind) or (of.is_struct(kind) and not kind.num_fields):
        return False
    return all(is_typed(kind.field(number).type) for number in range(kind.num_fields))


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


def _advise_fields(column: str) -> str:
    return f"Give the structs in {column!r} the ledger's fields, in any order, with null if there is no value"


def require_columns(
    given: pa.Schema, registered: pa.Schema, ledger: str, advise: Callable[[str], str] = _advise_fields
) -> None:
    """Raise Refused if a writer's columns, or the fields of its structs, differ from the ledger's."""
    if given.equals(registered):
        return
    missing = [field for field in registered if field.name not in given.names]
    extra = [field for field in given if field.name not in registered.names]
    if missing or extra:
        raise Refused(_mismatch("columns", missing, extra, ledger), hint=_columns_hint(missing, extra))
    require_fields(given, registered, ledger, advise)


def require_fields(given: pa.Schema, registered: pa.Schema, ledger: str, advise: Callable[[str], str]) -> None:
    """Raise Refused if the structs in a column have other fields than the ledger's. `advise` returns the hint."""
    for field in given:
        at = registered.get_field_index(field.name)
        if at < 0 or registered.field(at).type == field.type:
            continue
        kept = registered.field(at).type
        missing = lacking_fields(field.type, kept, field.name)
        extra = lacking_fields(kept, field.type, field.name)
        if missing or extra:
            raise Refused(_mismatch("fields of structs", missing, extra, ledger), hint=advise(field.name))


def fields_beyond(given: pa.Schema, known: pa.Schema) -> list[pa.Field]:
    """Return the fields of structs in `given` that the same columns of `known` lack. Each is named by its path."""
    common = [(known.field(field.name).type, field) for field in given if field.name in known.names]
    return [lacking for kind, field in common for lacking in lacking_fields(kind, field.type, field.name)]


def _columns_hint(missing: list[pa.Field], extra: list[pa.Field]) -> str:
    spelled = {field.name.lower(): field.name for field in missing}
    renamed = [(field.name, spelled[field.name.lower()]) for field in extra if field.name.lower() in spelled]
    if renamed:
        names = ", ".join(f"{name!r} to {kept!r}" for name, kept in renamed)
        return f"Spark ignores case, the ledger does not: rename {names}"
    advice = ["Write null in the missing columns"] * bool(missing) + ["Leave the other columns out"] * bool(extra)
    return "; ".join([*advice, "or in Spark set mergeSchema, which writes null and adds columns"])


def _mismatch(what: str, missing: list[pa.Field], extra: list[pa.Field], ledger: str) -> str:
    differs = [
        f"{_named(fields)} {word}" for word, fields in (("missing", missing), ("not in the ledger", extra)) if fields
    ]
    return f"the written {what} do not match the columns of ledger {ledger!r}: {', and '.join(differs)}"


def _named(fields: list[pa.Field]) -> str:
    names = [f"{field.name!r} ({field.type})" for field in fields[:_NAMED_MAX]]
    return (
        f"column{'s'[: len(fields) - 1]} "
        + ", ".join(names)
        + (f" and {len(fields) - len(names)} more" if len(fields) > len(names) else "")
    )
