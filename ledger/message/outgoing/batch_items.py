"""Encoder of the items of a batch, for all messages at once. An item is a message's metadata and value.

    size u32 [key]  │  key  │  size of the value … sequence id  │  value
    ──── head ────             ───────────── tail ─────────────

Rules
- Heads and tails are matrices with a row of bytes for each message. If some messages need fewer bytes than others, a
  mask marks the used bytes of each row. Usually there is no mask, because every byte is used.
- Messages in lists are joined by `bytes.join`, messages in columns by Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_ledger.ledger.message.outgoing.message import key_text

_VARINT_BITS = 7
# Tags of SingleMessageMetadata, in their order on the wire.
_KEY, _SIZE, _EVENT_TIME, _KEY_B64, _SEQUENCE, _NULL = 0x12, 0x18, 0x28, 0x30, 0x40, 0x48

Numbers = npt.NDArray[np.uint64]
Sizes = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]
_Rows = tuple[npt.NDArray[np.uint8], _Mask | None]


def join_lists(
    values: Sequence[bytes | None],
    keys: Sequence[str | bytes | None],
    sequence_ids: Numbers,
    times: Numbers,
) -> bytes:
    """Return all items of messages given as lists. All keys are text, or all are bytes; a key may be None.

    A time of 0 means none.
    """
    kinds = set(map(type, keys))
    if kinds == {str}:
        wire_keys, keyed = list(map(str.encode, keys)), None  # type: ignore[arg-type]  # each is a str
    else:
        wire_keys = [b"" if key is None else key_text(key)[0].encode() for key in keys]
        keyed = np.array([key is not None for key in keys])
    absent = np.array([value is None for value in values]) if None in values else None
    present = [value or b"" for value in values]
    key_sizes = None if kinds == {type(None)} else _sizes_of(wire_keys)
    is_base64 = bytes in kinds
    heads, tails = _around(key_sizes, keyed, _sizes_of(present), absent, sequence_ids, times, is_base64=is_base64)
    pieces: list[bytes] = [b""] * (4 * len(values))
    pieces[::4], pieces[1::4], pieces[2::4], pieces[3::4] = _as_list(heads), wire_keys, _as_list(tails), present
    return b"".join(pieces)


def join_columns(
    values: pa.Array, sequence_ids: Numbers, keys: pa.Array | None, times: Numbers, *, is_base64: bool
) -> tuple[pa.Buffer, Sizes]:
    """Return all items in one buffer, and their offsets: item i is at `[offsets[i], offsets[i + 1])`."""
    key_sizes, keyed = (None, None) if keys is None else (lengths(keys), _valid(keys))
    sizes, absent = lengths(values), ~_valid(values) if values.null_count else None
    heads, tails = _around(key_sizes, keyed, sizes, absent, sequence_ids, times, is_base64=is_base64)
    if keys is None and absent is None and not times.any() and sizes.min() == sizes.max():
        return _even_items(values, sizes, _side_by_side([heads, tails]))
    columns = [_as_column(heads), *([keys] if keys is not None else []), _as_column(tails), values]
    import pyarrow.compute as pc  # imported here, which saves a tenth of the start of other processes

    empty = pa.scalar(b"", pa.large_binary())
    joined = pc.binary_join_element_wise(*columns, empty, null_handling="replace", null_replacement="")
    _, offsets, data = joined.buffers()
    return data, np.frombuffer(offsets, dtype=np.int64)[joined.offset : joined.offset + len(values) + 1]


def _around(
    key_sizes: Sizes | None,
    keyed: _Mask | None,
    value_sizes: Sizes,
    absent: _Mask | None,
    sequence_ids: Numbers,
    times: Numbers,
    *,
    is_base64: bool,
) -> tuple[_Rows, _Rows]:
    """Return the bytes before the key of each message, and the bytes between its key and its value."""
    count = len(value_sizes)
    head, key_kind, event_time, tombstone = list[_Rows](), list[_Rows](), list[_Rows](), list[_Rows]()
    if key_sizes is not None:
        head = [_constant(_KEY, count, keyed), _varint(key_sizes, keyed)]
        key_kind = [_constant(_KEY_B64, count, keyed), _constant(int(is_base64), count, keyed)]
    if times.any():
        event_time = [_constant(_EVENT_TIME, count, times > 0), _varint(times, times > 0)]
    if absent is not None:
        tombstone = [_constant(_NULL, count, absent), _constant(1, count, absent)]
    size = [_constant(_SIZE, count), _varint(value_sizes)]
    sequence = [_constant(_SEQUENCE, count), _varint(sequence_ids)]
    tail = _side_by_side([*size, *event_time, *key_kind, *sequence, *tombstone])
    sizes = _widths(tail) + (0 if key_sizes is None else key_sizes + _widths(_side_by_side(head)))
    return _side_by_side([(sizes.astype(">u4").view(np.uint8).reshape(count, 4), None), *head]), tail


def _even_items(values: pa.Array, sizes: Sizes, metadata: _Rows) -> tuple[pa.Buffer, Sizes]:
    """Encode items whose values have the same size.

    The length of their metadata rarely changes. So consecutive items of equal length are written as one rectangle.
    """
    count, size = len(values), int(sizes[0])
    rows, there = metadata
    heads = _widths(metadata)
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(heads + size, out=offsets[1:])
    data = pa.allocate_buffer(int(offsets[-1]))
    target = np.frombuffer(data, dtype=np.uint8)
    _, edges, held = values.buffers()
    first = int(np.frombuffer(edges, dtype=np.int64)[values.offset])
    source = np.zeros(0, np.uint8) if held is None else np.frombuffer(held, dtype=np.uint8)
    source = source[first : first + count * size].reshape(count, size)
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(heads)) + 1).tolist(), count]):
        head = int(heads[start])
        block = target[offsets[start] : offsets[end]].reshape(end - start, head + size)
        block[:, :head] = rows[start:end] if there is None else rows[start:end][there[start:end]].reshape(-1, head)
        block[:, head:] = source[start:end]
    return data, offsets


def _constant(byte: int, count: int, where: _Mask | None = None) -> _Rows:
    return np.full((count, 1), byte, dtype=np.uint8), None if where is None else where[:, None]


def _varint(numbers: Numbers | Sizes, where: _Mask | None = None) -> _Rows:
    """Return a table with the varint of a number in each row, and a mask of the used bytes."""
    least, most = (max(1, -(-int(number).bit_length() // _VARINT_BITS)) for number in (numbers.min(), numbers.max()))
    rest = numbers.astype(np.uint64)[:, None] >> np.arange(0, most * _VARINT_BITS, _VARINT_BITS, dtype=np.uint64)
    groups = rest.astype(np.uint8) & np.uint8(0x7F)
    if least == most:
        groups[:, :-1] |= np.uint8(0x80)
        return groups, None if where is None else np.broadcast_to(where[:, None], groups.shape)
    there = rest > 0
    there[:, 0] = True
    groups[:, :-1][there[:, 1:]] |= np.uint8(0x80)
    return groups, there if where is None else there & where[:, None]


def _widths(rows: _Rows) -> Sizes:
    """Return the number of used bytes of each row."""
    data, there = rows
    return np.full(len(data), data.shape[1]) if there is None else there.sum(axis=1, dtype=np.int64)


def _side_by_side(pieces: Sequence[_Rows]) -> _Rows:
    rows = np.concatenate([piece for piece, _ in pieces], axis=1)
    if all(mask is None for _, mask in pieces):
        return rows, None
    masks = [np.ones(piece.shape, np.bool_) if mask is None else mask for piece, mask in pieces]
    return rows, np.concatenate(masks, axis=1)


def _as_list(rows: _Rows) -> list[bytes]:
    """Return the used bytes of each row as one value."""
    data, there = rows
    if there is None:
        return data.view(f"V{data.shape[1]}").ravel().tolist()
    used, ends = data[there].tobytes(), np.cumsum(_widths(rows)).tolist()
    return [used[start:end] for start, end in pairwise([0, *ends])]


def _as_column(rows: _Rows) -> pa.Array:
    """Return the used bytes of each row as one binary value."""
    data, there = rows
    offsets = np.zeros(len(data) + 1, dtype=np.int64)
    np.cumsum(_widths(rows), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data if there is None else data[there])]
    return pa.Array.from_buffers(pa.large_binary(), len(data), buffers)


def _sizes_of(values: Sequence[bytes]) -> Sizes:
    return np.fromiter(map(len, values), np.int64, len(values))


def lengths(column: pa.Array) -> Sizes:
    """Return the number of bytes of each value, 0 for null."""
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(pc.binary_length(column), 0), dtype=np.int64)


def _valid(column: pa.Array) -> _Mask:
    return np.asarray(column.is_valid(), dtype=np.bool_)
