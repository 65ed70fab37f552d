"""Goal: the hint of a refused write runs, and keeps each value under its name. Method: a frame with one column for each
kind of mismatch. The test follows the hints until the frame is accepted, writes it, and compares the values.
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as f

from pyspark_ledger.connector.schema import columns_to_write, merged_columns, require_writable
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Refused

# For each column: its value in the ledger's first row, its value in the rows to write, and the same value mended.
MENDED: dict[str, tuple[str, str, Any]] = {
    "dot.ted": ("1L", "2.0D", 2),
    "back`tick": ("1L", "'3'", 3),
    'it\'s "quoted"': ("1L", "true", 1),
    "ünï cöde": ("'a'", "DATE'2026-11-27'", "2026-11-27"),
    "bytes": ("X'00'", "'ä'", "ä".encode()),
    "narrow": ("1", "2L", 2),
    "flag": ("true", "'false'", False),
    "day": ("DATE'2026-01-01'", "TIMESTAMP_NTZ'2026-11-27 00:00:00'", dt.date(2026, 11, 27)),
    "inner.cast": (
        "named_struct('a b', 1L, 'c`d', 1L, 'timestamp', 'x')",
        "named_struct('timestamp', 5, 'c`d', 2.0D, 'a b', '3')",
        Row(**{"a b": 3, "c`d": 2, "timestamp": "5"}),
    ),
    "list": (
        "array(named_struct('ä', 1, 'b.c', 2))",
        "array(named_struct('b.c', 20L, 'ä', 10L), null, named_struct('b.c', null, 'ä', 11L))",
        [Row(**{"ä": 10, "b.c": 20}), None, Row(**{"ä": 11, "b.c": None})],
    ),
    "maps": (
        "map(named_struct('x', 1, 'y', 2), named_struct('x', 1, 'y', 2))",
        "map(named_struct('y', 20L, 'x', 10L), named_struct('y', 40L, 'x', null))",
        {Row(x=10, y=20): Row(x=None, y=40)},
    ),
    "void inside": ("map('k', 1)", "map('k', null)", {"k": None}),
    "more": ("named_struct('x', 1)", "named_struct('x', 10, 'y', 20)", Row(x=10)),
    "few.er": ("named_struct('x', 1, 'y', named_struct('it\\'s', 1L))", "named_struct('x', 10)", Row(x=10, y=None)),
    "null": ("named_struct('x', 1, 'y', 2)", "if(true, null, named_struct('x', 10))", None),
    "spelled": ("named_struct('x', 1, 'y', 2)", "named_struct('Y', 20, 'X', 10)", Row(x=10, y=20)),
    "deep": (
        "array(map('k', named_struct('x', 1, 's t', named_struct('a', 1L, 'b', 2L))))",
        "array(map('l', named_struct('z', 9, 's t', named_struct('c', 5, 'b', '7'))), null, map('m', null))",
        [{"l": Row(**{"x": None, "s t": Row(a=None, b=7)})}, None, {"m": None}],
    ),
    "keys": (
        "map(named_struct('x', 1, 'y', 2), 1)",
        "map(named_struct('z', 1, 'x', 10), 5)",
        {Row(x=10, y=None): 5},
    ),
    "absent": ("'text'", "", None),
    "iD": ("1", "", None),
    "Id": ("", "7", 7),
    "additional": ("", "1", None),
}
# The ledger cannot have these values in the same column. So they go to a new column, or widen the column.
KEPT: dict[str, tuple[str, str, Any]] = {
    "vari.ant": ("parse_json('1')", "'text'", "text"),
    "structure": ("named_struct('x', 1)", "'text'", "text"),
    "numbers": ("map('k', 1)", "array(1)", [1]),
    "interval": ("interval '1' second", "5", 5),
    "all.fields": ("named_struct('x', 1)", "named_struct('x', array(1), 'y', 2)", Row(x=[1], y=2)),
}
WIDER: dict[str, tuple[str, str, Any]] = {
    "vo.id": ("null", "'text'", "text"),
    "voids": ("array()", "array(named_struct('x', 1))", [Row(x=1)]),
    "inner void": ("named_struct('x', null)", "named_struct('x', 5)", Row(x=5)),
}
NOT_STORED: dict[str, tuple[str, str, Any]] = {
    "mon.ths": ("'text'", "interval '1-2' year to month", "INTERVAL '1-2' YEAR TO MONTH"),
    "calendar": ("array('text')", "array(make_interval(1), null)", ["1 years", None]),
    "in map": (
        "map('k', named_struct('it\\'s', 'text'))",
        "map('k', named_struct('it\\'s', interval '1' year))",
        {"k": Row(**{"it's": "INTERVAL '1' YEAR"})},
    ),
}


def frame_of(spark: SparkSession, cases: dict[str, tuple[str, str, Any]], part: int) -> DataFrame:
    texts = [(case[part], name.replace("`", "``")) for name, case in cases.items() if case[part]]
    return spark.sql("select " + ", ".join(f"{value} as `{name}`" for value, name in texts))


def followed(frame: DataFrame, error: Refused) -> tuple[DataFrame, bool]:
    """Return the frame after what the hint says, and whether to set mergeSchema."""
    hint = error.hint
    rename = re.search(r"rename '(\w+)' to '(\w+)'", hint)
    if rename:
        return frame.withColumnRenamed(*rename.groups()), False
    if hint.startswith("Write null in the missing columns; Leave the other columns out"):
        return frame.withColumn("absent", f.lit(None)).drop("additional"), False
    named = [
        name for name in frame.columns if re.search(rf"(column|fields of) .{re.escape(repr(name)[1:-1])}", str(error))
    ]
    column = max(named, key=len)
    code = re.search(r"(col\(.+\)\.cast\(.+?['\"]\)|expr\(.+\))(?= writes|;|$)", hint)
    if code:
        return frame.withColumn(column, eval(code.group(1), {"col": f.col, "expr": f.expr})), False  # noqa: S307
    if hint == "Set mergeSchema to widen the column":
        return frame, True
    assert "rename it and set mergeSchema" in hint
    return frame.withColumnRenamed(column, f"{column} new"), True


def write_mended(frame: DataFrame, store: Path) -> Row:
    """Follow the hints until the frame is accepted, write it, and return the row that a read then finds."""
    merge = False
    registered = connect(store).ledger("things").schema()
    assert registered is not None
    for _ in range(60):
        try:
            columns_to_write(frame.schema, "things")
            (merged_columns if merge else require_writable)(frame.schema, registered, "things")
            break
        except Refused as error:
            frame, needs_merge = followed(frame, error)
            merge = merge or needs_merge
    options = {"store": str(store), "mergeSchema": str(merge)}
    frame.write.format("ledger").options(**options).mode("append").save("things")
    found = frame.sparkSession.read.format("ledger").option("store", str(store)).load("things")
    return found.collect()[-1]


@pytest.mark.thorough
def test_every_hint_of_a_refused_type_runs_and_keeps_the_values(spark_session: SparkSession, store: Path) -> None:
    frame_of(spark_session, MENDED, 0).write.format("ledger").options(store=str(store)).mode("append").save("things")
    found = write_mended(frame_of(spark_session, MENDED, 1), store)
    for name in found.asDict():
        expected = MENDED["Id" if name == "iD" else name][2]
        assert found[name] == expected, name


@pytest.mark.thorough
def test_values_of_another_kind_go_to_new_or_wider_columns(spark_session: SparkSession, store: Path) -> None:
    cases = {**NOT_STORED, **WIDER, **KEPT}
    frame_of(spark_session, cases, 0).write.format("ledger").options(store=str(store)).mode("append").save("things")
    found = write_mended(frame_of(spark_session, cases, 1), store)
    for name, (_, _, expected) in {**WIDER, **NOT_STORED}.items():
        assert found[name] == expected, name
    for name, (_, _, expected) in KEPT.items():
        assert found[name] is None
        assert found[f"{name} new"] == expected, name


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("schema", "hint", "change"),
    [
        ("m long", "Leave .schema() out: the ledger knows its columns", "n"),
        ("n long, m long", "Leave .schema() out: the ledger knows its columns", "n"),
        (
            "n smallint",
            "the ledger knows its columns. Cast afterwards; a wider type is allowed",
            "CAST(n AS smallint) AS n",
        ),
    ],
)
def test_hint_of_a_refused_schema_runs_and_keeps_the_values(
    spark_session: SparkSession, store: Path, schema: str, hint: str, change: str
) -> None:
    connect(store).ledger("numbers").append(pa.table({"n": pa.array([1, 2], pa.int32())}))

    def read() -> DataFrameReader:
        return spark_session.read.format("ledger").option("store", str(store))

    with pytest.raises(PySparkException, match=re.escape(hint)):
        read().schema(schema).load("numbers").collect()
    assert [row.n for row in read().load("numbers").selectExpr(change).collect()] == [1, 2]
    if "wider" in hint:
        assert [row.n for row in read().schema("n long").load("numbers").collect()] == [1, 2]
