"""Streaming queries into noop, and the time of their micro-batches.

Rule: the measured time is `triggerExecution` of a query's progress, from the request for the offset to its commit. Only
batches with rows count. The first batch does not count, because it starts Python processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

ROOT = Path(__file__).parent.parent
_WAIT_SECONDS = 300.0


@dataclass(frozen=True)
class Took:
    """Counted micro-batches: their rows, and the seconds of each."""

    rows: int
    seconds: tuple[float, ...]


def session(jars: Sequence[Path] = ()) -> SparkSession:
    """Return a session with two cores, workers over Unix sockets, both sources, and `jars`."""
    from benchmarks.repeated_rows import RepeatedSource
    from pyspark_ledger.connector.session.default_store import DefaultStore, set_default_store

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "localhost",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    set_default_store(spark, DefaultStore())
    spark.dataSource.register(RepeatedSource)
    return spark


def start(frame: DataFrame, checkpoint: Path, *, available_now: bool) -> StreamingQuery:
    """Start a query into noop: AvailableNow, or with triggers without interval."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")).start()


def drained(query: StreamingQuery) -> Took:
    """Wait for the end of an AvailableNow query, and return its counted batches."""
    try:
        if not query.awaitTermination(_WAIT_SECONDS):
            raise TimeoutError(f"the query is not done after {_WAIT_SECONDS} s: {query.status}")
        return took(query)
    finally:
        query.stop()


def took(query: StreamingQuery) -> Took:
    """Return the query's counted batches so far, without the first."""
    counted = [progress for progress in query.recentProgress if progress["numInputRows"]][1:]
    rows = sum(progress["numInputRows"] for progress in counted)
    return Took(rows, tuple(progress["durationMs"]["triggerExecution"] / 1000 for progress in counted))


def batches_of(query: StreamingQuery) -> int:
    """Return the number of finished batches with rows."""
    return sum(1 for progress in query.recentProgress if progress["numInputRows"])


def rows_read(query: StreamingQuery) -> int:
    """Return the rows of all the query's batches so far."""
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def step(query: StreamingQuery, release: Callable[[], None]) -> None:
    """Release rows to an idle query, and wait until a batch has read them."""
    before = batches_of(query)
    release()
    until = time.monotonic() + _WAIT_SECONDS
    while batches_of(query) == before:
        error = query.exception()
        if error is not None:
            raise error
        if time.monotonic() > until:
            raise TimeoutError(f"no batch after {_WAIT_SECONDS} s: {query.status}")
        time.sleep(0.01)
