"""Rows as a user gives them, into a table: mappings, or what is Arrow already. Pure.

Rules: nothing is guessed or cut. A row that is no mapping is refused by its number, a value that its column cannot hold
by the column's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from ledger.errors import Refused

_ENTRY_BYTES = 4 * 1024 * 1024


def rows_table(rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, object]], schema: pa.Schema | None) -> pa.Table:
    """The rows as a table whose columns are all keys of all rows; a row without a key has null there."""
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
    """The rows, walked once: an iterator has them only once. Refused, by number, is what is no row."""
    if isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable):
        raise Refused(f"rows are {type(rows).__name__}, expected mappings", hint='Give a list, as [{"id": 1}]')
    listed = list(rows)
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise Refused(f"row {number} is {type(row).__name__}, expected a mapping", hint='Give rows as {"id": 1}')
        for name in row:
            if not isinstance(name, str):
                raise Refused(f"row {number} has the column {name!r}, expected text", hint='Give rows as {"id": 1}')
    return listed


def _column(values: list[object], name: str, field: pa.Field | None) -> pa.Array:
    """The values of a column, as the ledger's type where it has one; refused where one does not fit or is cut."""
    wanted = None if field is None else field.type
    try:
        if wanted is not None and pa.types.is_integer(wanted) and any(isinstance(value, float) for value in values):
            pa.array(values).cast(wanted)  # which refuses 1.5; the conversion below makes it 1
        return pa.array(values, wanted)
    except (pa.ArrowException, OverflowError) as wrong:
        text = f"column {name!r} of what is appended cannot be {wanted or 'of one type'}: {wrong}"
        raise Refused(text, hint="Correct the value; nothing was appended") from wrong


def entry_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of about one entry's bytes."""
    rows = max(1, batch.num_rows * _ENTRY_BYTES // max(batch.nbytes, 1))
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)
