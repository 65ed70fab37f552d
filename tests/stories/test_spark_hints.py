"""Goal: the advice of a refused write can be followed, and then stores the values that the rows had.

Method: real Spark evaluates the advised expression. Structs are also written and read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_ledger.connector.schema import columns_to_write, merged_columns, require_writable
from pyspark_ledger.ledger.errors import Refused

pytestmark = [pytest.mark.thorough, pytest.mark.feature("the sink: routing, repeated batches, refusals")]
CAST = re.compile(r"Cast it: (col\(.*?\)\.cast\((['\"]).*?\2\))(;|$)")
# The ledger's column, the rows to write, and the values that the rows have after the advice.
CASTS: list[tuple[str, str, Any]] = [
    ("1L `a.b`", "2.0D `a.b`", 2),
    ("1L `a``b`", "2.0D `a``b`", 2),
    ("1L `it's`", "2.0D `it's`", 2),
    ("1L `größe m²`", "2.0D `größe m²`", 2),
    ("1L `select`", "2.0D `select`", 2),
    ("'a' s", "1 s", "1"),
    ("date'2026-01-01' d", "'2026-01-02' d", "2026-01-02"),
    ("named_struct('a b', 1L) s", "named_struct('a b', 2.0D) s", {"a b": 2}),
    ("named_struct('a.b', 1L, 'it\\'s', 'x') s", "named_struct('it\\'s', 'y', 'a.b', 2.0D) s", {"a.b": 2, "it's": "y"}),
    ("named_struct('x', 1L, 'y', 2L) s", "named_struct('y', 20.0D, 'x', 10L) s", {"x": 10, "y": 20}),
    ("array(named_struct('x', 1L, 'y', 2L)) s", "array(named_struct('y', 2.0D, 'x', 1L)) s", [{"x": 1, "y": 2}]),
    (
        "map('k', named_struct('x', 1, 'y', 2)) s",
        "map('k', named_struct('y', 'b', 'x', 7)) s",
        None,  # text that is no number becomes null without ANSI, and is refused with it: the advice warns
    ),
    ("timestamp_ntz'2026-01-01 00:00:00' t", "'2026-01-02 03:00:00' t", "2026-01-02 03:00:00"),
    ("decimal(1.5) d", "2.5D d", None),
]
# The ledger's column and the rows to write, between which Spark has no cast that keeps values.
CONVERSIONS = [
    ("parse_json('1') v", "'1' v"),
    ("interval '1' second i", "'1' i"),
    ("array(1) a", "1 a"),
    ("named_struct('x', 1) s", "1 s"),
    ("binary('a') b", "1.5D b"),
    ("map('k', 1) m", "array(1) m"),
]
# Structs whose fields are the ledger's in another order: they need no advice.
ORDERS = [
    ("named_struct('x', 1, 'y', 2) s", "named_struct('y', 20, 'x', 10) s", {"x": 10, "y": 20}),
    (
        "array(named_struct('x', 1, 'y', 2)) s",
        "array(null, named_struct('y', 20, 'x', 10)) s",
        [None, {"x": 10, "y": 20}],
    ),
    (
        "map('k', named_struct('x', 1, 'y', 2)) s",
        "map('k', named_struct('y', 20, 'x', 10)) s",
        {"k": {"x": 10, "y": 20}},
    ),
    (
        "named_struct('in', named_struct('x', 1L, 'y', 'a'), 'n', 1L) s",
        "named_struct('n', 2, 'in', named_struct('y', 'b', 'x', 7)) s",
        {"in": {"x": 7, "y": "b"}, "n": 2},
    ),
]
# Structs with other fields than the ledger's.
FIELDS = [
    ("named_struct('x', 1) s", "named_struct('x', 1, 'y', 2) s", r"'s.y' \(int32\) not in the ledger"),
    ("named_struct('x', 1, 'y', 2) s", "named_struct('x', 1) s", r"'s.y' \(int32\) missing"),
    ("array(named_struct('x', 1)) s", "array(named_struct('X', 1)) s", r"'s.element.x' \(int32\) missing"),
]


def refusal(spark: SparkSession, ledger: str, rows: str, *, merge: bool = False) -> tuple[DataFrame, str]:
    registered = columns_to_write(spark.sql(f"SELECT {ledger}").schema, "orders")
    frame = spark.sql(f"SELECT {rows}")
    with pytest.raises(Refused) as refused:
        (merged_columns if merge else require_writable)(frame.schema, registered, "orders")
    return frame, f"{refused.value.message}; {refused.value.hint}"


@pytest.mark.parametrize(("ledger", "rows", "value"), CASTS)
def test_an_advised_cast_runs_and_keeps_the_values(
    spark_session: SparkSession, ledger: str, rows: str, value: Any
) -> None:
    frame, said = refusal(spark_session, ledger, rows)
    advised = CAST.search(said)
    assert advised, said
    (name,) = frame.columns
    fixed = frame.withColumn(name, eval(advised.group(1), {"col": f.col}))  # noqa: S307 — the advice is Python code
    registered = columns_to_write(spark_session.sql(f"SELECT {ledger}").schema, "orders")
    require_writable(fixed.schema, registered, "orders")
    try:
        found = fixed.collect()[0].asDict(recursive=True)[name]
    except PySparkException:
        found = None
    if value is None and "null" not in rows:
        assert "the cast changes or refuses values" in said
    else:
        assert found == value or str(found) == value


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize(("ledger", "rows"), CONVERSIONS)
def test_no_cast_is_advised_where_spark_may_have_none(
    spark_session: SparkSession, ledger: str, rows: str, merge: bool
) -> None:
    _, said = refusal(spark_session, ledger, rows, merge=merge)
    assert "Cast it" not in said
    assert "Convert the column to" in said


@pytest.mark.parametrize(("ledger", "rows", "words"), FIELDS)
def test_a_struct_with_other_fields_is_refused(spark_session: SparkSession, ledger: str, rows: str, words: str) -> None:
    _, said = refusal(spark_session, ledger, rows)
    assert re.search(words, said)
    assert "Match the fields of 's': expr(" in said


def test_structs_are_written_by_the_names_of_their_fields(spark_session: SparkSession, store: Path) -> None:
    for at, (ledger, rows, value) in enumerate(ORDERS):
        name = f"orders-{at}"
        for frame in (ledger, rows):
            spark_session.sql(f"SELECT {frame}").write.format("ledger").option("store", store).mode("append").save(name)
        read = spark_session.read.format("ledger").option("store", store).load(name)
        assert read.collect()[1].asDict(recursive=True)["s"] == value


def test_the_stream_of_structs_is_written_by_names_too(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    ledger = ORDERS[0][0]
    spark_session.sql(f"SELECT {ledger}").write.format("ledger").option("store", store).mode("append").save("orders")
    stream = spark_session.readStream.format("ledger").option("store", store).option("startingPosition", "earliest")
    swapped = stream.load("orders").selectExpr("named_struct('y', s.y * 10, 'x', s.x * 10) AS s")
    spark_session.sql(f"SELECT {ledger}").write.format("ledger").option("store", store).mode("append").save("copied")
    write = (
        swapped.writeStream.format("ledger").option("store", store).option("checkpointLocation", str(tmp_path / "c"))
    )
    assert write.trigger(availableNow=True).start("copied").awaitTermination(120)
    read = spark_session.read.format("ledger").option("store", store).load("copied").collect()
    assert [row.s.asDict() for row in read] == [{"x": 1, "y": 2}, {"x": 10, "y": 20}]
