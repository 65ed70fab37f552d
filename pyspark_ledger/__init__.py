"""Managed ledgers for Spark: the names that a user imports, and the class that Spark discovers.

    from pyspark_ledger import session, connect, register

The folders in this package are links to `connector`, `ledger` and `offload` at the top of the repository; the wheel has
them as folders. Spark imports every top-level module called `pyspark_*` to look for a `DefaultSource`. So importing
this package never fails and imports nothing heavy.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from pyspark_ledger.ledger.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pyspark_ledger.connector.default_source import DefaultSource
    from pyspark_ledger.ledger.api.cursor import Cursor
    from pyspark_ledger.ledger.api.ledger import Ledger
    from pyspark_ledger.ledger.api.store import LedgerStore, connect, open_read_only
    from pyspark_ledger.ledger.errors import (
        AlreadyExists,
        Corrupt,
        DataLoss,
        Fenced,
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

__all__ = [
    "EARLIEST",
    "LATEST",
    "AlreadyExists",
    "Corrupt",
    "Cursor",
    "DataLoss",
    "DefaultSource",
    "Fenced",
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
    "configure",
    "connect",
    "history_of",
    "open_read_only",
    "positions_json",
    "publish",
    "publish_stream",
    "register",
    "serve",
    "session",
    "settle",
    "timestamps_json",
    "watch",
]

# Loaded on first use (PEP 562), so that a broker never loads Spark.
_LAZY = {
    "AlreadyExists": "pyspark_ledger.ledger.errors",
    "Corrupt": "pyspark_ledger.ledger.errors",
    "Cursor": "pyspark_ledger.ledger.api.cursor",
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
    "Terminated": "pyspark_ledger.ledger.errors",
    "Unauthenticated": "pyspark_ledger.ledger.errors",
    "Unavailable": "pyspark_ledger.ledger.errors",
    "Unsupported": "pyspark_ledger.ledger.errors",
    "connect": "pyspark_ledger.ledger.api.store",
    "open_read_only": "pyspark_ledger.ledger.api.store",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    found = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# The default store of each session, with its options, as `register` was given them.
_registered: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


def register(
    spark: SparkSession, *, store: str | os.PathLike[str] | None = None, options: Mapping[str, str] | None = None
) -> SparkSession:
    """Register the source with a session. Needed only if Spark does not find it, or to name a default store.

    `options` belong to that store, such as the client's certificate files. A read or write that names another store
    does not get them.

    `store` (or this process's `LEDGER_STORE`) becomes the default of option `store`. Reason: the processes in which
    Spark creates sources were started earlier and do not see later changes of this process's environment.
    """
    from pyspark_ledger.ledger.location import store_location

    chosen = store or os.environ.get("LEDGER_STORE")
    _registered[spark] = (store, options)
    from pyspark_ledger.connector.default_source import DefaultSource
    from pyspark_ledger.connector.spark_features import register_source

    source: Any = DefaultSource
    if chosen:
        defaults = {"default_store": store_location(chosen), "default_options": dict(options or {})}
        source = type("LedgerDefaultSource", (DefaultSource,), defaults)
    register_source(spark, source)
    return spark


def serve(
    spark: SparkSession, store: str | os.PathLike[str] | None = None, *, host: str | None = None, port: int = 0
) -> Any:
    """Start a broker on the driver's host for executors on other hosts, and make its store the session's default.

    `store` is a directory of the driver's host; `host` is its name for executors (`spark.driver.host` by default). The
    result has `address`, `connect()`, and `stop()`, which restores the session's former default. See docs/clusters.md.
    """
    from pyspark_ledger.connector.session.cluster import serve_session

    default, options = _registered.get(spark, (None, None))
    leave = partial(register, spark, store=default, options=options)
    served = serve_session(spark, None if store is None else os.fspath(store), host, port, leave)
    register(spark, store=served.address, options=served.options)
    return served


def session(app_name: str = "pyspark-ledger", *, delta: bool = False, **conf: object) -> SparkSession:
    """Return a local Spark session with settings for Python sources; `conf` adds settings, `_` for `.` in names.

    With `delta` it has Delta's tables: Spark downloads their jars once, from Maven Central.
    """
    from pyspark_ledger.connector.session.session import local_session

    return local_session(app_name, conf, delta=delta)


def configure(spark: SparkSession) -> SparkSession:
    """Set what a running session allows, print the missing lines, and make the session acknowledge its batches."""
    from pyspark_ledger.connector.session.session import configure_session

    return configure_session(spark)


def acknowledge(
    frame: DataFrame,
    ledger: str,
    subscription: str,
    *,
    action: Literal["ack", "nack"] = "ack",
    store: str | os.PathLike[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> None:
    """Acknowledge all rows of a frame for a subscription, or return them with `nack`; see docs/cursors.md.

    The frame has a column `__position` or `__messageId`. `options` are those of the write, such as the client's
    certificate files.
    """
    from pyspark_ledger.connector.write.acknowledge import acknowledge_frame

    at = {} if store is None else {"store": os.fspath(store)}
    acknowledge_frame(frame, ledger, subscription, action, {**(options or {}), **at})


def settle(spark: SparkSession, timeout_s: float = 10.0) -> bool:
    """Wait until the commits of the session's ended queries are acknowledged. Return False after the time-out.

    Acknowledgements follow the commits of `session()` and `configure()` within milliseconds, in the background.
    """
    from pyspark_ledger.connector.session.commit_listener import settle as settle_session

    return settle_session(spark, timeout_s)


def watch(spark: SparkSession, show: Any = None, *, prometheus: Any = None) -> Any:
    """Show lag, cache and size of the batches of a session's queries. Return the listener.

    Prints lines, unless `show` is a function that takes a `LedgerProgress`. With `prometheus`, a registry of
    prometheus-client, they become gauges `ledger_stream_…` there. `spark.streams.removeListener` stops it.
    """
    from pyspark_ledger.connector.session.metrics import watch as watch_session

    return watch_session(spark, show, prometheus)


def publish(
    spark: SparkSession, ledger: str, table: str, *, options: Mapping[str, str] | None = None, **wishes: Any
) -> list[Any]:
    """Publish the sealed segments of a ledger to a Delta table, each once. Return the newly published ones.

    `table` is a path or `[catalog.][schema.]table`. `options` are those of `format("ledger")` that locate the ledger:
    `store`, or `offload` for a bucket. Without them it is in the session's default store. docs/tables.md explains
    `wishes`.
    """
    from pyspark_ledger.connector.publish.publisher import Publisher
    from pyspark_ledger.connector.publish.request import Publishing

    return list(Publisher(spark, ledger, table, _located(spark, options), Publishing.of(**wishes)).publish())


def publish_stream(
    spark: SparkSession, ledger: str, table: str, *, options: Mapping[str, str] | None = None, **wishes: Any
) -> DataStreamWriter:
    """Return `publish` as a streaming query that is not started: each trigger publishes the newly sealed segments.

    Call `.option("checkpointLocation", …).trigger(…).start()`. The checkpoint only counts triggers; the table itself
    states what is published.
    """
    from pyspark_ledger.connector.publish.publisher import publishing_query
    from pyspark_ledger.connector.publish.request import Publishing

    return publishing_query(spark, ledger, table, _located(spark, options), Publishing.of(**wishes))


def _located(spark: SparkSession, options: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return options of a ledger. The session's default store is added if they name neither a store nor a bucket."""
    given = options or {}
    store, client = _registered.get(spark, (None, None))
    if store is None or {"store", "offload"} & {name.lower() for name in given}:
        return given
    return {"store": os.fspath(store), **(client or {}), **given}


def history_of(spark: SparkSession, table: str) -> str:
    """Return the path of a table of the session's catalog, for option `history`: see docs/tables.md."""
    from pyspark_ledger.connector.read.table.location import table_location

    return table_location(spark, table)


def positions_json(positions: Mapping[str, object]) -> str:
    """Return the text for options `startingPositions` and `endingPositions`, by ledger: see docs/reading.md."""
    from pyspark_ledger.connector.options.positions import positions_json as built

    return built(positions)


def timestamps_json(timestamps: Mapping[str, Time]) -> str:
    """Return the text for options `startingTimestamps` and `endingTimestamps`, by ledger.

    A time is milliseconds since 1970, or a datetime or ISO 8601 text with a zone.
    """
    from pyspark_ledger.connector.options.positions import timestamps_json as built

    return built(timestamps)
