"""Managed ledgers for Spark: the few names that a user imports, and the class that Spark finds by itself.

    from pyspark_ledger import session, connect, register

Spark imports every top-level module called `pyspark_*` to look for a `DefaultSource`; one that fails hides them all, so
importing this module never fails and imports nothing heavy. Whether the packages behind it are the right ones is
checked when the source is used: a file `ledger.py` next to a notebook would take the place of the package.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

try:
    from pyspark.sql.datasource import DataSource
except Exception:  # noqa: BLE001 — connect() needs no Spark, and no other source suffers from one that is broken
    DataSource = object  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from connector.bucket_source import BucketSource
    from connector.data_source import LedgerSource
    from ledger.api import LedgerStore

__version__ = "0.1.0"
__all__ = [
    "DefaultSource",
    "__version__",
    "acknowledge",
    "configure",
    "connect",
    "history_of",
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

_PACKAGES = ("connector", "ledger", "offload")
# The default store of each session, with its options, as `register` was given them.
_registered: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


def _faced(method: Any) -> Any:
    """Let an error of ours leave with one frame, as `connector.spark_face` does, which must not be imported here."""

    @wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return method(*given, **named)
        except ImportError:  # of packages that are not ours, perhaps
            raise
        except Exception as error:
            from connector.spark_face import bare
            from ledger.errors import LedgerError

            if not isinstance(error, LedgerError):
                raise
            raise bare(error) from None

    return call


class DefaultSource(DataSource):
    """The data source `ledger`; its options are in docs/options.md."""

    default_store: str | None = None
    default_options: Mapping[str, str] = MappingProxyType({})  # what goes with that store

    @_faced
    def __init__(self, options: MutableMapping[str, str]) -> None:
        _require_own_packages()
        super().__init__(options)
        from connector.data_source import source_for

        self._source: LedgerSource | BucketSource = source_for(
            options, __version__, self.default_store, self.default_options
        )

    @classmethod
    def name(cls) -> str:
        """What `format()` is given."""
        return "ledger"

    @_faced
    def schema(self) -> StructType:
        """The ledger's columns, and metadata when asked for."""
        return self._source.schema()

    @_faced
    def reader(self, schema: StructType) -> Any:
        """A bounded read."""
        return self._source.batch_reader(schema)

    @_faced
    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  # Spark's name
        """A stream."""
        return self._source.stream_reader(schema)

    @_faced
    def writer(self, schema: StructType, overwrite: bool) -> Any:  # Spark's signature
        """An append."""
        return self._source.batch_writer(schema, overwrite=overwrite)

    @_faced
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002, N802  # Spark's
        """A streaming sink; complete mode comes as `overwrite` and appends."""
        return self._source.stream_writer(schema)


def register(
    spark: SparkSession, *, store: str | os.PathLike[str] | None = None, options: Mapping[str, str] | None = None
) -> SparkSession:
    """Register the source with a session. Needed only where Spark does not find it, or to name a default store.

    `options` go with that store, such as the files to show to its broker; a read or write that names another store does
    not get them.

    `store` (or this process's `LEDGER_STORE`) becomes the default of option `store`: the processes in which Spark makes
    sources were started earlier and do not see later changes of this process's environment.
    """
    _require_own_packages()
    from ledger.store_location import store_location

    chosen = store or os.environ.get("LEDGER_STORE")
    _registered[spark] = (store, options)
    source: Any = DefaultSource
    if chosen:
        defaults = {"default_store": store_location(chosen), "default_options": dict(options or {})}
        source = type("LedgerDefaultSource", (DefaultSource,), defaults)
    spark.dataSource.register(source)
    return spark


def connect(
    store: str | os.PathLike[str] | None = None, *, ca: str = "", certificate: str = "", key: str = "", token: str = ""
) -> LedgerStore:
    """A store without Spark: `connect().ledger("orders").append([{"id": 1}])`. See `ledger.api`."""
    _require_own_packages()
    from ledger.api import connect as connect_store

    return connect_store(store, ca=ca, certificate=certificate, key=key, token=token)


def serve(
    spark: SparkSession, store: str | os.PathLike[str] | None = None, *, host: str | None = None, port: int = 0
) -> Any:
    """Start a broker on the driver's host that executors on other hosts reach, and make it the session's default.

    `store` is a directory of the driver's host; `host` is how executors call it (`spark.driver.host` by default). The
    answer has `address`, `connect()`, and `stop()`, which gives the session its former default. See docs/clusters.md.
    """
    _require_own_packages()
    from connector.cluster import serve_session

    default, options = _registered.get(spark, (None, None))
    leave = partial(register, spark, store=default, options=options)
    served = serve_session(spark, None if store is None else os.fspath(store), host, port, leave)
    register(spark, store=served.address, options=served.options)
    return served


def session(app_name: str = "pyspark-ledger", *, delta: bool = False, **conf: object) -> SparkSession:
    """A local Spark session with what a Python source runs well with; `conf` adds to it, `_` for `.` in names.

    With `delta` it has Delta's tables: Spark fetches their jars once, from Maven Central.
    """
    _require_own_packages()
    from connector.session import local_session

    return local_session(app_name, conf, delta=delta)


def configure(spark: SparkSession) -> SparkSession:
    """Set what can be set on a running session, show the lines for what cannot, and let it acknowledge its batches."""
    _require_own_packages()
    from connector.session import configure_session

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
    """Acknowledge in a subscription's name all rows of a frame, or give them back with `nack`; see docs/cursors.md.

    The frame has a column `__position` or `__messageId`. `options` are those of the write, such as the files to show to
    the broker.
    """
    _require_own_packages()
    from connector.acknowledge_frame import acknowledge_frame

    at = {} if store is None else {"store": os.fspath(store)}
    acknowledge_frame(frame, ledger, subscription, action, {**(options or {}), **at})


def settle(spark: SparkSession, timeout_s: float = 10.0) -> bool:
    """Wait until what the session's ended queries committed is acknowledged, too; False when it takes longer.

    Acknowledgements follow the commits of `session()` and `configure()` within milliseconds, in the background.
    """
    _require_own_packages()
    from connector.acknowledging import settle as settle_session

    return settle_session(spark, timeout_s)


def watch(spark: SparkSession, show: Any = None, *, prometheus: Any = None) -> Any:
    """Show lag, cache and size of the batches of a session's queries; the listener, for `spark.streams.removeListener`.

    Prints lines, unless `show` is a function that takes a `LedgerProgress`. With `prometheus`, a registry of
    prometheus-client, they become gauges `ledger_stream_…` there.
    """
    _require_own_packages()
    from connector.progress_watch import watch as watch_session

    return watch_session(spark, show, prometheus)


def publish(
    spark: SparkSession, ledger: str, table: str, *, options: Mapping[str, str] | None = None, **wishes: Any
) -> list[Any]:
    """Put what is sealed of a ledger into a Delta table, each segment once; answers the segments that were missing.

    `table` is a path or `[catalog.][schema.]table`; `options` are those of `format("ledger")` that say where the ledger
    is: `store`, or `offload` for a bucket. For `wishes` see docs/tables.md.
    """
    _require_own_packages()
    from connector.publisher import Publisher
    from connector.publishing import Publishing

    return list(Publisher(spark, ledger, table, options, Publishing.of(**wishes)).publish())


def publish_stream(
    spark: SparkSession, ledger: str, table: str, *, options: Mapping[str, str] | None = None, **wishes: Any
) -> DataStreamWriter:
    """`publish` as a streaming query that is not started yet: each trigger publishes what was sealed since.

    Say `.option("checkpointLocation", …).trigger(…).start()`. The checkpoint counts triggers; how far the table is, the
    table says.
    """
    _require_own_packages()
    from connector.publishing import Publishing
    from connector.publishing_query import publishing_query

    return publishing_query(spark, ledger, table, options or {}, Publishing.of(**wishes))


def history_of(spark: SparkSession, table: str) -> str:
    """The path of a table of the session's catalog, for option `history`: see docs/tables.md."""
    _require_own_packages()
    from connector.table_location import table_location

    return table_location(spark, table)


def positions_json(positions: Mapping[str, object]) -> str:
    """The text for options `startingPositions` and `endingPositions`, of places by ledger: see docs/reading.md."""
    _require_own_packages()
    from connector.ledger_positions import positions_json as built

    return built(positions)


def timestamps_json(timestamps: Mapping[str, int | datetime]) -> str:
    """The text for options `startingTimestamps` and `endingTimestamps`, of milliseconds or datetimes by ledger."""
    _require_own_packages()
    from connector.ledger_positions import timestamps_json as built

    return built(timestamps)


def _require_own_packages() -> None:
    home = Path(__file__).resolve().parent
    for package in _PACKAGES:
        for found in _origins(package):
            if found.parent != home / package:
                message = (
                    f"'import {package}' finds {found}, pyspark-ledger needs {home / package / '__init__.py'}; "
                    f"rename the first, or start Python in another directory"
                )
                raise ImportError(message)


def _origins(package: str) -> Iterator[Path]:
    spec = find_spec(package)
    if spec is None:
        message = f"'import {package}' finds nothing, pyspark-ledger needs {Path(__file__).resolve().parent / package}"
        raise ImportError(message)
    if spec.origin:
        yield Path(spec.origin).resolve()
    for place in spec.submodule_search_locations or ():
        yield Path(place).resolve() / "__init__.py"
