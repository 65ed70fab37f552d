"""Goal: Spark reads added columns, decoded payloads and rescued rows. Method: one story over a real session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from pyspark_ledger.ledger.api.store import connect
from tests.rigs.available_now import run_all

WIDENED = {
    "n": ("int", "bigint", "1", str(2**40)),
    "x": ("float", "double", "0.5", "0.1D"),
    "day": ("date", "timestamp_ntz", "DATE'2026-11-23'", "TIMESTAMP_NTZ'2026-11-23 10:15:00'"),
    "price": ("decimal(5,2)", "decimal(9,4)", "1.25BD", "12345.0001BD"),
    "ns": ("array<int>", "array<bigint>", "array(1, null)", f"array({2**40})"),
    "at": ("struct<x:float,y:int>", "struct<x:double,y:bigint>", "struct(0.5F, 1)", f"struct(0.1D, {2**40})"),
}


def append(frame: DataFrame, store: Path, **options: str) -> None:
    frame.write.format("ledger").options(store=str(store), **options).mode("append").save("orders")


@pytest.mark.thorough
@pytest.mark.feature("added columns, payloads, rescued rows")
def test_columns_grow_under_a_query_and_payloads_become_columns(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    spark, seen = spark_session, []
    append(spark.range(3).toDF("id"), store)
    orders = spark.readStream.format("ledger").options(store=str(store), startingPosition="earliest")

    def start() -> object:
        writer = orders.load("orders").writeStream.foreachBatch(lambda frame, _: seen.extend(frame.collect()))
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    query.processAllAvailable()
    append(spark.range(3, 5).select("id", f.concat(f.lit("n"), f.col("id")).alias("name")), store, mergeSchema="true")
    query.processAllAvailable()
    query.stop()
    assert sorted(seen) == [Row(id=number) for number in range(5)]
    seen.clear()
    append(spark.range(5, 6).select(f.lit("n5").alias("name"), "id"), store)
    query = start()
    query.processAllAvailable()
    query.stop()
    assert seen == [Row(id=5, name="n5")]
    whole = spark.read.format("ledger").options(store=str(store), columns="name,__position").load("orders")
    assert whole.columns == ["name", "__position"]
    assert sorted(row.name or "" for row in whole.collect()) == ["", "", "", "n3", "n4", "n5"]

    with connect(store).ledger("clicks").producer() as producer:
        for number in range(100):
            producer.send(json.dumps({"user": f"u{number % 3}", "at": number, "tags": ["a"]}).encode(), key="k")
        producer.send(b"no json")
    fields = [
        {"name": "user", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ]
    schema = json.dumps({"type": "JSON", "schema": {"type": "record", "name": "Click", "fields": fields}})
    clicks = spark.read.format("ledger").options(
        store=str(store), payloadSchema=schema, rescuedDataColumn="_rescued_data", includeMetadata="true"
    )
    frame = clicks.load("clicks")
    assert dict(frame.dtypes)["at"] == "timestamp"
    assert dict(frame.dtypes)["tags"] == "array<string>"
    counted = frame.where("_rescued_data is null").groupBy("user").count().collect()
    assert sorted((row["user"], row["count"]) for row in counted) == [("u0", 34), ("u1", 33), ("u2", 33)]
    (lost,) = frame.where("_rescued_data is not null").select("_rescued_data", "user", "__key").collect()
    assert (lost["user"], lost["__key"]) == (None, None)
    assert spark.sql("select unbase64(get_json_object(:t, '$.payload')) p", {"t": lost[0]}).first().p == b"no json"


@pytest.mark.thorough
@pytest.mark.feature("columns of the type `variant`")
def test_variants_come_back_as_variants(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    texts = ['{"a":1,"b":[1,"x"]}', "null", "3", None]
    rows = spark_session.createDataFrame([(number, text) for number, text in enumerate(texts)], "id int, text string")
    frame = rows.selectExpr("id", "parse_json(text) v", "array(parse_json(text)) vs")
    append(frame, store, compression="lz4")
    stream = spark_session.readStream.format("ledger").options(store=str(store), startingPosition="earliest")
    write = stream.load("orders").writeStream.format("ledger").option("store", str(store))
    write = write.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    run_all(lambda: write.start("copied"))
    copied = spark_session.read.format("ledger").option("store", str(store)).load("copied")
    assert copied.dtypes == [("id", "int"), ("v", "variant"), ("vs", "array<variant>")]
    found = copied.selectExpr("id", "to_json(v) v", "to_json(vs[0]) w", "try_variant_get(v, '$.b[1]', 'string') x")
    assert sorted(map(tuple, found.collect())) == [
        (number, text, text, "x" if number == 0 else None) for number, text in enumerate(texts)
    ]


@pytest.mark.thorough
@pytest.mark.feature("wider columns")
def test_columns_widen_and_never_narrow(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    def rows(kind: int) -> DataFrame:
        """Return a row of narrow (0) or wide (1) types."""
        casts = [f"cast({types[2 + kind]} as {types[kind]}) as {name}" for name, types in WIDENED.items()]
        return spark_session.sql(f"select {', '.join(casts)}")

    api, bucket = connect(store), tmp_path / "bucket"
    api.offload_to(str(bucket))
    read = spark_session.read.format("ledger")
    narrow, wide = (", ".join(f"{name} {types[kind]}" for name, types in WIDENED.items()) for kind in (0, 1))
    append(rows(0), store)
    expected = rows(0).select([f.col(name).cast(types[1]) for name, types in WIDENED.items()]).collect()
    assert read.option("store", str(store)).schema(wide).load("orders").collect() == expected
    api.ledger("orders").offload(seal=True)
    with pytest.raises(
        Exception, match=r"column 'n' of ledger .* is int, but bigint in the rows to write.*mergeSchema"
    ):
        append(rows(1), store)
    append(rows(1), store, mergeSchema="true")
    append(rows(0), store)
    append(rows(0), store, mergeSchema="true")
    expected = expected + rows(1).collect() + expected + expected
    frame = read.option("store", str(store)).load("orders")
    assert frame.dtypes == [(name, types[1]) for name, types in WIDENED.items()]
    assert frame.collect() == expected
    with pytest.raises(Exception, match=r"column 'n' of ledger .* is bigint, the read was planned with int"):
        read.option("store", str(store)).schema(narrow).load("orders").collect()
    seen: list[Row] = []
    stream = spark_session.readStream.format("ledger").options(store=str(store), startingPosition="earliest")
    writer = stream.load("orders").writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
    run_all(writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start)
    assert seen == expected
    api.ledger("orders").offload(seal=True)
    objects = spark_session.read.format("ledger").option("offload", str(bucket)).load("orders")
    assert objects.dtypes == frame.dtypes
    assert objects.collect() == expected
