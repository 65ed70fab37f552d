"""Goal: equal rows have equal sums in any order and division, other rows do not. Method: batches of every type."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.connector.write.row_sums import RowSums, added, sums_text

STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [1, 2, None, -4],
    pa.int64(): [1, 2, None, -(2**63)],
    pa.float32(): [1.5, None, float("inf"), -2.0],
    pa.float64(): [1.5, 2.5, None, -0.25],
    pa.bool_(): [True, False, None, True],
    pa.string(): ["", "a", None, "bcd"],
    pa.large_string(): ["x", "yz", None, ""],
    pa.binary(): [b"", b"a", None, b"bcd"],
    pa.binary(3): [b"abc", None, b"def", b"ghj"],
    pa.date32(): [dt.date(2020, 1, 1), None, dt.date(1, 1, 1), dt.date(9999, 1, 1)],
    pa.timestamp("us", "UTC"): [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None, None, None],
    pa.duration("us"): [dt.timedelta(1), None, dt.timedelta(-3), dt.timedelta(0)],
    pa.decimal128(38, 2): [Decimal("1.25"), None, Decimal("-7.00"), Decimal("99999999999999999999.99")],
    STRUCT: [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 4, "b": None}],
    pa.list_(pa.int32()): [[1, 2], None, [], [3, None]],
    pa.list_(STRUCT): [[{"a": 1, "b": "x"}], None, [], [None, {"a": 2, "b": "z"}]],
    pa.map_(pa.string(), pa.int32()): [[("k", 1)], [("k", 2)], [], [("l", 2), ("m", None)]],
    pa.null(): [None, None, None, None],
}


def sums_of(batches: list[pa.RecordBatch]) -> tuple[int, ...]:
    sums = RowSums()
    assert list(sums.counted(batches)) == batches
    return sums.sums


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_sums_do_not_depend_on_order_and_division(kind: pa.DataType) -> None:
    column = pa.array(VALUES[kind] * 5, kind)
    whole = pa.record_batch({"c": column})
    order = list(range(len(column)))
    random.Random(1).shuffle(order)
    shuffled = whole.take(pa.array(order))
    tasks = [sums_of([shuffled.slice(0, 3), shuffled.slice(3, 4)]), sums_of([]), sums_of([shuffled.slice(7)])]
    assert added(added(tasks[0], tasks[1]), tasks[2]) == sums_of([whole])
    assert sums_of([whole.slice(1)]) != sums_of([whole])


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.float64(), pa.timestamp("us")], ids=str)
def test_two_numbers_are_not_two_others_of_the_same_sum(kind: pa.DataType) -> None:
    pairs = [sums_of([pa.record_batch({"c": pa.array(pair, pa.int64()).cast(kind)})]) for pair in ([1, 4], [2, 3])]
    assert pairs[0] != pairs[1]
    lengths = [sums_of([pa.record_batch({"c": pa.array([b"a" * n for n in pair])})]) for pair in ([1, 4], [2, 3])]
    assert lengths[0] != lengths[1]


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind != pa.null()], ids=str)
def test_another_value_gives_other_sums(kind: pa.DataType) -> None:
    values = VALUES[kind]
    rows = pa.record_batch({"c": pa.array(values[:2], kind)})
    other = pa.record_batch({"c": pa.array([values[0], values[0]], kind)})
    assert sums_of([rows]) != sums_of([other])


def test_a_text_of_sums_has_a_fixed_length() -> None:
    assert sums_text(()) == ""
    assert len(sums_text((1,))) == len(sums_text((2**64 - 1,) * 50)) == 32


def test_the_order_of_columns_and_fields_does_not_matter() -> None:
    rows = [{"id": n, "s": {"x": n, "y": f"t{n}"}, "l": [{"x": 1, "y": 2}]} for n in range(3)]
    turned = [{"l": [{"y": 2, "x": 1}], "s": {"y": f"t{n}", "x": n}, "id": n} for n in range(3)]
    one, other = (sums_of([pa.RecordBatch.from_pylist(given)]) for given in (rows, turned))
    assert one == other
    assert one != sums_of([pa.RecordBatch.from_pylist([row | {"s": {"x": row["id"], "y": "t"}} for row in rows])])
