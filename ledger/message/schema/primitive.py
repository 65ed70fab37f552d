"""Pulsar's primitive types: bytes of a fixed width, texts, and raw bytes.

A number after a name is a width in bytes. All numbers are big-endian.

    BOOLEAN 1 · INT8 1 · INT16 2 · INT32, FLOAT 4 · INT64, DOUBLE 8
    DATE, TIME, TIMESTAMP  milliseconds since 1970, 8                              moments in UTC, as Java's `Date`
    INSTANT  seconds 8, nanoseconds 4 · LOCAL_DATE  day 8 · LOCAL_TIME  nanosecond of the day 8
    LOCAL_DATE_TIME  day 8, nanosecond of the day 8

Rules
- A payload cannot be decoded if it has another width, is invalid UTF-8, or is a time outside the range of a timestamp
  in microseconds. Its row is null and has a reason in `Values.wrong`.
- Nanoseconds are truncated to Spark's microseconds. Exception: LOCAL_TIME becomes a number of nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_ledger.ledger.message.byte_ranges import Bytes, Flags, Integers, ranges_of
from pyspark_ledger.ledger.message.schema.values import Values

Numbers = npt.NDArray[Any]
_UTC, _LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_DAY_US = 24 * 3600 * 1_000_000
_DAYS_MAX, _SECONDS_MAX, _MS_MAX = 2**63 // _DAY_US - 1, 2**63 // 10**6 - 1, 2**63 // 1000 - 1
_DAY_NS = _DAY_US * 1000


def _same(column: Numbers) -> tuple[Numbers, Flags]:
    return column, np.ones(len(column), dtype=np.bool_)


def _milliseconds(column: Numbers) -> tuple[Numbers, Flags]:
    fits = np.abs(column.astype(np.float64)) <= _MS_MAX
    return np.where(fits, column, 0) * 1000, fits


def _days(column: Numbers) -> tuple[Numbers, Flags]:
    fits = (column >= -(2**31)) & (column < 2**31)
    return np.where(fits, column, 0).astype(np.int32), fits


def _time_of_day(column: Numbers) -> tuple[Numbers, Flags]:
    return column, (column >= 0) & (column < _DAY_NS)


def _instant(pair: Numbers) -> tuple[Numbers, Flags]:
    seconds, nanos = pair["f0"].astype(np.int64), pair["f1"].astype(np.int64)
    fits = (seconds >= -_SECONDS_MAX) & (seconds <= _SECONDS_MAX) & (nanos >= 0) & (nanos < 10**9)
    return np.where(fits, seconds, 0) * 10**6 + nanos // 1000, fits


def _local_date_time(pair: Numbers) -> tuple[Numbers, Flags]:
    days, nanos = pair["f0"].astype(np.int64), pair["f1"].astype(np.int64)
    fits = (days >= -_DAYS_MAX) & (days <= _DAYS_MAX) & (nanos >= 0) & (nanos < _DAY_NS)
    return np.where(fits, days, 0) * _DAY_US + nanos // 1000, fits


@dataclass(frozen=True, slots=True)
class _Layout:
    """Layout of a type of fixed width, with the type of its column.

    `convert` maps the numbers of payloads to numbers of the column. It also returns which of these numbers are valid in
    the type of the column.
    """

    dtype: np.dtype[Any]
    native: str
    type: pa.DataType
    convert: Callable[[Numbers], tuple[Numbers, Flags]] = _same


_FIXED = {
    "BOOLEAN": _Layout(np.dtype(">u1"), "u1", pa.bool_()),
    "INT8": _Layout(np.dtype(">i1"), "i1", pa.int8()),
    "INT16": _Layout(np.dtype(">i2"), "i2", pa.int16()),
    "INT32": _Layout(np.dtype(">i4"), "i4", pa.int32()),
    "INT64": _Layout(np.dtype(">i8"), "i8", pa.int64()),
    "FLOAT": _Layout(np.dtype(">f4"), "f4", pa.float32()),
    "DOUBLE": _Layout(np.dtype(">f8"), "f8", pa.float64()),
    "DATE": _Layout(np.dtype(">i8"), "i8", _UTC, _milliseconds),
    "TIME": _Layout(np.dtype(">i8"), "i8", _UTC, _milliseconds),
    "TIMESTAMP": _Layout(np.dtype(">i8"), "i8", _UTC, _milliseconds),
    "INSTANT": _Layout(np.dtype(">i8,>i4"), "", _UTC, _instant),
    "LOCAL_DATE": _Layout(np.dtype(">i8"), "i8", pa.date32(), _days),
    "LOCAL_TIME": _Layout(np.dtype(">i8"), "i8", pa.int64(), _time_of_day),
    "LOCAL_DATE_TIME": _Layout(np.dtype(">i8,>i8"), "", _LOCAL, _local_date_time),
}


class PrimitiveCodec:
    """Codec of a primitive type, by Pulsar's name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._layout = _FIXED.get(name)
        known = {"STRING": pa.string(), "BYTES": pa.binary()}
        self.type: pa.DataType = self._layout.type if self._layout else known[name]

    def decode(self, payloads: pa.Array) -> Values:
        if self._layout is not None:
            return self._fixed(payloads, self._layout)
        return _texts(payloads) if self._name == "STRING" else Values(payloads)

    def _fixed(self, payloads: pa.Array, layout: _Layout) -> Values:
        data, starts, ends = ranges_of(payloads)
        width = layout.dtype.itemsize
        right = ends - starts == width
        wrong = {
            row: f"{int(ends[row] - starts[row])} bytes, {self._name} takes {width}"
            for row in np.flatnonzero(~right).tolist()
        }
        column = _fixed_rows(data, starts[right], width).view(layout.dtype).reshape(-1)
        numbers, fits = layout.convert(column.astype(layout.native) if layout.native else column)
        rows = np.flatnonzero(right)
        wrong |= dict.fromkeys(rows[~fits].tolist(), f"a {self._name} outside of the range of {self.type}")
        array = self._column(numbers)
        if wrong:
            place = np.zeros(len(payloads), dtype=np.int64)
            place[rows] = np.arange(len(rows))
            lost = np.zeros(len(payloads), dtype=np.bool_)
            lost[list(wrong)] = True
            array = array.take(pa.array(place, mask=lost))
        return Values(array, wrong)

    def _column(self, numbers: Numbers) -> pa.Array:
        if pa.types.is_boolean(self.type):
            return pa.array(numbers != 0)
        if pa.types.is_timestamp(self.type) or pa.types.is_date(self.type):
            return pa.array(numbers).view(self.type)
        return pa.array(numbers, self.type)


def _fixed_rows(data: Bytes, starts: Integers, width: int) -> Bytes:
    """Return a table whose row i is the `width` bytes from `starts[i]`."""
    if len(starts) and (np.diff(starts) == width).all():
        return data[starts[0] : starts[0] + len(starts) * width].reshape(-1, width).copy()
    table: Bytes = data[starts[:, None] + np.arange(width)]
    return table


def _texts(payloads: pa.Array) -> Values:
    texts = payloads.view(pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        rows = {row: text for row, text in enumerate(payloads.to_pylist()) if _is_broken(text)}
        broken = np.zeros(len(payloads), dtype=np.bool_)
        broken[list(rows)] = True
        import pyarrow.compute as pc

        kept = pc.if_else(pa.array(broken), pa.scalar(None, pa.binary()), payloads)
        return Values(kept.cast(pa.string()), {row: f"a STRING that is no UTF-8: {rows[row][:20]!r}" for row in rows})
    return Values(texts)


def _is_broken(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False
