"""Runs of Trigger.AvailableNow until nothing is left, on every release of Spark.

Spark 4.0 and 4.1 do not pass the limits of a batch to the source (they have no *admission control*). There, such a run
is one micro-batch within the limits, and a query needs several runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from pyspark_ledger.connector.spark_features import spark_features

ONE_BATCH = not spark_features().admission_control
RUNS_MAX = 200
# Python code of a script that runs `write` until nothing is left.
RUN_ALL = f"""
while True:
    query = write.trigger(availableNow=True).start(*names)
    query.awaitTermination()
    if not {ONE_BATCH} or not query.lastProgress or not query.lastProgress["numInputRows"]:
        break
"""


def run_all(start: Callable[[], StreamingQuery], timeout_s: int = 120) -> list[Any]:
    """Start a query again until a run reads nothing, or once if Spark has admission control. Return all progress."""
    progress: list[Any] = []
    for _ in range(RUNS_MAX if ONE_BATCH else 1):
        query = start()
        try:
            assert query.awaitTermination(timeout_s)
        finally:
            query.stop()
        progress += query.recentProgress
        if not any(batch["numInputRows"] for batch in query.recentProgress):
            break
    return progress
