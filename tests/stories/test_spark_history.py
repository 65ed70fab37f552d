"""Goal: Spark reads table and ledger as one result, in a batch and in a stream that is stopped and started.

Method: one story with a real publisher that runs in parallel, Delta, and a streaming query with a checkpoint.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_ledger import configure, history_of, publish
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from tests.rigs.available_now import run_all
from tests.rigs.published_history import append, trim

pytest.importorskip("delta")
pytestmark = [pytest.mark.tables, pytest.mark.feature("tables of Delta: publish and history")]


def test_a_table_and_its_log_are_one_to_spark(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    configure(spark_session, store=str(store))
    ledger = connect(store).ledger("orders")
    assert isinstance(ledger, Ledger)
    append(ledger, 0, 5)
    ledger.seal()
    append(ledger, 5, 10)
    table, options = str(tmp_path / "table"), {"store": str(store)}
    alone = spark_session.read.format("ledger").option("includeMetadata", "true").load("orders").collect()
    assert [done.rows for done in publish(spark_session, "orders", table, options=options)] == [10]
    read = spark_session.read.format("ledger").option("history", table)
    both = read.option("includeMetadata", "true").load("orders").collect()
    assert sorted(map(repr, both)) == sorted(map(repr, alone))

    checkpoint = str(tmp_path / "checkpoint")

    def stream() -> None:
        rows = spark_session.readStream.format("ledger").options(history=table, maxRowsPerTrigger="4", columns="n")
        write = rows.load("orders").writeStream.format("parquet")
        write = write.options(checkpointLocation=checkpoint, path=str(tmp_path / "out"))
        run_all(write.trigger(availableNow=True).start)

    stream()  # rows of the table, and then of the log
    ledger.seal()
    append(ledger, 10, 13)
    publishing = threading.Thread(target=publish, args=(spark_session, "orders", table), kwargs={"options": options})
    publishing.start()
    counts = [read.load("orders").count() for _ in range(3)]
    publishing.join()
    assert counts == [26, 26, 26]
    ledger.seal()
    publish(spark_session, "orders", table, options=options)
    trim(store)  # the unread rows of the stream are only in the table
    append(ledger, 13, 15)
    stream()
    out = spark_session.read.parquet(str(tmp_path / "out"))
    assert sorted(row["n"] for row in out.collect()) == list(range(30))
    spark_session.sql(f"DELETE FROM delta.`{table}` WHERE n = 3")  # noqa: S608 — a path of the test
    assert read.load("orders").count() == 29
    spark_session.sql(f"CREATE TABLE history_story USING delta LOCATION '{table}'")
    try:
        assert history_of(spark_session, "history_story") == table
    finally:
        spark_session.sql("DROP TABLE history_story")
