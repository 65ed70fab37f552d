"""Batches whose messages have equal sizes and differ only in sequence id and value: the form of most batches.

    size u32  18 value-size  [40 sequence-id]  value          each message of such a batch, all with the same lengths

18 and 40 are Protobuf's tags of the fields, in hexadecimal. Such a batch is a matrix with a row for each message. So
its values are one rectangle, which is copied at once.

Rules
- The value's size has up to two bytes and the sequence id up to seven bytes.
- Each message is compared with the first message of its batch. A batch is *even* if all of its messages have this form.
- Each batch is decompressed, measured and copied before the next batch, while it is in the processor's cache.
- If one batch of a group is not even, `ledger.message.batch_columns.scanner` scans the whole group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_ledger.ledger.message.byte_ranges import Flags, Integers

Words = npt.NDArray[np.uint64]

_VALUE_SIZE, _SEQUENCE = 0x18, 0x40
_CONTINUES = 0x80  # this bit is set in each byte of a varint except the last byte
_STEP_MIN = 16  # smallest size of a message; so a read of eight bytes after a tag never leaves the batch
_SEQUENCE_BYTES_MAX = 7
_SLICE = 8 * 1024  # sequence ids to decode at a time: they fit into the processor's cache
# A matrix takes ten microseconds. The scanner needs the same time for this number of messages.
_MESSAGES_MIN = 64


@dataclass(frozen=True, slots=True)
class EvenBatches:
    """Values of all messages, and the bytes of their sequence ids."""

    values: pa.Array
    _sequences: Words
    _is_numbered: Flags

    def sequence_ids(self) -> Integers:
        """Return the sequence ids, -1 for messages without one."""
        found = np.full(len(self._sequences), -1, dtype=np.int64)
        if not self._is_numbered.any():
            return found
        digits = -(-int(self._sequences.max()).bit_length() // 8)
        for start in range(0, len(found), _SLICE):
            part = self._sequences[start : start + _SLICE]
            value = part & np.uint64(0x7F)
            for digit in range(1, digits):
                value |= (part >> np.uint64(8 * digit) & np.uint64(0x7F)) << np.uint64(7 * digit)
            here = self._is_numbered[start : start + _SLICE]
            np.copyto(found[start : start + _SLICE], value.astype(np.int64), where=here)
        return found


class _Form(NamedTuple):
    """Lengths of the messages of a batch. `tag` is the offset of the sequence id's tag, and `step` a message's size.

    The form determines all bytes before the value except the sequence id.
    """

    tag: int
    metadata_end: int
    step: int
    sequence_bytes: int

    @property
    def value_bytes(self) -> int:
        return self.step - self.metadata_end


def even_batches(batches: Iterable[memoryview | None], counts: Sequence[int], size: int) -> EvenBatches | None:
    """Return the messages of the batches. Returns None if a batch is missing or not even, or the batches are small.

    `counts` are the stated numbers of messages, and the batches have `size` bytes in total. `batches` may be a
    generator that decompresses one batch at a time.
    """
    total = sum(counts)
    if min(counts) < 1 or total < _MESSAGES_MIN * len(counts) or size < _STEP_MIN * total:
        return None
    data = pa.allocate_buffer(size)
    values, heads, numbers = np.frombuffer(data, dtype=np.uint8), *np.empty((2, total), dtype=np.uint64)
    forms = []
    end = stop = 0
    for batch, count in zip(batches, counts, strict=True):
        form = None if batch is None else _form_of(batch, count)
        if batch is None or form is None:
            return None
        forms.append(form)
        first, start = end, stop
        end, stop = first + count, start + count * form.value_bytes
        heads[first:end] = np.ndarray((count,), "<u8", batch, 0, (form.step,))
        numbers[first:end] = np.ndarray((count,), "<u8", batch, form.tag + 1, (form.step,))
        rows = np.frombuffer(batch, dtype=np.uint8).reshape(count, form.step)[:, form.metadata_end :]
        values[start:stop].reshape(rows.shape)[...] = rows
    offsets, is_numbered = np.zeros(total + 1, dtype=np.int32), np.empty(total, dtype=np.bool_)
    end = stop = 0
    for form, run in groupby(zip(forms, counts, strict=True), key=itemgetter(0)):
        first, start = end, stop
        end += sum(count for _, count in run)
        stop += (end - first) * form.value_bytes
        if not _is_even(form, heads[first:end], numbers[first:end]):
            return None
        offsets[first + 1 : end + 1] = np.arange(start + form.value_bytes, stop + 1, form.value_bytes)
        is_numbered[first:end] = form.sequence_bytes > 0
    buffers = [None, pa.py_buffer(offsets), data.slice(0, stop)]
    return EvenBatches(pa.Array.from_buffers(pa.binary(), total, buffers), numbers, is_numbered)


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


def _is_even(form: _Form, heads: Words, numbers: Words) -> bool:
    """Return whether all messages have one form.

    `heads` has the first eight bytes of each message. `numbers` has the eight bytes that begin with its sequence id.
    This function sets the other bytes in `numbers` to zero.
    """
    same = (1 << 8 * (form.tag + (form.sequence_bytes > 0))) - 1
    if (_in_all(heads) ^ _in_any(heads)) & same:
        return False
    numbers &= np.uint64((1 << 8 * form.sequence_bytes) - 1)
    continues = int.from_bytes(bytes([_CONTINUES] * form.sequence_bytes), "little")
    return _in_all(numbers) & continues == _in_any(numbers) & continues == continues >> 8


def _in_all(words: Words) -> int:
    """Return the bits that are set in all words."""
    return int(np.bitwise_and.reduce(words))


def _in_any(words: Words) -> int:
    """Return the bits that are set in any of the words."""
    return int(np.bitwise_or.reduce(words))
