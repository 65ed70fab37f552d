"""The rows that a frame names, as arrays: from a column `__position` or a column `__messageId`.

    __position   struct<ledgerId bigint, entryId bigint, batchIndex int>
    __messageId  Pulsar's MessageIdData: 08 ledger  10 entry  [18 partition]  [20 batch index]  [30 batch size]

Rules: rows at a time, never one by one; a null, and bytes that are no message id, are refused naming the row. A row
without a batch index (-1) is the whole entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ledger.acknowledged_rows import acknowledge_batches
from ledger.errors import Corrupt, Refused
from ledger.varints import gather

POSITION, MESSAGE_ID = "__position", "__messageId"
Integers = npt.NDArray[np.int64]
_FOLD_ROWS = 1_000_000
_LEDGER, _ENTRY, _PARTITION, _ROW, _BATCH_SIZE = 0x08, 0x10, 0x18, 0x20, 0x30
_READ_PAST = (_PARTITION, _BATCH_SIZE)


def acknowledged(rows: Iterable[pa.RecordBatch], column: str) -> Iterator[pa.RecordBatch]:
    """Batches of the wire for all rows of a task; as few as bounded memory allows."""
    gathered: list[tuple[Integers, Integers, Integers]] = []
    count = 0
    for batch in rows:
        if batch.num_rows:
            gathered.append(places(batch.column(batch.schema.get_field_index(column)), column))
            count += batch.num_rows
        if count >= _FOLD_ROWS:
            yield from _folded(gathered)
            gathered, count = [], 0
    if gathered:
        yield from _folded(gathered)


def places(values: pa.Array, column: str) -> tuple[Integers, Integers, Integers]:
    """Ledger, entry and row of each value."""
    if values.null_count:
        where = int(np.flatnonzero(np.asarray(values.is_null()))[0])
        raise Refused(f"column {column!r} is null in row {where} of a batch", hint="Leave out what is no row")
    if column == POSITION:
        return _of_structs(values)
    return _of_message_ids(values)


def _folded(gathered: list[tuple[Integers, Integers, Integers]]) -> Iterator[pa.RecordBatch]:
    ledgers, entries, rows = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
    return acknowledge_batches(ledgers, entries, rows)


def _of_structs(values: pa.StructArray) -> tuple[Integers, Integers, Integers]:
    fields = []
    for name in ("ledgerId", "entryId", "batchIndex"):
        field = values.field(name)
        if field.null_count:
            raise Refused(f"column {POSITION!r} has a null {name}", hint="Leave out what is no row")
        fields.append(np.asarray(field).astype(np.int64))
    return fields[0], fields[1], fields[2]


def _of_message_ids(values: pa.Array) -> tuple[Integers, Integers, Integers]:
    if pa.types.is_large_binary(values.type):
        values = values.cast(pa.binary())
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)[values.offset : values.offset + count + 1]
    held = values.buffers()[2]
    data = np.frombuffer(held, dtype=np.uint8)[offsets[0] : offsets[-1]] if held is not None else np.zeros(0, np.uint8)
    bounds = offsets.astype(np.int64) - int(offsets[0])
    stops = np.flatnonzero(data < 0x80)
    starts = np.append(0, stops + 1)[:-1]
    first = np.searchsorted(stops, bounds[:-1])
    tokens = np.diff(np.append(first, len(stops)))
    ends = np.append(-1, stops)[first + tokens] + 1
    whole = (tokens > 0) & (tokens % 2 == 0) & (ends == bounds[1:])
    found = {_LEDGER: np.full(count, -1), _ENTRY: np.full(count, -1), _ROW: np.full(count, -1)}
    for at in range(0, int(tokens.max(initial=0)), 2):
        rows = np.flatnonzero(whole & (tokens > at))
        tag_at, value_at = first[rows] + at, first[rows] + at + 1
        tags = np.where(stops[tag_at] == starts[tag_at], data[stops[tag_at]], 0)
        try:
            numbers = gather(data, starts[value_at], stops[value_at] - starts[value_at] + 1, MESSAGE_ID).view(np.int64)
        except Corrupt as wrong:
            raise Refused(str(wrong.message), hint="Give the column as it was read with includeMetadata") from wrong
        for tag, known in found.items():
            of_tag = tags == tag
            known[rows[of_tag]] = numbers[of_tag]
        whole[rows[~np.isin(tags, (*found, *_READ_PAST))]] = False
    wrong_rows = np.flatnonzero(~whole | (found[_LEDGER] < 0) | (found[_ENTRY] < 0))
    if len(wrong_rows):
        value = values[int(wrong_rows[0])].as_py()
        raise Refused(
            f"column {MESSAGE_ID!r} holds {value[:32].hex() or 'nothing'} in row {int(wrong_rows[0])} of a batch, "
            "which is no message id",
            hint="Give the column as it was read with includeMetadata",
        )
    return found[_LEDGER], found[_ENTRY], found[_ROW]
