"""Goal: fields of structs in any order keep their values. Method: a table of nested types.

`to_pylist` returns structs as dictionaries, whose comparison ignores the order of the fields.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.columns import ColumnFit, cast_column, require_columns
from pyspark_ledger.ledger.message.struct_fields import lacking_fields, match_fields

GIVEN = pa.struct([("y b", pa.string()), ("x", pa.int32())])
WANTED = pa.struct([("x", pa.int32()), ("y b", pa.string())])
STRICT = pa.struct([pa.field("x", pa.int32(), nullable=False), ("y b", pa.string())])
A, B, NULLS = {"y b": "ä", "x": 1}, {"y b": None, "x": 2}, {"y b": None, "x": None}
LISTS = [[A, None, B], None, [], [NULLS], [B, A]]
PAIRS = [[("k", A), ("l", None)], None, [], [("k", NULLS)], [("m", B)]]
CASES: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (GIVEN, WANTED, [A, None, B, NULLS, A]),
    (GIVEN, STRICT, [A, None, B, B, A]),
    (STRICT, GIVEN, [A, None, B, B, A]),
    (pa.struct([("s", GIVEN), ("i", pa.int8())]), pa.struct([("i", pa.int8()), ("s", WANTED)]),
     [{"s": A, "i": 1}, None, {"s": None, "i": 2}, {"s": NULLS, "i": None}, {"s": B, "i": 3}]),
    (pa.list_(GIVEN), pa.list_(WANTED), LISTS),
    (pa.large_list(GIVEN), pa.large_list(WANTED), LISTS),
    (pa.large_list(GIVEN), pa.list_(WANTED), LISTS),
    (pa.list_(pa.list_(GIVEN)), pa.list_(pa.large_list(WANTED)), [LISTS, None, [], [None], [[A]]]),
    (pa.list_(GIVEN, 2), pa.list_(WANTED, 2), [[A, B], None, [None, NULLS], [B, B], [A, A]]),
    (pa.list_(GIVEN, 2), pa.list_(WANTED), [[A, B], None, [None, NULLS], [B, B], [A, A]]),
    (pa.map_(pa.string(), GIVEN), pa.map_(pa.string(), WANTED), PAIRS),
    (pa.map_(GIVEN, pa.int8()), pa.map_(WANTED, pa.int8()), [[(A, 1), (B, None)], None, [], [(B, 2)], [(A, 3)]]),
    (pa.map_(pa.string(), pa.list_(GIVEN)), pa.map_(pa.string(), pa.list_(WANTED)),
     [[("k", [A, None])], None, [], [("k", None), ("l", [B])], [("m", [])]]),
    (pa.struct([("n", pa.null()), ("x", pa.int32())]), pa.struct([("x", pa.int64()), ("n", WANTED)]),
     [{"n": None, "x": 1}, None, {"n": None, "x": None}, {"n": None, "x": 2}, {"n": None, "x": 3}]),
    (pa.null(), WANTED, [None] * 5),
    (pa.list_(WANTED), pa.null(), [None] * 5),
]  # fmt: skip
WIDE = pa.struct([("x", pa.int64()), ("y b", pa.string())])


@pytest.mark.parametrize(("given", "wanted", "values"), CASES, ids=str)
def test_fields_in_another_order_keep_their_values(given: pa.DataType, wanted: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, given)
    # A slice has offsets that do not start at 0, and so have the columns that follow a slice in one buffer.
    for array, rows in (
        (column, values),
        (column[1:4], values[1:4]),
        (pa.concat_arrays([column[2:], column[:2]]), values[2:] + values[:2]),
        (column.take(pa.array([4, 0, None, 2])), [values[4], values[0], None, values[2]]),
        (column[2:2], []),
    ):
        found = cast_column(array, pa.field("c", wanted), "entry 3:17")
        found.validate(full=True)
        assert found.type == wanted
        assert found.to_pylist() == rows


def test_fields_are_matched_and_cast_in_both_directions() -> None:
    column = pa.array([[A, B], None, [None]], pa.list_(GIVEN))
    wide = cast_column(column, pa.field("c", pa.list_(WIDE)), "entry 3:17")
    assert wide.to_pylist() == column.to_pylist()
    assert cast_column(wide, pa.field("c", pa.list_(GIVEN)), "entry 3:17") == column
    large = pa.array([[{"x": 2**40, "y b": ""}]], pa.list_(WIDE))
    with pytest.raises(Refused, match=r"column 'c' of entry 3:17 .* cannot become"):
        cast_column(large, pa.field("c", pa.list_(GIVEN)), "entry 3:17")


def test_a_dictionary_of_structs_is_matched() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1]), pa.array([A, B], GIVEN))
    found = cast_column(column, pa.field("c", WANTED), "entry 3:17")
    assert found.type == WANTED
    assert found.to_pylist() == [B, None, A, B]


def test_columns_in_order_are_not_copied() -> None:
    column = pa.array(LISTS, pa.list_(GIVEN))
    assert match_fields(column, column.type) is column
    text = column.values.field("y b")
    moved = match_fields(column, pa.list_(WANTED)).values.field("y b")
    assert [buffer.address for buffer in moved.buffers() if buffer] == [b.address for b in text.buffers() if b]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (WANTED, pa.struct([("x", pa.int32())])),
        (pa.struct([("X", pa.int32()), ("y b", pa.string())]), WANTED),
        (pa.struct([("x", pa.int32()), ("x", pa.int32())]), pa.struct([("x", pa.int64()), ("x", pa.int64())])),
    ],
    ids=str,
)
def test_a_struct_with_other_fields_loses_none(given: pa.DataType, wanted: pa.DataType) -> None:
    for wrap in (lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)):
        column = pa.nulls(1, wrap(given))
        with pytest.raises(Refused, match=r"column 'c' of entry 3:17 is ") as refused:
            cast_column(column, pa.field("c", wrap(wanted)), "entry 3:17")
        assert "a struct has the fields" in str(refused.value.__cause__)


def test_a_field_that_a_struct_lacks_becomes_null() -> None:
    for wrap, around in (
        (lambda kind: kind, lambda value: value),
        (pa.list_, lambda value: [value, None]),
        (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
    ):
        given = pa.array([None, around({"x": 1}), around({"x": 2})], wrap(pa.struct([("x", pa.int32())]))).slice(1)
        found = cast_column(given, pa.field("c", wrap(WANTED)), "entry 3:17")
        found.validate(full=True)
        assert found.to_pylist() == [around({"y b": None, "x": number}) for number in (1, 2)]


def test_lacking_fields_are_named_by_their_paths() -> None:
    more = pa.struct([("x", pa.int32()), ("y b", pa.struct([("z", pa.int8())])), ("n", pa.int8())])
    less = pa.struct([("y b", pa.struct([]))])
    for wrap, path in (
        (lambda kind: kind, "c"),
        (pa.list_, "c.element"),
        (lambda kind: pa.map_(kind, kind), "c.value"),
    ):
        found = [field.name for field in lacking_fields(wrap(less), wrap(more), "c")]
        assert found[-3:] == [f"{path}.x", f"{path}.y b.z", f"{path}.n"]
        assert lacking_fields(wrap(more), wrap(less), "c") == []


def test_require_columns_names_missing_and_new_fields() -> None:
    registered = pa.schema([("id", pa.int32()), ("s", pa.list_(WANTED))])
    require_columns(pa.schema([("s", pa.list_(GIVEN)), ("id", pa.int32())]), registered, "people")
    other = pa.list_(pa.struct([("x", pa.int32()), ("z", pa.int8())]))
    words = r"column 's\.element\.y b' \(string\) missing, and column 's\.element\.z' \(int8\) not in the ledger"
    with pytest.raises(Refused, match=words):
        require_columns(pa.schema([("id", pa.int32()), ("s", other)]), registered, "people")


def test_fit_matches_the_fields_of_each_batch() -> None:
    target = pa.schema([("id", pa.int32()), ("s", WANTED)])
    fit = ColumnFit(target)
    for kind in (GIVEN, WANTED, GIVEN):
        batch = pa.record_batch([pa.array([A, None], kind), pa.array([1, 2])], ["s", "id"])
        found = fit.fit(batch, "the frame")
        assert found.schema == target
        assert found.to_pylist() == [{"id": 1, "s": A}, {"id": 2, "s": None}]
