"""Goal: Spark reads added columns, decoded payloads and rescued rows. Method: one story over a real session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from pyspark_ledger.ledger.api.store import connect

pytestmark = pytest.mark.feature("added columns, payloads, rescued rows")


def append(frame: DataFrame, store: Path, **options: str) -> None:
    frame.write.format("ledger").options(store=str(store), **options).mode("append").save("orders")


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
