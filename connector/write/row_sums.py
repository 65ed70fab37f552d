"""Sums over the rows of a batch. They do not depend on the order of rows, nor on their division between tasks.

The sink needs them if it cannot read the offsets of a batch (`connector.write.checkpoint`). Then the sums show whether
a repeated batch has the rows of the stored batch.

    number        sum over the 64 bits of each value, after a mix of these bits
    text, bytes   sum over all bytes, and over the mixed lengths of the values
    nested        the sums of the values inside, and of the lengths of lists

Columns and the fields of structs are taken in the order of their names, because a write matches both by name. Each
column also counts its nulls. All sums are modulo 2**64. Rows that swap values of one column have equal sums, and
so have texts of equal lengths whose bytes have equal sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_MASK = 2**64 - 1
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
_INT64 = np.int64


class RowSums:
    """Sums of the rows of one task, filled while the rows pass."""

    def __init__(self) -> None:
        self.sums: tuple[int, ...] = ()

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches, and add their rows."""
        for batch in batches:
            names = batch.schema.names
            columns = [batch.column(number) for number in sorted(range(len(names)), key=names.__getitem__)]
            found = [batch.num_rows, *(number for column in columns for number in _sums(column))]
            self.sums = added(self.sums, found)
            yield batch


def added(sums: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    """Return the sums of two sets of rows with equal columns. Empty sums belong to no rows."""
    if not sums or not more:
        return tuple(sums or more)
    return tuple((left + right) & _MASK for left, right in zip(sums, more, strict=True))


def sums_text(sums: Sequence[int]) -> str:
    """Return the sums as a text of fixed length; empty without sums."""
    if not sums:
        return ""
    return hashlib.blake2b(b"".join(number.to_bytes(8, "big") for number in sums), digest_size=16).hexdigest()


def _sums(column: pa.Array) -> Iterator[int]:
    """Yield the number of nulls of a column, and the sums of its values."""
    import pyarrow.compute as pc  # imported here, because a batch with known offsets needs no sums

    kind = column.type
    yield column.null_count
    if pa.types.is_struct(kind):
        for _, field in sorted(zip([f.name for f in kind], column.flatten(), strict=True), key=lambda pair: pair[0]):
            yield from _sums(field)
    elif pa.types.is_map(kind):
        yield from _sums(column.cast(pa.list_(kind.field(0))))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield _mixed(_zeroed(pc.list_value_length(column)))
        yield from _sums(column.flatten())
    elif pa.types.is_dictionary(kind):
        yield from _sums(column.dictionary_decode())
    elif _is_binary(kind):
        values = column.cast(pa.large_binary()).drop_null()
        yield _mixed(_zeroed(pc.binary_length(values)))
        yield _byte_sum(values)
    elif not pa.types.is_null(kind):
        yield _mixed(_words(column.drop_null()))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    checks = (
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
    )
    return any(check(kind) for check in checks)


def _zeroed(lengths: pa.Array) -> Any:
    import pyarrow.compute as pc  # see `_sums`

    return pc.fill_null(lengths, 0).cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)


def _byte_sum(values: pa.Array) -> int:
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return 0
    ends = np.frombuffer(offsets, _INT64)[values.offset : values.offset + len(values) + 1]
    return int(np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].sum(dtype=np.uint64))


def _words(values: pa.Array) -> Any:
    """Return the bits of fixed-width values as numbers of 64 bits."""
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif pa.types.is_decimal(kind):
        width = kind.bit_width // 8
        raw = np.frombuffer(values.buffers()[1], np.uint64)
        return raw[values.offset * width // 8 : (values.offset + len(values)) * width // 8]
    width = values.type.bit_width
    data = np.frombuffer(values.buffers()[1], f"u{width // 8}")
    return data[values.offset : values.offset + len(values)].astype(np.uint64)


def _mixed(words: Any) -> int:
    """Return the sum of the words after a mix, so that two values are not replaced by two others of equal sum."""
    mixed = (words ^ (words >> _SHIFT)) * _MIX
    return int((mixed ^ (mixed >> _SHIFT)).sum(dtype=np.uint64))
