"""Fixtures for pytest that come with the package: `ledger_store` and `ledger_spark`.

    def test_append(ledger_store):
        orders = ledger_store.ledger("orders")
        orders.append([{"id": 1}])
        assert orders.read().num_rows == 1

pytest loads this module in every run where the package is installed; `-p no:pyspark_ledger` switches that off. So the
module stands beside the package, and imports nothing of it before a test asks for a fixture. Otherwise coverage would
miss the lines that run during an import.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_ledger import LedgerStore
    from pyspark_ledger.offload.fresh_stores import FreshStores

_DEFAULT = "LEDGER_STORE"


@pytest.fixture(scope="session")
def _ledger_stores() -> Iterator[FreshStores]:
    """Yield the stores of this run, or of this worker of pytest-xdist."""
    from pyspark_ledger.offload.fresh_stores import FreshStores

    with FreshStores() as stores:
        yield stores


@pytest.fixture
def ledger_store(_ledger_stores: FreshStores) -> Iterator[LedgerStore]:
    """Yield an empty store in a temporary directory. Its broker ends after the test, and the directory is deleted.

    During the test, `LEDGER_STORE` names the store. So `connect()` without arguments opens this store.
    """
    from pyspark_ledger import connect

    with _ledger_stores.fresh() as path, pytest.MonkeyPatch.context() as environment:
        environment.setenv(_DEFAULT, str(path))
        store = connect(path)
        yield store
        store.close()


@pytest.fixture
def ledger_spark(ledger_store: LedgerStore) -> Iterator[SparkSession]:
    """Yield the running Spark session, or else a local one, whose default store is that of `ledger_store`.

    After the test, the streaming queries that it has started are stopped. The session stays for the next test.
    """
    from pyspark.sql import SparkSession

    from pyspark_ledger import session
    from pyspark_ledger.connector.session.default_store import default_store, set_default_store

    spark = session()
    before, others = default_store(spark), {query.id for query in spark.streams.active}
    yield session(store=ledger_store.location)
    if SparkSession.getActiveSession() is None:
        return  # the test has stopped the session
    for query in spark.streams.active:
        if query.id not in others:
            query.stop()
    set_default_store(spark, before)
