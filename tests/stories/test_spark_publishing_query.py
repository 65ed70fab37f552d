"""Goal: the publisher as a streaming query publishes each segment once, also with a lost checkpoint.

Method: runs over existing segments with the same checkpoint and with an empty one. One query runs while rows are
appended. Another query fails because the table was changed.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_ledger import publish_stream
from pyspark_ledger.connector.publish.delta_table import DeltaTable
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.actions import CreateLedger

pytestmark = [pytest.mark.tables, pytest.mark.feature("tables of Delta: publish and history")]
NAME = "public/default/persistent/orders"
_SECONDS = 60


def ids(spark: SparkSession, table: Path) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(str(table)).select("id").collect())


def append(store: Path, *numbers: int) -> None:
    for number in numbers:
        connect(store).ledger("orders").append([{"id": number}])


def test_a_query_publishes_what_is_sealed(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    connect(store).client.ask(CreateLedger(NAME, max_entries_per_ledger=1))
    table, options = tmp_path / "table", {"store": str(store)}

    def run(checkpoint: str) -> None:
        writer = publish_stream(spark_session, "orders", str(table), options=options, seal_after_ms=0)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(_SECONDS)

    append(store, 0, 1)
    run("one")
    assert ids(spark_session, table) == [0, 1]
    append(store, 2)
    run("one")
    assert ids(spark_session, table) == [0, 1, 2]
    append(store, 3)
    run("lost")
    assert ids(spark_session, table) == [0, 1, 2, 3]

    writer = publish_stream(spark_session, "orders", str(table), options=options, seal_after_ms=0)
    writer = writer.option("checkpointLocation", str(tmp_path / "one"))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        append(store, 4, 5)
        until = time.monotonic() + _SECONDS
        while ids(spark_session, table) != [0, 1, 2, 3, 4, 5]:
            assert query.isActive, query.exception()
            assert time.monotonic() < until, ids(spark_session, table)
            time.sleep(0.1)
        table_of_delta = DeltaTable(spark_session, str(table))
        table_of_delta.change(f"DELETE FROM {table_of_delta.sql} WHERE id = 2")  # noqa: S608
        append(store, 6)
        with pytest.raises(StreamingQueryException, match="changed by another program"):
            query.awaitTermination(_SECONDS)
    finally:
        query.stop()
    assert ids(spark_session, table) == [0, 1, 3, 4, 5]


def test_what_is_refused_is_refused_before_the_query(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="key is 'id', but there is no view"):
        publish_stream(spark_session, "orders", str(tmp_path / "t"), options={"store": str(store)}, key="id")
    assert not (tmp_path / "t").exists()
