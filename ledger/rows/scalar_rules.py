"""Conversion of single values between Python and Arrow: one rule for each class that a field may have.

Rules
- A conversion never changes a value, or raises an error of `FAULTS`. Exceptions: a number may be rounded to
  the nearest float, and a time with a zone is read in UTC.
- All values of a column are converted together, by numpy. Reason: for times, `to_pylist` takes 20 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as of

FAULTS = pa.ArrowException, OverflowError, ValueError
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS_MIN, _MICROS_MAX = (
    (moment - _EPOCH) // timedelta(microseconds=1)
    for moment in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
)
_SPAN_MICROS_MAX = 2**63 - 1  # the least number, -2**63, is numpy's sign of a missing value
_DAYS_MIN, _DAYS_MAX = (day.toordinal() - _EPOCH.toordinal() for day in (date.min, date.max))
_MINUTE = timedelta(minutes=1)
_MICROS, _LOCAL_MICROS = pa.timestamp("us", "UTC"), pa.timestamp("us")


def arrow_name(kind: pa.DataType) -> str:
    """Return the name of an Arrow type. Arrow's own name of float32 is `float`, as Python's 64 bits."""
    return f"float{kind.bit_width}" if of.is_floating(kind) else str(kind)


class ScalarRule:
    """Conversion of the values of a class, whose columns have a type that `fits`. A new column has the type `column`.

    Values of the classes `also` are accepted, and values of the classes `never` are not, although they are subclasses.
    """

    zoned: bool | None = None
    """Whether values must have a time zone, or must have none. None for values of other kinds."""

    def __init__(
        self,
        fits: Callable[[pa.DataType], bool],
        column: pa.DataType,
        *,
        also: tuple[type, ...] = (),
        never: tuple[type, ...] = (),
    ) -> None:
        self.fits = fits
        self.column = column
        self.also = also
        self.never = never

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Return values without None as a column of type `kind`."""
        return pa.array(values, kind)

    def values(self, array: pa.Array) -> list[Any]:
        """Return the values of a column without nulls."""
        found: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return found


class _FloatRule(ScalarRule):
    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        found = pa.array(values, pa.float64())
        if kind == found.type:
            return found
        cast = found.cast(kind)
        if not np.array_equal(np.isfinite(np.asarray(cast)), np.isfinite(np.asarray(found))):
            raise OverflowError("the number is too large")
        return cast


class _DateRule(ScalarRule):
    def values(self, array: pa.Array) -> list[Any]:
        days = array.cast(pa.date32())
        _require_years(days.view(pa.int32()), _DAYS_MIN, _DAYS_MAX)
        return super().values(days)


class _TimeRule(ScalarRule):
    """Rule of times and durations, which have microseconds in Python. Arrow refuses to cast a finer value to them."""

    def __init__(self, fits: Callable[[pa.DataType], bool], column: pa.DataType, *, zoned: bool | None = None) -> None:
        super().__init__(fits, column)
        self.zoned = zoned

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        if self.zoned and any(
            offset % _MINUTE for offset in set(map(datetime.utcoffset, values)) if offset is not None
        ):
            raise OverflowError("the offset from UTC is no whole number of minutes")
        return self._bounded(pa.array(values, self.column)).cast(kind)

    def values(self, array: pa.Array) -> list[Any]:
        micros = self._bounded(array.cast(self.column))
        if not self.zoned:
            return super().values(micros)
        since_epoch = super().values(micros.view(pa.duration("us")))
        return list(map(_EPOCH.__add__, since_epoch))

    def _bounded(self, micros: pa.Array) -> pa.Array:
        """Return microseconds. Raises OverflowError for a number that no Python object has."""
        if of.is_timestamp(self.column):
            _require_years(micros.view(pa.int64()), _MICROS_MIN, _MICROS_MAX)
        elif of.is_duration(self.column) and not _between(micros.view(pa.int64()), -_SPAN_MICROS_MAX, _SPAN_MICROS_MAX):
            raise OverflowError(f"the duration is not above {-_SPAN_MICROS_MAX - 1} microseconds")
        return micros


def _between(numbers: pa.Array, least: int, most: int) -> bool:
    found = np.asarray(numbers)
    return not len(found) or bool(found.min() >= least and found.max() <= most)


def _require_years(numbers: pa.Array, least: int, most: int) -> None:
    if not _between(numbers, least, most):
        raise OverflowError("the year is not between 1 and 9999")


LOCAL_TIMES = _TimeRule(lambda kind: of.is_timestamp(kind) and kind.tz is None, _LOCAL_MICROS, zoned=False)
RULES: dict[Any, ScalarRule] = {
    bool: ScalarRule(of.is_boolean, pa.bool_()),
    int: ScalarRule(of.is_integer, pa.int64(), never=(bool,)),
    float: _FloatRule(of.is_floating, pa.float64(), also=(int,)),
    str: ScalarRule(lambda kind: of.is_string(kind) or of.is_large_string(kind), pa.string()),
    bytes: ScalarRule(
        lambda kind: of.is_binary(kind) or of.is_large_binary(kind) or of.is_fixed_size_binary(kind), pa.binary()
    ),
    date: _DateRule(of.is_date, pa.date32(), never=(datetime,)),
    datetime: _TimeRule(lambda kind: of.is_timestamp(kind) and kind.tz is not None, _MICROS, zoned=True),
    time: _TimeRule(of.is_time, pa.time64("us"), zoned=False),
    timedelta: _TimeRule(of.is_duration, pa.duration("us")),
    Decimal: ScalarRule(of.is_decimal, pa.null()),  # its digits must be declared, or registered
}
