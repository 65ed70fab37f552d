"""Goal: a query and a loop use one cursor of a partitioned ledger in turn, and each gets exactly what is left.

Method: a real session; a query in ack mode `explicit` and a loop of the Python API, in both orders. Each acknowledges
some of its rows, and the other one starts afterwards.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.consumer.batches import Batches
from pyspark_ledger.ledger.consumer.deliveries import DeliveredBatch
from pyspark_ledger.ledger.errors import Refused

ROWS = 40


def begun(store: LedgerStore) -> Batches[DeliveredBatch]:
    """Begin a loop. Spark may end the process of a stopped query, which holds the lease, only after `stop`."""
    until = time.monotonic() + 60
    while True:
        try:
            return store.ledger("rides").cursor("worker").batches(max_rows=1, wait=0)
        except Refused:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def by_loop(store: LedgerStore, divisor: int) -> set[int]:
    """Run a loop to the end, and acknowledge the batches with a multiple of `divisor`. Return the received ids."""
    found = list[int]()
    with begun(store) as batches:
        for batch in batches:
            (number,) = batch.table["id"].to_pylist()
            found.append(number)
            if number % divisor == 0:
                batch.acknowledge()
    assert len(found) == len(set(found))
    return set(found)


def by_query(spark: SparkSession, store: LedgerStore, checkpoint: Path, wanted: set[int], divisor: int) -> set[int]:
    """Run a query until it has received the wanted ids, and acknowledge multiples of `divisor`. Return all ids."""
    found, done = set[int](), threading.Event()

    def sink(frame: DataFrame, _: int) -> None:
        rows = frame.persist()
        found.update(row["id"] for row in rows.select("id").collect())
        chosen = rows.where(col("id") % divisor == 0).select("__position", "__topic")
        options = {"store": store.location, "action": "ack", "subscription": "worker"}
        chosen.write.format("ledger").options(**options).mode("append").save("rides")
        if found >= wanted:
            done.set()

    options = {"store": store.location, "subscription": "worker", "ackMode": "explicit", "ackTimeout": "5s"}
    stream = spark.readStream.format("ledger").options(**options).load("rides")
    query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()
    try:
        while not done.wait(0.05):
            assert query.isActive, query.exception()
        with pytest.raises(Refused, match=r"cursor 'worker' of rides-partition-.* is in use"):
            store.ledger("rides").cursor("worker").batches()
    finally:
        query.stop()
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["loop", "query"])
def test_query_and_loop_share_a_cursor_one_after_the_other(
    spark_session: SparkSession, store: Path, tmp_path: Path, first: str
) -> None:
    opened = connect(store)
    rides = opened.create_partitioned("rides", 2)
    for number in range(ROWS):
        rides.append([{"id": number}])
    rides.cursor("worker")
    left, turns = set(range(ROWS)), ["loop", "query"] * 2
    for turn, (who, divisor) in enumerate(zip(turns[first != "loop" :][:3], (2, 3, 5), strict=True)):
        if who == "loop":
            found = by_loop(opened, divisor)
        else:
            found = by_query(spark_session, opened, tmp_path / f"checkpoint-{turn}", left, divisor)
        assert found == left, f"{who} in turn {turn}"
        left = {number for number in left if number % divisor}
        assert rides.cursor("worker").state().backlog_rows == len(left)
    assert by_loop(opened, 1) == left
    assert rides.cursor("worker").state().backlog_rows == 0
