"""Encoding and decoding of many Protobuf varints at once.

A varint has seven bits in each byte, the lowest bits first. The top bit of a byte is set if another byte follows.

Rules
- A negative int64 has ten bytes. More than ten bytes, or bits beyond the 64th, raise Corrupt.
- Encoders return the bytes of all values in sequence. `decode_varints` refuses input with bytes left over.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyspark_ledger.ledger.errors import Corrupt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

LENGTH_MAX = 10
# Number of values to convert at a time: their intermediate results fit into the processor's cache.
_SLICE = 1 << 14
_SEVEN = np.uint64(7)
_MORE = 0x8080808080808080
# Masks of the seven bits of each of the first n bytes.
_WITHIN = np.array([(1 << (8 * size)) - 1 & ~_MORE for size in range(9)], dtype=np.uint64)


def varint(value: int) -> bytes:
    """Encode one value, as int64 or uint64."""
    rest, out = value & (2**64 - 1), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_varint(view: memoryview, at: int, where: str) -> tuple[int, int]:
    """Return the unsigned value at offset `at`, and the offset after it. Raises Corrupt naming `where`."""
    value = 0
    for digit in range(LENGTH_MAX):
        if at + digit >= len(view):
            raise Corrupt(f"{where} ends at byte {len(view)} inside a number")
        byte = view[at + digit]
        value |= (byte & 0x7F) << (7 * digit)
        if byte < 0x80:
            if value >= 2**64:
                raise Corrupt(f"{where} has a number of more than 64 bits at byte {at}")
            return value, at + digit + 1
    raise Corrupt(f"{where} has a number of more than {LENGTH_MAX} bytes at byte {at}")


def lengths(values: Words) -> Integers:
    """Return the number of bytes of each value as a varint."""
    sizes = np.ones(len(values), dtype=np.int64)
    for digit in range(1, LENGTH_MAX):
        sizes += values >= np.uint64(1 << (7 * digit))
    return sizes


def put_varints(out: Bytes, at: Integers, values: Words, sizes: Integers) -> None:
    """Write each value at its offset `at` in `out`. `sizes` are the values' `lengths`."""
    rest = values.copy()
    for digit in range(int(sizes.max(initial=0))):
        rows = np.flatnonzero(sizes > digit)
        part = (rest[rows] & np.uint64(0x7F)).astype(np.uint8)
        part |= np.where(sizes[rows] > digit + 1, 0x80, 0).astype(np.uint8)
        out[at[rows] + digit] = part
        rest >>= _SEVEN


def tagged(tag: int, values: Words) -> Bytes:
    """Encode each value with the same tag (one byte) before it, as Protobuf encodes a field that repeats."""
    if len(values) > _SLICE:
        return np.concatenate([tagged(tag, values[at : at + _SLICE]) for at in range(0, len(values), _SLICE)])
    sizes = lengths(values)
    table = np.empty((len(values), 1 + LENGTH_MAX), dtype=np.uint8)
    table[:, 0] = tag
    low = _split_groups(values & np.uint64(2**56 - 1)) | np.uint64(_MORE)
    table[:, 1:9] = low.astype("<u8").view(np.uint8).reshape(-1, 8)
    table[:, 9] = (values >> np.uint64(56)) | np.uint64(0x80)
    table[:, 10] = values >> np.uint64(63)
    rows = np.arange(len(values))
    table[rows, sizes] &= 0x7F
    encoded: Bytes = table[np.arange(1 + LENGTH_MAX) <= sizes[:, None]]
    return encoded


def decode_varints(data: Bytes, where: str) -> Words:
    """Return all values of a buffer that contains only varints."""
    ends = np.flatnonzero(data < 0x80)
    if not len(data):
        return np.zeros(0, dtype=np.uint64)
    if not len(ends) or int(ends[-1]) != len(data) - 1:
        raise Corrupt(f"{where} ends inside a number after {len(data)} bytes")
    starts = np.append(0, ends[:-1] + 1)
    return gather(data, starts, ends - starts + 1, where)


def gather(data: Bytes, starts: Integers, sizes: Integers, where: str) -> Words:
    """Return the values that start at `starts` and have `sizes` bytes. Raises Corrupt naming `where`."""
    if len(starts) > _SLICE:
        slices = [slice(at, at + _SLICE) for at in range(0, len(starts), _SLICE)]
        return np.concatenate([_gather(data, starts[part], sizes[part], where) for part in slices])
    return _gather(data, starts, sizes, where)


def _gather(data: Bytes, starts: Integers, sizes: Integers, where: str) -> Words:
    if not len(starts):
        return np.zeros(0, dtype=np.uint64)
    first, stop = int(starts[0]), int(starts[-1]) + int(sizes[-1])
    data, starts = data[first:stop], starts - first
    longest = int(sizes.max(initial=0))
    if longest > LENGTH_MAX:
        raise Corrupt(f"{where} has a number of {longest} bytes, a varint has at most {LENGTH_MAX}")
    padded = np.append(data, np.zeros(LENGTH_MAX, dtype=np.uint8))
    at_every_byte = np.ndarray((len(data) + 1,), dtype="<u8", buffer=padded, strides=(1,))
    values = _join_groups(at_every_byte[starts] & _WITHIN[np.minimum(sizes, 8)])
    for digit in (8, 9):
        rows = np.flatnonzero(sizes > digit)
        part = padded[starts[rows] + digit] & np.uint8(0x7F)
        if digit == LENGTH_MAX - 1 and int(part.max(initial=0)) > 1:
            raise Corrupt(f"{where} has a number of more than 64 bits")
        values[rows] |= part.astype(np.uint64) << np.uint64(7 * digit)
    return values


def _join_groups(eight: Words) -> Words:
    """Join the low seven bits of eight bytes to 56 bits, in three steps: to 14 bits, to 28 bits, to 56 bits."""
    pairs = (eight & np.uint64(0x007F007F007F007F)) | ((eight & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
    fours = (pairs & np.uint64(0x00003FFF00003FFF)) | ((pairs & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    whole: Words = (fours & np.uint64(0x0FFFFFFF)) | ((fours & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
    return whole


def _split_groups(values: Words) -> Words:
    """Split 56 bits into eight bytes of seven bits each. The inverse of `_join_groups`."""
    fours = (values & np.uint64(0x0FFFFFFF)) | ((values << np.uint64(4)) & np.uint64(0x0FFFFFFF00000000))
    pairs = (fours & np.uint64(0x00003FFF00003FFF)) | ((fours << np.uint64(2)) & np.uint64(0x3FFF00003FFF0000))
    eight: Words = (pairs & np.uint64(0x007F007F007F007F)) | ((pairs << np.uint64(1)) & np.uint64(0x7F007F007F007F00))
    return eight
