"""Default store of each session: the store of its reads and writes if their options name none.

`session`, `configure` and `serve` set it. Every function that has a session and no store asks `session_store`.

Rules
- The default store of a session is found by the session's id (`session_id`).
- A session of Spark Connect has no `./ledger-store`. Reason: the client's directory is not that of the server.
- A store in a bucket keeps its address. Reason: each host, and each user, has another directory for its files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_ledger.connector.session.session_id import session_id, set_session_id
from pyspark_ledger.connector.spark_features import is_connect
from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.location import location_text, store_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = "spark.ledger.defaultStore"


class DefaultStore(NamedTuple):
    """Default store of a session, None if no call and no variable names a store.

    `is_named` is set if a call has named the store, and unset if the variable `LEDGER_STORE` has.
    """

    location: str | None = None
    options: Mapping[str, str] | None = None
    is_named: bool = False


_defaults: dict[str, DefaultStore] = {}


def use_store(
    spark: SparkSession, store: str | os.PathLike[str] | None, options: Mapping[str, str] | None
) -> SparkSession:
    """Set the default store of a session to `store`, else to its present one, else to that of the variable."""
    present = default_store(spark)
    if store is None and present.is_named:
        set_default_store(spark, present if options is None else present._replace(options=options))
    else:
        named = store or os.environ.get("LEDGER_STORE")
        location = location_text(store_location(named)) if named else None
        set_default_store(spark, DefaultStore(location, options, is_named=store is not None))
    return spark


def set_default_store(spark: SparkSession, default: DefaultStore) -> None:
    """Register the data source with a session, with a default store. A repeated call changes nothing."""
    from pyspark_ledger.connector.default_source import DefaultSource
    from pyspark_ledger.connector.spark_features import register_source

    if _defaults.get(session_id(spark, CONF)) == default:
        return
    source: Any = DefaultSource
    if default.location:
        defaults = {"default_store": default.location, "default_options": dict(default.options or {})}
        source = type("LedgerDefaultSource", (DefaultSource,), defaults)
    try:
        register_source(spark, source)
    except Unsupported:
        if default.location:
            raise
        # Spark keeps the source that it has discovered, which has no default store either.
    _defaults[set_session_id(spark, CONF)] = default


def default_store(spark: SparkSession | None) -> DefaultStore:
    return DefaultStore() if spark is None else _defaults.get(session_id(spark, CONF), DefaultStore())


def session_store(spark: SparkSession | None, store: str | os.PathLike[str] | None = None) -> str:
    """Return `store`, else the session's default store, else the process's default store: a directory or an address."""
    named = store or default_store(spark).location
    if not named and "LEDGER_STORE" not in os.environ and spark is not None and is_connect(spark):
        raise Refused(
            "no store is named, and a session of Spark Connect has no default: ./ledger-store would lie on the client",
            hint="Set option 'store', or call configure(spark, store=…) with an absolute directory of the server's "
            "host, a bucket, or a broker's address",
        )
    return location_text(store_location(named))
