"""Goal: commit metadata is read back exactly, and foreign changes are distinguished from publications and upkeep."""

from __future__ import annotations

import msgspec
import pytest
from pyspark.sql import types

from pyspark_ledger.connector.publish.request import Publishing
from pyspark_ledger.connector.publish.segment_rows import BY_DATE, PartitionColumn, require_types
from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.offload.table.commit_metadata import (
    Publication,
    TableChange,
    app_id,
    covers_unreviewed_commits,
    find_foreign_change,
    find_newest_segment,
    parse_publication,
    require_same_store,
)

ORDERS = "public/default/persistent/orders"


def segment(number: int, ledger: str = ORDERS, incarnation: str = "a", after: int | None = None) -> str:
    return Publication("segment", ledger, incarnation, number, f"{number}:9", 10, after).text()


def changes(*said: tuple[str, str | None]) -> list[TableChange]:
    """Return the changes newest first, as Delta lists them."""
    return [TableChange(version, *one) for version, one in reversed(list(enumerate(said)))]


def test_a_commit_says_what_it_is() -> None:
    said = msgspec.json.decode(segment(7))
    assert said == {
        "publication": 1, "kind": "segment", "ledger": ORDERS, "incarnation": "a", "segment": 7, "last": "7:9",
        "rows": 10,
    }  # fmt: skip
    assert parse_publication(segment(7)) == Publication("segment", ORDERS, "a", 7, "7:9", 10)
    assert msgspec.json.decode(segment(7, after=-1))["after"] == -1, "also for the first segment of a table"
    assert app_id(ORDERS, "a") != app_id(ORDERS, "b")


def test_a_copy_of_a_store_does_not_publish_to_the_table_of_its_original() -> None:
    """Both have segments of the same incarnation and number."""
    found = Publication("segment", ORDERS, "a", 7, "7:9", 10, store="original")
    with pytest.raises(Refused, match=r"segment 7 of .* from store original, this is store copy.*accept_changes"):
        require_same_store(found, "copy", "orders_table")
    for same in (found, Publication("segment", ORDERS, "a", 7), Publication("segment", ORDERS, "a", 7, store="")):
        require_same_store(same, "original", "orders_table")
    require_same_store(found, "", "orders_table")
    assert parse_publication(found.text()) == found


@pytest.mark.parametrize(
    "text", [None, "", "nightly load", "{", "{}", '{"publication":"x"}', '{"publication":1}', "[1]"]
)
def test_what_others_write_is_not_ours(text: str | None) -> None:
    assert parse_publication(text) is None


def test_a_later_release_is_not_guessed_at() -> None:
    with pytest.raises(Unsupported, match="publication 2"):
        parse_publication('{"publication":2,"kind":"segment"}')


def test_the_newest_segment_of_a_log() -> None:
    found = changes(
        ("WRITE", Publication("create").text()),
        ("WRITE", segment(1)),
        ("WRITE", segment(2, ORDERS + "-partition-1")),
        ("WRITE", segment(3)),
        ("OPTIMIZE", None),
        ("WRITE", segment(4, ORDERS + "-partition-1")),
    )
    newest = find_newest_segment(found, ORDERS)
    assert newest is not None
    assert newest.segment == 3
    assert find_newest_segment(found, "public/default/persistent/clicks") is None


@pytest.mark.parametrize(
    ("operation", "foreign"),
    [
        ("WRITE", True), ("DELETE", True), ("UPDATE", True), ("MERGE", True), ("RESTORE", True), ("TRUNCATE", True),
        ("REPLACE TABLE AS SELECT", True), ("STREAMING UPDATE", True), ("something of tomorrow", True),
        ("OPTIMIZE", False), ("VACUUM START", False), ("VACUUM END", False), ("SET TBLPROPERTIES", False),
        ("ADD COLUMNS", False), ("CREATE TABLE", False),
    ],
)  # fmt: skip
def test_only_changes_of_rows_are_somebody_elses(operation: str, *, foreign: bool) -> None:
    found = find_foreign_change(changes(("WRITE", segment(1)), (operation, None), ("OPTIMIZE", None)))
    assert (found is not None and found.operation == operation) is foreign
    assert find_foreign_change(changes((operation, None), ("WRITE", segment(1)))) is None, "before our newest commit"


def test_a_change_while_a_publisher_worked_is_noticed_by_the_next() -> None:
    told = changes(
        ("WRITE", Publication("create").text()),
        ("WRITE", segment(1, after=-1)),
        ("DELETE", None),
        ("OPTIMIZE", None),
        ("DELETE", Publication("retention", ORDERS, "a").text()),
        ("WRITE", segment(2, after=-1)),
        ("WRITE", segment(3, after=-1)),
    )
    found = find_foreign_change(told)
    assert found is not None
    assert found.version == 2
    assert covers_unreviewed_commits(told)
    assert not covers_unreviewed_commits(told[:6]), "version 0 is missing from the list and unreviewed"
    accepted = [TableChange(7, "WRITE", segment(4, after=6)), *told]
    assert find_foreign_change(accepted) is None
    assert covers_unreviewed_commits(accepted[:2])
    assert not covers_unreviewed_commits([TableChange(9, "WRITE", segment(5, after=6)), TableChange(8, "DELETE")])


def test_partition_columns_are_read_and_refused() -> None:
    assert Publishing.of().partitions == BY_DATE
    assert Publishing.of([]).partitions == ()
    found = Publishing.of(["__publishDate", "country", "hour = hour(__publishTime)"]).partitions
    assert [one.name for one in found] == ["__publishDate", "country", "hour"]
    assert found[0] == BY_DATE[0]
    assert found[2].expression == "hour(__publishTime)"
    for wrong in ("", "=x", "a="):
        with pytest.raises(Refused, match="no partition column"):
            PartitionColumn.parse(wrong)
    with pytest.raises(Refused, match="name a column twice"):
        Publishing.of(["a", "a"])
    with pytest.raises(Refused, match="file_bytes is 7"):
        Publishing.of(file_bytes=7)
    with pytest.raises(Refused, match="partition_by is the text 'country'"):
        Publishing.of("country")


@pytest.mark.parametrize("wish", [{"file_bytes": "1m"}, {"seal_after_ms": -5}, {"optimize_after": 0.5}])
def test_numbers_of_a_wish_are_whole_and_not_negative(wish: dict[str, object]) -> None:
    name, value = next(iter(wish.items()))
    with pytest.raises(Refused, match=f"{name} is {value!r}, expected a whole number"):
        Publishing.of(**wish)


@pytest.mark.parametrize("wish", [{"key": "user"}, {"deleted_when": "page IS NULL"}])
def test_what_is_said_of_a_view_that_is_not_wanted_is_refused(wish: dict[str, str]) -> None:
    with pytest.raises(Refused, match=f"{next(iter(wish))} is '{next(iter(wish.values()))}', but there is no view"):
        Publishing.of(**wish)
    assert Publishing.of(latest="./view", **wish).latest == "./view"


@pytest.mark.parametrize(
    "kind",
    [
        types.DayTimeIntervalType(),
        types.ArrayType(types.StructType().add("took", types.DayTimeIntervalType())),
        types.MapType(types.StringType(), types.YearMonthIntervalType()),
    ],
)
def test_a_type_that_delta_has_not_is_refused_wherever_it_is(kind: types.DataType) -> None:
    schema = types.StructType().add("id", types.LongType()).add("x", kind)
    with pytest.raises(Refused, match=r"column 'x' is .*, which is not published to Delta tables"):
        require_types(schema, schema.names)


def test_a_column_without_a_type_is_published_when_it_has_one() -> None:
    nested = types.StructType().add("x", types.ArrayType(types.NullType()))
    with pytest.raises(Refused, match=r"column 'x' is array<void>: a part of it was always null"):
        require_types(nested, ["x"])
    require_types(types.StructType().add("x", types.NullType()), ["x"])
