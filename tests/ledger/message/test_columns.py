"""Goal: only types without a loss widen. Method: tables of types, and casts of extreme values."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.columns import cast_column, widens

DECIMAL = decimal.Decimal
WIDER: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (pa.int8(), pa.int16(), [-128, 127]),
    (pa.int32(), pa.int64(), [-(2**31), 2**31 - 1]),
    (pa.float32(), pa.float64(), [0.5, float("inf"), -0.0]),
    (pa.date32(), pa.timestamp("us"), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.decimal128(5, 2), pa.decimal128(9, 4), [DECIMAL("-999.99")]),
    (pa.decimal128(5, 2), pa.decimal128(6, 2), [DECIMAL("999.99")]),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), [[1, None], []]),
    (pa.struct([("x", pa.int8())]), pa.struct([("x", pa.int64())]), [{"x": 1}, {"x": None}]),
    (pa.list_(pa.struct([("x", pa.int8())])), pa.list_(pa.struct([("x", pa.int16())])), [[{"x": 1}, None]]),
]
OTHER = [
    (pa.int64(), pa.float64()),
    (pa.int32(), pa.uint64()),
    (pa.uint8(), pa.int64()),
    (pa.int32(), pa.string()),
    (pa.date32(), pa.timestamp("us", "UTC")),
    (pa.decimal128(5, 2), pa.decimal128(6, 4)),
    (pa.decimal128(5, 2), pa.decimal128(9, 1)),
    (pa.string(), pa.large_string()),
    (pa.struct([("x", pa.int8())]), pa.struct([("y", pa.int16())])),
    (pa.struct([("x", pa.int8())]), pa.struct([("x", pa.int16()), ("y", pa.int16())])),
    (pa.list_(pa.int64()), pa.list_(pa.int32())),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(("narrow", "wide", "values"), WIDER, ids=str)
def test_every_value_of_a_narrow_type_has_its_place(narrow: pa.DataType, wide: pa.DataType, values: list[Any]) -> None:
    assert widens(narrow, wide)
    assert not widens(wide, narrow)
    assert not widens(narrow, narrow)
    column = pa.array([*values, None], narrow)
    assert column.cast(wide).cast(narrow) == column


@pytest.mark.parametrize(("one", "other"), OTHER, ids=str)
def test_other_types_do_not_widen(one: pa.DataType, other: pa.DataType) -> None:
    assert not widens(one, other)


LOST: list[tuple[pa.DataType, pa.DataType, Any]] = [
    (pa.float32(), pa.float64(), 0.1),
    (pa.float32(), pa.float64(), 1e300),
    (pa.date32(), pa.timestamp("us"), dt.datetime(2026, 11, 23, 23, 59, 59)),  # noqa: DTZ001
    (pa.int32(), pa.int64(), 2**31),
    (pa.decimal128(5, 2), pa.decimal128(9, 4), DECIMAL("1.0001")),
    (pa.list_(pa.float32()), pa.list_(pa.float64()), [0.5, 0.1]),
    (pa.struct([("x", pa.date32())]), pa.struct([("x", pa.timestamp("us"))]), {"x": dt.datetime(1, 1, 1, 1)}),  # noqa: DTZ001
]


@pytest.mark.parametrize(("narrow", "wide", "value"), LOST, ids=str)
def test_a_value_that_a_narrow_column_would_lose_is_refused(narrow: pa.DataType, wide: pa.DataType, value: Any) -> None:
    with pytest.raises(Refused, match=r"column 'c' of entry 3:17 .* cannot become"):
        cast_column(pa.array([None, value], wide), pa.field("c", narrow), "entry 3:17")


@pytest.mark.parametrize(("narrow", "wide", "values"), WIDER, ids=str)
def test_a_value_that_fits_becomes_narrow(narrow: pa.DataType, wide: pa.DataType, values: list[Any]) -> None:
    column = pa.array([*values, None], narrow)
    assert cast_column(column.cast(wide), pa.field("c", narrow), "entry 3:17") == column


def test_nan_becomes_narrow() -> None:
    column = pa.array([float("nan"), float("-inf"), None, -0.0, 0.5], pa.float64())
    found = cast_column(column, pa.field("c", pa.float32()), "entry 3:17")
    assert [str(value) for value in found.to_pylist()] == ["nan", "-inf", "None", "-0.0", "0.5"]
