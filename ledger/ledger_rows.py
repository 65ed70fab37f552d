"""The rows of a range of a ledger, as a few lines of Python read them: record batches, entry by entry.

Rules: a ledger with columns gives its columns, one of messages a column `value`. Markers give nothing. What is in the
log but not of the ledger's kind is an error that names the entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ledger.arrow_payload import decode_rows
from ledger.columns import ColumnFit
from ledger.entry import ParsedEntry, is_arrow, is_marker, parse_entry
from ledger.errors import Refused
from ledger.payload_registry import registered_rows
from ledger.position import Position, PositionRange
from ledger.protocol import AskEnd
from ledger.pulsar_payload import decode_messages
from ledger.read_calls import ReadRequest
from ledger.row_selection import RowSelection
from ledger.segment_reader import iter_frames

if TYPE_CHECKING:
    from ledger.broker.client import Client

_RAW = pa.schema([pa.field("value", pa.binary())])
_BLOCK_BYTES = 4 * 1024 * 1024


def read_rows(
    client: Client, name: str, start: Position, end: Position | None, selection: RowSelection | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of `[start, end)`, entry by entry; `end` defaults to the end as it is now."""
    require_positions(start=start, **({} if end is None else {"end": end}))
    log = client.call("end", AskEnd(name))
    schema = registered_rows(client, name)[0]
    request = ReadRequest(
        name,
        PositionRange(start, log.end if end is None else end),
        incarnation=log.incarnation,
        max_block_bytes=_BLOCK_BYTES,
    )
    fit = None if schema is None else ColumnFit(schema)
    if not request.range:
        return
    for block in client.read_blocks(request):
        for entry_id, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries):
            position = Position(block.ledger_id, entry_id)
            if selection is not None and selection.passes_over(position):
                continue
            where = f"entry {position} of {name}"
            rows = _rows(parse_entry(frame, where), fit, where)
            yield from rows if selection is None else selection.taken(position, rows)


def rows_as_table(client: Client, name: str, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Batches of a ledger as one table, which has the ledger's columns when there is none of them."""
    return pa.Table.from_batches(batches, registered_rows(client, name)[0] or _RAW)


def require_positions(**given: object) -> None:
    """Refuse what is no position, by the name of its argument."""
    for name, value in given.items():
        if not isinstance(value, Position):
            raise Refused(
                f"{name} is {value!r}, expected a position",
                hint="Import Position, EARLIEST or LATEST from ledger.position; Position.parse('0:5') reads text",
            )


def _copied(payload: memoryview) -> pa.Buffer:
    """The payload where Arrow's own joins and sums want it: in a segment it begins at any byte.

    Also where it begins well by chance: a table that keeps one payload of a block would keep all of the block mapped.
    """
    copy = pa.allocate_buffer(len(payload))
    np.frombuffer(copy, dtype=np.uint8)[:] = np.frombuffer(payload, dtype=np.uint8)
    return copy


def _rows(entry: ParsedEntry, fit: ColumnFit | None, where: str) -> Iterator[pa.RecordBatch]:
    if is_marker(entry.metadata):
        return
    if is_arrow(entry.metadata) != (fit is not None):
        kinds = ("Arrow columns", "Pulsar messages")
        held, wanted = kinds if is_arrow(entry.metadata) else kinds[::-1]
        raise Refused(f"{where} holds {held}, the ledger is one of {wanted}")
    if fit is not None:
        for batch in decode_rows(_copied(entry.payload), where):
            yield fit.fit(batch, where)
        return
    values = [message.value for message in decode_messages(entry, where)]
    yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=_RAW)
