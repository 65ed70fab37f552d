"""Goal: three queries of Spark that start one after another share the reads of an offloaded backlog.

Method: a real S3 behind a proxy that counts the bytes of objects, a cache of a quarter or of twice the backlog. A query
starts when the first one has read a part of the backlog.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import ChangeSetting
from pyspark_ledger.ledger.protocol.cache import AskCache
from tests.rigs.deadline import wait_until
from tests.rigs.fault_proxy import FaultProxy

PROVIDER = "streaming_examples.s3_server:credentials"
ENTRIES, ENTRY_BYTES = 256, 256 * 1024


def rows_of(query: StreamingQuery) -> int:
    assert query.exception() is None
    return sum(progress["numInputRows"] for progress in query.recentProgress)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache_mb", "shares", "most"),
    [(128, (0.4, 0.8), 1.1), (16, (0.1, 0.2), 2.0)],
)
def test_queries_share_the_reads_of_a_backlog(
    spark_session: SparkSession,
    store: Path,
    tmp_path: Path,
    proxy: FaultProxy,
    bucket: str,
    cache_mb: int,
    shares: Sequence[float],
    most: float,
) -> None:
    opened, rnd = connect(store), random.Random(0)
    opened.client.ask(ChangeSetting("managedLedgerCacheSizeMB", cache_mb))
    opened.offload_to(bucket, endpoint=proxy.endpoint)
    orders = opened.ledger("orders")
    for number in range(ENTRIES):
        orders.append([{"id": number, "body": rnd.randbytes(ENTRY_BYTES)}])
    orders.offload(seal=True)
    orders.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    orders.trim()
    proxy.got_bytes = 0

    def start(name: str) -> StreamingQuery:
        options = {"store": str(store), "subscription": name, "startingPosition": "earliest"}
        options |= {"maxBytesPerTrigger": "4m", "credentialProvider": PROVIDER}
        read = spark_session.readStream.format("ledger").options(**options).load("orders")
        write = read.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        return write.trigger(availableNow=True).start()

    queries = [start("q0")]
    for number, share in enumerate(shares, 1):
        wait_until(lambda: rows_of(queries[0]) >= share * ENTRIES, "the first query reads its share")  # noqa: B023
        queries.append(start(f"q{number}"))
    for query in queries:
        assert query.awaitTermination(300)
    assert [rows_of(query) for query in queries] == [ENTRIES] * 3
    found = proxy.got_bytes / (ENTRIES * ENTRY_BYTES)
    counted = opened.client.ask(AskCache())
    assert found <= most, f"{counted.direct_bytes / (ENTRIES * ENTRY_BYTES)} of these were fetched by tasks"
