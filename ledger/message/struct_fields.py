"""Fields of structs, matched by name at every depth: in structs, in lists, and in keys and values of maps.

Rules
- The order of the fields does not matter. A field that a struct lacks becomes null. A struct with more fields than the
  wanted ones is refused.
- Null is allowed at every depth, even if a schema says that a field has none.
- Only the arrays around the values are new. The values are not copied.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as of


def match_fields(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column with the fields of its structs in the order of `kind`. Other types stay as they are.

    Raises ArrowInvalid if a struct has more fields. Arrow's own cast is not used for this: before version 26 it
    refuses another order, and since then it drops fields that `kind` lacks.
    """
    if column.type == kind:
        return column
    if of.is_null(column.type) or (of.is_null(kind) and column.null_count == len(column)):
        return pa.nulls(len(column), kind)
    if of.is_dictionary(column.type) and of.is_nested(kind):
        column = column.dictionary_decode()
    if of.is_struct(column.type) and of.is_struct(kind):
        return _struct(column, kind)
    if is_list(column.type) and is_list(kind):
        return _list(column, match_fields(column.values, kind.value_type), kind.value_field)
    if of.is_map(column.type) and of.is_map(kind):
        return _map(column, kind)
    return column


def lacking_fields(kind: pa.DataType, wanted: pa.DataType, path: str) -> list[pa.Field]:
    """Return the fields that structs of `wanted` have and structs of `kind` lack. The name of a field is its path."""
    if of.is_struct(kind) and of.is_struct(wanted):
        own = {field.name: field.type for field in kind}
        found = []
        for field in wanted:
            name = f"{path}.{field.name}"
            found += lacking_fields(own[field.name], field.type, name) if field.name in own else [field.with_name(name)]
        return found
    if of.is_map(kind) and of.is_map(wanted):
        keys = lacking_fields(kind.key_type, wanted.key_type, f"{path}.key")
        return keys + lacking_fields(kind.item_type, wanted.item_type, f"{path}.value")
    if is_list(kind) and is_list(wanted):
        return lacking_fields(kind.value_type, wanted.value_type, f"{path}.element")
    return []


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of the type are lists, of any kind."""
    return bool(of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind))


def _struct(column: pa.StructArray, kind: pa.StructType) -> pa.Array:
    names = [field.name for field in column.type]
    if len(set(names)) < len(names) or not set(names) <= {field.name for field in kind}:
        raise pa.ArrowInvalid(f"a struct has the fields {names}, expected {[field.name for field in kind]}")
    # `field` clips a child to the rows of a sliced struct.
    values = [
        match_fields(column.field(field.name), field.type) if field.name in names else pa.nulls(len(column), field.type)
        for field in kind
    ]
    fields = [field.with_type(array.type) for field, array in zip(kind, values, strict=True)]
    return pa.StructArray.from_arrays(values, fields=fields, mask=column.is_null() if column.null_count else None)


def _list(column: pa.Array, inner: pa.Array, field: pa.Field) -> pa.Array:
    kind, field = column.type, field.with_type(inner.type)
    if of.is_fixed_size_list(kind):
        return _around(column, 1, pa.list_(field, kind.list_size), inner)
    return _around(column, 2, pa.large_list(field) if of.is_large_list(kind) else pa.list_(field), inner)


def _map(column: pa.MapArray, kind: pa.MapType) -> pa.Array:
    pairs = [match_fields(column.keys, kind.key_type), match_fields(column.items, kind.item_type)]
    fields = [
        field.with_type(array.type) for field, array in zip((kind.key_field, kind.item_field), pairs, strict=True)
    ]
    return _around(column, 2, pa.map_(*fields), pa.StructArray.from_arrays(pairs, fields=fields))


def _around(column: pa.Array, own: int, kind: pa.DataType, inner: pa.Array) -> pa.Array:
    """Return lists like `column` with other values. Its first `own` buffers are the nulls and the offsets of the lists.

    A sliced column shares these buffers and the values with the whole column. Only its offset says where it starts.
    """
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:own], column.null_count, column.offset, [inner])
