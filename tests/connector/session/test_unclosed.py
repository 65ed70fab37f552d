"""Goal: what a task of Spark leaves open gives no warning, because Spark ends its processes without notice.

Method: a task frees a store, and a loop over a cursor.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_ledger import connect


def warnings_of_a_free_store(location: str) -> list[str]:
    import gc
    import warnings

    from pyspark_ledger import connect

    gc.collect()  # stores of other tests
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        connect(location).names()
        gc.collect()
    return [str(warning.message) for warning in caught if issubclass(warning.category, ResourceWarning)]


def warnings_of_a_free_loop(location: str) -> list[str]:
    import gc
    import warnings

    from pyspark_ledger import connect

    with connect(location) as store, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store.ledger("orders").cursor("billing").batches()
        gc.collect()
    return [str(warning.message) for warning in caught if issubclass(warning.category, ResourceWarning)]


def test_a_task_that_leaves_a_store_open_gives_no_warning(spark_session: SparkSession, store_path: Path) -> None:
    with connect(store_path) as store:
        store.ledger("orders").append([{"id": 1}])
        location = store.location
        assert warnings_of_a_free_store(location) == [f"unclosed ledger store {location}"], "outside of Spark"
        rows = spark_session.sparkContext.parallelize([location], 1).map(warnings_of_a_free_store).collect()
    assert rows == [[]]


def test_a_task_that_leaves_a_loop_open_gives_no_warning(spark_session: SparkSession, store_path: Path) -> None:
    with connect(store_path) as store:
        store.ledger("orders").append([{"id": 1}])
        location = store.location
    assert warnings_of_a_free_loop(location) == ["unclosed batches of cursor 'billing' of orders"], "outside of Spark"
    rows = spark_session.sparkContext.parallelize([location], 1).map(warnings_of_a_free_loop).collect()
    assert rows == [[]]
