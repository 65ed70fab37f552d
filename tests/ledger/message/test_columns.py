"""Goal: only types without a loss widen. Method: tables of types, and casts of extreme values."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.errors import Outdated, Refused
from pyspark_ledger.ledger.message.columns import (
    cast_column,
    common_type,
    is_typed,
    require_columns,
    typed_type,
    widens,
)

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
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), [[("k", 1)], []]),
    (pa.map_(pa.int8(), pa.list_(pa.int8())), pa.map_(pa.int16(), pa.list_(pa.int64())), [[(1, [2, None])]]),
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
    (pa.struct([("x", pa.int8())]), pa.struct([("y", pa.int16()), ("x", pa.int16())])),
    (pa.struct([("x", pa.int16())]), pa.struct([("x", pa.int8()), ("y", pa.int16())])),
    (pa.list_(pa.int64()), pa.list_(pa.int32())),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.string())),
    (pa.map_(pa.string(), pa.int32()), pa.list_(pa.int32())),
    (pa.int8(), pa.null()),
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


PERSON = pa.struct([("first", pa.string()), ("last", pa.string())])
SWAPPED = pa.struct([("last", pa.string()), ("first", pa.string())])
ADA, GRACE = {"first": "Ada", "last": "King"}, {"first": None, "last": "Hopper"}
NESTED: list[tuple[Callable[[pa.DataType], pa.DataType], Any]] = [
    (lambda kind: kind, [ADA, None, GRACE]),
    (lambda kind: pa.struct([("id", pa.int8()), ("who", kind)]), [{"id": 1, "who": ADA}, None, {"id": 2, "who": None}]),
    (pa.list_, [[ADA], None, [], [GRACE, None]]),
    (lambda kind: pa.list_(pa.list_(kind)), [[[ADA], None], [[]], [[GRACE]]]),
    (lambda kind: pa.map_(pa.string(), kind), [[("a", ADA)], None, [], [("b", GRACE), ("c", None)]]),
    (lambda kind: pa.map_(kind, pa.int8()), [[(ADA, 1)], [(GRACE, None)]]),
]


@pytest.mark.parametrize(("around", "values"), NESTED)
@pytest.mark.parametrize(("start", "length"), [(0, None), (1, 2), (2, None), (0, 0)])
def test_fields_of_structs_are_matched_by_name(
    around: Callable[[pa.DataType], pa.DataType], values: list[Any], start: int, length: int | None
) -> None:
    given = pa.array(values, around(SWAPPED)).slice(start, length)
    assert given.to_pylist() == pa.array(values, around(PERSON)).slice(start, length).to_pylist()
    kept = cast_column(given, pa.field("c", around(PERSON)), "the rows")
    kept.validate(full=True)
    assert kept.equals(pa.array(values, around(PERSON)).slice(start, length))


@pytest.mark.parametrize("kind", [pa.large_list(SWAPPED), pa.list_(SWAPPED, 2)])
def test_other_lists_are_matched_by_name_too(kind: pa.DataType) -> None:
    given = pa.array([[ADA, GRACE], None, [GRACE, ADA]], kind).slice(1)
    kept = cast_column(given, pa.field("c", pa.list_(PERSON)), "the rows")
    assert kept.to_pylist() == [None, [GRACE, ADA]]


def test_fields_in_another_order_may_be_narrower_and_lose_no_value() -> None:
    given = pa.struct([("y", pa.int64()), ("x", pa.int8())])
    field = pa.field("c", pa.struct([("x", pa.int64()), ("y", pa.int16())]))
    assert cast_column(pa.array([{"y": 2, "x": 1}], given), field, "rows").to_pylist() == [{"x": 1, "y": 2}]
    with pytest.raises(Refused, match="'c' of rows"):
        cast_column(pa.array([{"y": 2**40, "x": 1}], given), field, "rows")


@pytest.mark.parametrize(("around", "path"), [(NESTED[0][0], "c"), (pa.list_, "c.element"), (NESTED[4][0], "c.value")])
def test_a_writers_struct_has_exactly_the_ledgers_fields(
    around: Callable[[pa.DataType], pa.DataType], path: str
) -> None:
    first = pa.struct([("first", pa.string())])
    ledger, fewer = pa.schema([("c", around(PERSON))]), pa.schema([("c", around(first))])
    with pytest.raises(Refused, match=rf"'{path}.last' \(string\) missing"):
        require_columns(fewer, ledger, "people")
    with pytest.raises(Refused, match=rf"'{path}.last' \(string\) not in the ledger"):
        require_columns(ledger, fewer, "people")
    require_columns(pa.schema([("c", around(SWAPPED))]), ledger, "people")


VOID = pa.null()
AROUND: list[tuple[Callable[[pa.DataType], pa.DataType], Any]] = [
    (lambda kind: kind, lambda value: value),
    (pa.list_, lambda value: [value, None]),
    (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
    (lambda kind: pa.struct([("x", kind), ("n", pa.int8())]), lambda value: {"x": value, "n": 1}),
    (lambda kind: pa.list_(pa.struct([("x", pa.list_(kind))])), lambda value: [{"x": [value]}]),
]


@pytest.mark.parametrize(("kind", "of"), AROUND)
def test_null_gets_the_type_of_the_first_value_at_every_depth(
    kind: Callable[[pa.DataType], pa.DataType], of: Callable[[Any], Any]
) -> None:
    void, text = kind(VOID), kind(pa.string())
    assert (is_typed(void), is_typed(text)) == (False, True)
    assert typed_type(void, text) == text
    assert typed_type(text, void) == text
    assert typed_type(text, kind(pa.int8())) == text, "a type is kept"
    assert widens(void, text)
    assert not widens(text, void)
    nulls, field = pa.array([of(None), None], void), pa.field("c", text)
    assert cast_column(nulls, field, "entry 3:17").to_pylist() == [of(None), None]
    assert cast_column(nulls.cast(text) if kind(VOID) == VOID else nulls, pa.field("c", void), "rows") == nulls
    with pytest.raises(Outdated, match=r"column 'c' of entry 3:17 is .*but it was .* planned\. Start again: call load"):
        cast_column(pa.array([of("gift")], text), pa.field("c", void), "entry 3:17")


def test_a_value_of_an_added_field_ends_an_outdated_read() -> None:
    more = pa.struct([("x", pa.int8()), ("y", pa.string())])
    with pytest.raises(Outdated, match="Start again: call load"):
        cast_column(pa.array([[{"x": 1, "y": "b"}]], pa.list_(more)), pa.field("c", pa.list_(WIDER[7][0])), "entry")


def test_two_types_have_a_common_one_if_no_value_is_lost() -> None:
    mixed = [
        pa.struct([("x", pa.int8()), ("y", pa.int64())]),
        pa.struct([("y", pa.int8()), ("x", pa.int16()), ("z", VOID)]),
    ]
    for wrap in (lambda kind: kind, pa.list_, lambda kind: pa.map_(kind, kind)):
        both = common_type(*map(wrap, mixed))
        assert both == wrap(pa.struct([("x", pa.int16()), ("y", pa.int64()), ("z", VOID)]))
        assert common_type(wrap(mixed[0]), wrap(pa.struct([("x", pa.string())]))) is None
    twice = pa.struct([("x", pa.int8()), ("x", pa.int8())])
    assert common_type(twice, mixed[0]) is None
