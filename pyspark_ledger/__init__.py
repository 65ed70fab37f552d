"""Managed ledgers for Spark: the functions and classes that a user imports, and the data source that Spark discovers.

    from pyspark_ledger import configure, connect, session

In the repository, `connector`, `ledger` and `offload` in this folder are links to the top-level folders. The wheel has
the folders themselves.

Spark imports every top-level module called `pyspark_*` to look for a class `DefaultSource`. So the import of this
module must be fast and must not fail. For this reason the module imports everything else on first use.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from pyspark_ledger.ledger.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pyspark_ledger.connector.default_source import DefaultSource
    from pyspark_ledger.connector.display.catch_up import CatchUp
    from pyspark_ledger.connector.display.query_watch import QueryWatch
    from pyspark_ledger.connector.display.read_plan import ReadPlan
    from pyspark_ledger.connector.session.cluster import ServedStore
    from pyspark_ledger.connector.session.metrics import ProgressWatch
    from pyspark_ledger.ledger.api.cursor import Cursor
    from pyspark_ledger.ledger.api.joined_cursor import JoinedCursor
    from pyspark_ledger.ledger.api.ledger import Ledger
    from pyspark_ledger.ledger.api.store import LedgerStore, connect
    from pyspark_ledger.ledger.consumer.batch import Batch
    from pyspark_ledger.ledger.consumer.batches import Batches
    from pyspark_ledger.ledger.consumer.deliveries import DeliveredBatch
    from pyspark_ledger.ledger.errors import (
        AlreadyExists,
        Corrupt,
        DataLoss,
        Fenced,
        LeaseLost,
        LedgerError,
        NotFound,
        Refused,
        Terminated,
        Unauthenticated,
        Unavailable,
        Unsupported,
    )
    from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
    from pyspark_ledger.ledger.times import Time
    from pyspark_ledger.offload.home_view import open_read_only

__all__ = [
    "EARLIEST",
    "LATEST",
    "AlreadyExists",
    "Batch",
    "Batches",
    "Corrupt",
    "Cursor",
    "DataLoss",
    "DefaultSource",
    "DeliveredBatch",
    "Fenced",
    "JoinedCursor",
    "LeaseLost",
    "Ledger",
    "LedgerError",
    "LedgerStore",
    "NotFound",
    "Position",
    "Refused",
    "Terminated",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "__version__",
    "acknowledge",
    "catch_up",
    "configure",
    "connect",
    "explain",
    "history_of",
    "open_read_only",
    "positions_json",
    "publish",
    "publish_stream",
    "serve",
    "session",
    "timestamps_json",
    "watch",
]

# Names that `__getattr__` imports on first use, so that a broker does not import Spark.
_LAZY = {
    "AlreadyExists": "pyspark_ledger.ledger.errors",
    "Corrupt": "pyspark_ledger.ledger.errors",
    "Batch": "pyspark_ledger.ledger.consumer.batch",
    "DeliveredBatch": "pyspark_ledger.ledger.consumer.deliveries",
    "Batches": "pyspark_ledger.ledger.consumer.batches",
    "Cursor": "pyspark_ledger.ledger.api.cursor",
    "JoinedCursor": "pyspark_ledger.ledger.api.joined_cursor",
    "DataLoss": "pyspark_ledger.ledger.errors",
    "DefaultSource": "pyspark_ledger.connector.default_source",
    "EARLIEST": "pyspark_ledger.ledger.position",
    "Fenced": "pyspark_ledger.ledger.errors",
    "LATEST": "pyspark_ledger.ledger.position",
    "Ledger": "pyspark_ledger.ledger.api.ledger",
    "LedgerError": "pyspark_ledger.ledger.errors",
    "LedgerStore": "pyspark_ledger.ledger.api.store",
    "NotFound": "pyspark_ledger.ledger.errors",
    "Position": "pyspark_ledger.ledger.position",
    "Refused": "pyspark_ledger.ledger.errors",
    "LeaseLost": "pyspark_ledger.ledger.errors",
    "Terminated": "pyspark_ledger.ledger.errors",
    "Unauthenticated": "pyspark_ledger.ledger.errors",
    "Unavailable": "pyspark_ledger.ledger.errors",
    "Unsupported": "pyspark_ledger.ledger.errors",
    "connect": "pyspark_ledger.ledger.api.store",
    "open_read_only": "pyspark_ledger.offload.home_view",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    attribute = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = attribute
    return attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def session(
    app_name: str | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    delta: bool = False,
    **conf: object,
) -> SparkSession:
    """Return the running session, or a new local session with settings for Python data sources.

    Its subscriptions acknowledge batches, and `store` becomes its default store, as with `configure`.

    `conf` adds Spark settings; write `_` for each `.` in a name. They override the settings of `spark-submit`, of
    `PYSPARK_SUBMIT_ARGS` and of `spark-defaults.conf`, and these override the settings of this function.

    With `delta` the session can use Delta tables. Spark then downloads Delta's jars from Maven Central, once.
    """
    from pyspark_ledger.connector.session.default_store import use_store
    from pyspark_ledger.connector.session.session import local_session

    spark = local_session(app_name, conf, delta=delta)
    return spark if store is None else use_store(spark, store, None)


def configure(
    spark: SparkSession, *, store: str | os.PathLike[str] | None = None, options: Mapping[str, str] | None = None
) -> SparkSession:
    """Prepare a session that you have: its default store, its settings, and a listener that acknowledges batches.

    `store` is a directory, a bucket `s3://…` or a broker's address, for reads and writes that name no store. Without
    `store`, an earlier call's store stays, else the default is the environment variable `LEDGER_STORE`. `options` are
    options for the default store only, such as the client's certificate files.

    The session then has the data source `ledger`, also if Spark did not find it. The subscriptions of its queries
    acknowledge a batch as soon as Spark has committed it. Prints the settings that must be set before a session starts.
    """
    from pyspark_ledger.connector.session.default_store import use_store
    from pyspark_ledger.connector.session.session import configure_session

    return configure_session(use_store(spark, store, options))


def serve(
    spark: SparkSession, store: str | os.PathLike[str] | None = None, *, host: str | None = None, port: int = 0
) -> ServedStore:
    """Start a broker on the driver's host for executors on other hosts, and `configure` the session for its store.

    `store` is a directory on the driver's host or a bucket, `s3://…`; its default is the session's default store.
    `host` is the name by which executors reach the driver's host; its default is `spark.driver.host`.

    The result has `address`, `connect()` and `stop()`. `stop()` also restores the session's former default store. See
    docs/clusters.md.
    """
    from pyspark_ledger.connector.session.cluster import serve_session
    from pyspark_ledger.connector.session.default_store import use_store
    from pyspark_ledger.connector.session.session import configure_session

    served = serve_session(spark, store, host, port)
    configure_session(use_store(spark, served.address, served.options), quiet=True)
    return served


def acknowledge(
    frame: DataFrame,
    ledger: str,
    subscription: str,
    *,
    action: Literal["ack", "nack"] = "ack",
    store: str | os.PathLike[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> None:
    """Acknowledge all rows of a frame for a subscription. With `nack`, redeliver them instead.

    The frame needs the column `__position` or `__messageId`. `options` are options of `format("ledger")`, such as the
    client's certificate files. See docs/cursors.md.
    """
    from pyspark_ledger.connector.session.default_store import session_store
    from pyspark_ledger.connector.write.acknowledge import acknowledge_frame

    store_option = {} if store is None else {"store": session_store(frame.sparkSession, store)}
    acknowledge_frame(frame, ledger, subscription, action, {**(options or {}), **store_option})


@overload
def watch(target: StreamingQuery, *, every_s: float = 1.0) -> QueryWatch: ...


@overload
def watch(target: SparkSession, show: Any = None, *, prometheus: Any = None) -> ProgressWatch: ...


def watch(target: Any, show: Any = None, *, prometheus: Any = None, every_s: float = 1.0) -> Any:
    """Report the backlog, the use of the cache and the batches of one streaming query, or of all queries of a session.

    `watch(query)` draws a live chart, with a sample every `every_s` seconds. The chart ends with the query. The result
    has `stop()`, `wait()` and `samples`. docs/notebooks.md has pictures.

    `watch(spark)` prints a line for each ledger of each batch, or calls `show` with a `LedgerProgress`. With
    `prometheus`, a registry of prometheus-client, it sets gauges `ledger_stream_…` instead. The result is a listener:
    `spark.streams.removeListener` stops the reports.
    """
    if not hasattr(target, "lastProgress"):
        from pyspark_ledger.connector.session.metrics import watch as watch_session

        return watch_session(target, show, prometheus)
    if show is not None or prometheus is not None:
        message = "watch(query) draws a chart: `show` and `prometheus` are for watch(spark)"
        raise TypeError(message)
    from pyspark_ledger.connector.display.query_watch import QueryWatch

    return QueryWatch(target, every_ms=max(round(every_s * 1000), 100)).start()


def catch_up(
    query: StreamingQuery | DataStreamWriter | Callable[[], StreamingQuery],
    timeout_s: float | None = None,
    *,
    progress: bool = True,
) -> CatchUp:
    """Run a query until it has read the rows that stood at its start, and acknowledge them. Show a progress bar.

    Give it a `DataStreamWriter`, which is started with `trigger(availableNow=True)`, or a function that starts the
    query. Set `checkpointLocation`. Spark 4.0 and 4.1 end such a query after one micro-batch, so it is started again:

        result = catch_up(stream.writeStream.format("noop").option("checkpointLocation", folder))
        result = catch_up(lambda: writer.trigger(availableNow=True).start("copied"))

    A started query is only waited for, such as one with `trigger(availableNow=True)`, or after `query.stop()`. The
    session needs no `configure`, because `catch_up` acknowledges the last batch itself.

    Returns a result that is true if everything is read and acknowledged. It is false after the time-out, if an
    acknowledgement fails, or if a limit ended the query before the end of its ledgers. `rows_left`, `left` by ledger
    and `reason` then state what is missing. After the time-out, a query that `catch_up` has started is stopped.

    Raises the query's exception. Raises Refused if a second start of the query has another checkpoint.
    """
    from pyspark_ledger.connector.display.catch_up import catch_up as run_to_end

    return run_to_end(query, timeout_s, progress=progress)


def publish(
    spark: SparkSession,
    ledger: str,
    table: str,
    *,
    options: Mapping[str, str] | None = None,
    progress: bool = False,
    **parameters: Any,
) -> list[Any]:
    """Publish the sealed segments of a ledger to a Delta table, each once. Return the newly published segments.

    `table` is a path or `[catalog.][schema.]table`. `options` are the options of `format("ledger")` that locate the
    ledger: `store`, or `offload` for a bucket. With `progress`, a terminal or a notebook shows a progress bar.
    docs/tables.md explains the other `parameters`.
    """
    from pyspark_ledger.connector.publish.publisher import Publisher
    from pyspark_ledger.connector.publish.request import Publishing
    from pyspark_ledger.ledger.display.progress_bar import progress_bar

    publisher = Publisher(spark, ledger, table, _located(spark, options), Publishing.of(**parameters))
    with progress_bar(f"publish {ledger}", shown=progress) as bar:
        return list(publisher.publish(bar=bar))


def publish_stream(
    spark: SparkSession, ledger: str, table: str, *, options: Mapping[str, str] | None = None, **parameters: Any
) -> DataStreamWriter:
    """Return a streaming query, not yet started, that publishes the newly sealed segments at each trigger.

    The arguments are those of `publish`. Start the query with `.option("checkpointLocation", …).trigger(…).start()`.
    The checkpoint only counts triggers.
    """
    from pyspark_ledger.connector.publish.publisher import publishing_query
    from pyspark_ledger.connector.publish.request import Publishing

    return publishing_query(spark, ledger, table, _located(spark, options), Publishing.of(**parameters))


def _located(spark: SparkSession, options: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return options that locate a ledger. Adds the session's default store if `options` have no store or bucket.

    The location is decided in this process, because `foreachBatch` of Spark Connect runs with the server's variables.
    """
    from pyspark_ledger.connector.session.default_store import default_store, session_store

    explicit = dict(options or {})
    names = {name.lower(): name for name in explicit}
    if "offload" in names:
        return explicit
    if "store" in names:
        return explicit | {names["store"]: session_store(spark, explicit[names["store"]])}
    return {"store": session_store(spark), **(default_store(spark).options or {}), **explicit}


def explain(spark: SparkSession, ledger: str = "", *, options: Mapping[str, str] | None = None) -> ReadPlan:
    """Return the plan of `spark.read.format("ledger")` with these options: columns, and the ranges of each task.

    A notebook shows the plan as a picture, and `print` shows it as text. No row is read. Without a `ledger` the options
    name the ledgers. Raises the errors that the read would raise.
    """
    from pyspark_ledger.connector.display.read_plan import explain as plan

    return plan({**_located(spark, options), **({"path": ledger} if ledger else {})})


def history_of(spark: SparkSession, table: str) -> str:
    """Return the path of a table in the session's catalog, as the value of the option `history`: see docs/tables.md."""
    from pyspark_ledger.connector.read.table.location import table_location

    return table_location(spark, table)


def positions_json(positions: Mapping[str, object]) -> str:
    """Return the value of the option `startingPositions` or `endingPositions`, from a position for each ledger.

    See docs/reading.md.
    """
    from pyspark_ledger.connector.options.positions import positions_json as json_of

    return json_of(positions)


def timestamps_json(timestamps: Mapping[str, Time]) -> str:
    """Return the value of the option `startingTimestamps` or `endingTimestamps`, from a time for each ledger.

    A time is the number of milliseconds since 1970 (UTC), a datetime with a time zone, or an ISO 8601 text with a zone.
    """
    from pyspark_ledger.connector.options.positions import timestamps_json as json_of

    return json_of(timestamps)
