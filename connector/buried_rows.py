"""Rows that a subscription gave up on, as they are written to the ledger of its dead letters. Pure.

    the row's columns … (of a ledger of messages: value, as it was) · __key · __eventTime · __messageProperties

Rules
- A dead letter has everything that its row had: columns, key, event time, properties.
- Beside its own properties it has two that Pulsar's clients give their dead letters: REAL_TOPIC, the topic that it was
  read from, and ORIGIN_MESSAGE_ID, its place there (ledger:entry:row).
- Nothing here runs Python per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from connector.dead_letters import PLACE, TOPIC
from connector.row_shape import RowShape, RowWishes, row_shape
from connector.schema import METADATA, RAW, SAID_BY_ROWS

_PROPERTIES = METADATA.field("__messageProperties")
_ORIGIN = ("__topic", "__position")


def buried_shape(columns: pa.Schema | None, ledger: str) -> RowShape:
    """What is read of the rows of a ledger of these columns, or of messages (None), to bury them."""
    rows = RAW if columns is None else columns
    return row_shape(columns, None, RowWishes(columns=(*rows.names, *SAID_BY_ROWS, *_ORIGIN)), ledger)


def buried_columns(shape: RowShape) -> pa.Schema:
    """The columns that are written of them."""
    return pa.schema([field for field in shape.schema if field.name not in _ORIGIN])


def buried(rows: Iterable[pa.RecordBatch], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of a `buried_shape` as they are written."""
    at = columns.get_field_index(_PROPERTIES.name)
    for batch in rows:
        kept = [batch.column(name) for name in columns.names]
        kept[at] = _with_origin(kept[at], *(batch.column(name) for name in _ORIGIN))
        yield pa.RecordBatch.from_arrays(kept, schema=columns)


def _with_origin(properties: pa.MapArray, topics: pa.Array, positions: pa.StructArray) -> pa.MapArray:
    """Two more properties behind those of each row."""
    count = len(properties)
    edges = np.asarray(properties.offsets).astype(np.int64)
    first, own = int(edges[0]), int(edges[-1] - edges[0])
    ends = edges[1:] - first + 2 * np.arange(1, count + 1)
    # Which item each one is: the rows' own as they stand, then all topics, then all places.
    chosen = np.full(own + 2 * count, -1, dtype=np.int64)
    chosen[ends - 2], chosen[ends - 1] = own + np.arange(count), own + count + np.arange(count)
    chosen[chosen < 0] = np.arange(own)
    import pyarrow.compute as pc

    places = pc.binary_join_element_wise(
        *(positions.field(name).cast(pa.string()) for name in ("ledgerId", "entryId", "batchIndex")), ":"
    )
    kind = _PROPERTIES.type
    keys = pa.concat_arrays(
        [properties.keys.slice(first, own), pa.repeat(pa.scalar(TOPIC), count), pa.repeat(pa.scalar(PLACE), count)]
    )
    items = pa.concat_arrays([properties.items.slice(first, own), topics, places])
    offsets = pa.array(np.append(0, ends), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys.take(pa.array(chosen)), items.take(pa.array(chosen)), type=kind)
