"""Rows that a user appends: their conversion to a table, and its division into entries.

An *entry* is the unit of storage.

Rules
- Rows are mappings, or Arrow tables and batches. A conversion never changes a value.
- The error for a row that is no mapping names the row's number. The error for a value that does not fit the type of its
  column names the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa

from pyspark_ledger.ledger.api.kept_values import require_kept
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.columns import is_typed


def rows_table(rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, object]], schema: pa.Schema | None) -> pa.Table:
    """Return the rows as a table with a column for each key of any row. A row without a key has null in its column."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    rows = rows if isinstance(rows, list) else listed_rows(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    typed = {} if schema is None else {field.name: field for field in schema}
    if typed.keys() == names.keys():
        names = dict.fromkeys(typed)
    return pa.table({name: _column([row.get(name) for row in rows], name, typed.get(name)) for name in names})


def listed_rows(rows: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return the rows as a list, because an iterator yields them only once.

    Raises Refused for a row that is no mapping. The error has the row's number.
    """
    if isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable):
        raise Refused(
            f"rows are {type(rows).__name__}, expected a list of mappings", hint='Use a form like [{"id": 1}]'
        )
    listed = list(rows)
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise Refused(f"row {number} is {type(row).__name__}, expected a mapping", hint='Use a form like {"id": 1}')
        for name in row:
            if not isinstance(name, str):
                raise Refused(f"row {number} has the column {name!r}, expected text", hint='Use a form like {"id": 1}')
    return listed


def _column(values: list[object], name: str, field: pa.Field | None) -> pa.Array:
    """Return the values of a column, in the type of `field` if it is given. Raises Refused if a value does not fit."""
    wanted = None if field is None else field.type
    try:
        if wanted is not None and not is_typed(wanted):
            wanted = _type_of_values(values, wanted)
        column = pa.array(values, wanted)
    except (pa.ArrowException, OverflowError) as wrong:
        text = f"the values of column {name!r} cannot have {f'type {wanted}' if wanted else 'one type'}: {wrong}"
        raise Refused(text, hint="Correct the value; nothing was appended") from wrong
    require_kept(values, column.type, name)
    return column


def _type_of_values(values: Iterable[Any], kind: pa.DataType) -> pa.DataType:
    """Return a column's type. The parts without a type get the type of their values. Raises ArrowException."""
    if is_typed(kind):
        return kind
    found = [value for value in values if value is not None]
    if pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields):
        return pa.array(found).type if found else kind
    if pa.types.is_struct(kind):
        rows = [value for value in found if isinstance(value, Mapping)]
        return pa.struct([f.with_type(_type_of_values([row.get(f.name) for row in rows], f.type)) for f in kind])
    if pa.types.is_map(kind):
        pairs = [pair for value in found for pair in (value.items() if isinstance(value, Mapping) else value)]
        parts = enumerate((kind.key_type, kind.item_type))
        return pa.map_(*(_type_of_values([pair[at] for pair in pairs], part) for at, part in parts))
    return pa.list_(kind.value_field.with_type(_type_of_values(chain.from_iterable(found), kind.value_type)))
