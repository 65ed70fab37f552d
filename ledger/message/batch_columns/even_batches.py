"""Batches whose messages have equal sizes and differ only in sequence id and value: the form of most batches.

    size u32  18 value-size  [40 sequence-id]  value          each message of such a batch, all with the same lengths

Such a batch is a matrix with a row for each message. So its values are one rectangle, which is copied at once.

Rules
- The value's size has up to two bytes and the sequence id up to seven bytes.
- Each message is compared with the first message of its batch. A batch is *even* if all of its messages have this form.
- If one batch of a group is not even, `ledger.message.batch_columns.scanner` scans the whole group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_ledger.ledger.message.byte_ranges import Integers

Words = npt.NDArray[np.uint64]

_VALUE_SIZE, _SEQUENCE = 0x18, 0x40
_CONTINUES = 0x80  # the highest bit of each byte of a varint except the last
_STEP_MIN = 16  # the fewest bytes of a message, so that eight bytes after each tag are in the batch
_SEQUENCE_BYTES_MAX = 7
_SLICE = 8 * 1024  # sequence ids to decode at a time: they fit into the processor's cache
# A matrix costs ten microseconds. The scanner needs as much for this number of messages.
_MESSAGES_MIN = 64


@dataclass(frozen=True, slots=True)
class EvenBatches:
    """Values and sequence ids (-1 for none) of all messages."""

    values: pa.Array
    sequence_ids: Integers


class _Form(NamedTuple):
    """Lengths of the messages of a batch. `tag` is the offset of the sequence id's tag, and `step` a message's size."""

    tag: int
    metadata_end: int
    step: int
    sequence_bytes: int


def even_batches(payloads: Sequence[memoryview], counts: Sequence[int]) -> EvenBatches | None:
    """Return the messages of the batches. Returns None if a batch is not even, or the batches are small.

    `counts` are the stated numbers of messages.
    """
    total = sum(counts)
    if total < _MESSAGES_MIN * len(counts):
        return None
    forms = []
    for payload, count in zip(payloads, counts, strict=True):
        form = _form_of(payload, count)
        if form is None:
            return None
        forms.append(form)
    sizes = np.array([form.step - form.metadata_end for form in forms])
    offsets = np.zeros(total + 1, dtype=np.int64)
    np.cumsum(np.repeat(sizes, counts), out=offsets[1:])
    data = pa.allocate_buffer(int(offsets[-1]))
    values, sequences = np.frombuffer(data, dtype=np.uint8), np.zeros(total, dtype=np.uint64)
    end = 0
    for payload, count, form in zip(payloads, counts, forms, strict=True):
        begin, end = end, end + count
        if not _is_even(payload, count, form, sequences[begin:end]):
            return None
        rows = np.frombuffer(payload, dtype=np.uint8).reshape(count, form.step)[:, form.metadata_end :]
        values[offsets[begin] : offsets[end]].reshape(rows.shape)[...] = rows
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), data]
    is_numbered = np.repeat([form.sequence_bytes > 0 for form in forms], counts)
    return EvenBatches(pa.Array.from_buffers(pa.binary(), total, buffers), _numbers(sequences, is_numbered))


def _form_of(payload: memoryview, count: int) -> _Form | None:
    """Return the form of the first message, None if the batch cannot consist of such messages."""
    head = payload[:_STEP_MIN].tobytes()
    if len(head) < _STEP_MIN or head[:3] != b"\0\0\0" or head[4] != _VALUE_SIZE:
        return None
    metadata_end, tag, size = 4 + head[3], 6, head[5]
    if size >= _CONTINUES:
        tag, size = 7, size & 0x7F | head[6] << 7
        if head[6] >= _CONTINUES:
            return None
    step = metadata_end + size
    sequence_bytes = max(metadata_end - tag - 1, 0)
    if step < _STEP_MIN or step * count != len(payload) or sequence_bytes > _SEQUENCE_BYTES_MAX:
        return None
    if metadata_end != tag and (head[tag] != _SEQUENCE or not sequence_bytes):
        return None
    return _Form(tag, metadata_end, step, sequence_bytes)


def _is_even(payload: memoryview, count: int, form: _Form, sequences: Words) -> bool:
    """Return whether all messages of a batch have the form of the first. Stores the bytes of their sequence ids."""
    heads: Words = np.ndarray((count,), "<u8", payload, strides=(form.step,))
    same = np.uint64((1 << 8 * (form.tag + (form.sequence_bytes > 0))) - 1)
    if ((heads ^ heads[0]) & same).any():
        return False
    if not form.sequence_bytes:
        return True
    numbers: Words = np.ndarray((count,), "<u8", payload, form.tag + 1, (form.step,))
    np.bitwise_and(numbers, np.uint64((1 << 8 * form.sequence_bytes) - 1), out=sequences)
    bits = int.from_bytes(bytes([_CONTINUES] * form.sequence_bytes), "little")
    return not ((sequences & np.uint64(bits)) != np.uint64(bits >> 8)).any()


def _numbers(sequences: Words, is_numbered: npt.NDArray[np.bool_]) -> Integers:
    """Return the values of varints, -1 for messages without a sequence id."""
    found = np.full(len(sequences), -1, dtype=np.int64)
    if not is_numbered.any():
        return found
    digits = -(-int(sequences.max()).bit_length() // 8)
    for start in range(0, len(sequences), _SLICE):
        part = sequences[start : start + _SLICE]
        value = part & np.uint64(0x7F)
        for digit in range(1, digits):
            value |= (part >> np.uint64(8 * digit) & np.uint64(0x7F)) << np.uint64(7 * digit)
        np.copyto(found[start : start + _SLICE], value.astype(np.int64), where=is_numbered[start : start + _SLICE])
    return found
