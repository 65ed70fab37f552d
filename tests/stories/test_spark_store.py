"""Goal: Spark accepts a broker's address as a store, like a directory. Method: a real session, and a broker at each
kind of address without TLS. Addresses with TLS are in test_credentials.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import serve_store
from pyspark_ledger.ledger.transport.discovery import BrokerRecord


@pytest.mark.parametrize("scheme", ["grpc+unix", "grpc"])
@pytest.mark.thorough
def test_a_store_is_written_and_read_at_its_address(spark_session: SparkSession, store: Path, scheme: str) -> None:
    address = connect(store, create=True).client.address
    if scheme == "grpc":
        serve_store(store, ["--address", "grpc://127.0.0.1:0"])
        record = BrokerRecord.read(store)
        assert record is not None
        address = record.remote
    assert address.startswith(f"{scheme}://")
    rows = spark_session.range(10).withColumnRenamed("id", "n").coalesce(1)
    rows.write.format("ledger").option("store", address).mode("append").save("orders")
    read = spark_session.read.format("ledger").option("store", address).load("orders")
    assert sorted(row.n for row in read.collect()) == list(range(10))
    assert connect(store).ledger("orders").describe().rows == 10
