"""Default store of each session: the store of its reads and writes if their options name none.

`register` sets it. Every function that has a session and no store asks `session_store`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pyspark_ledger.ledger.location import store_location


class DefaultStore(NamedTuple):
    """Arguments of the last call of `register` for a session. Without a call, both are None."""

    location: str | None = None
    options: Mapping[str, str] | None = None


_of_sessions: WeakKeyDictionary[Any, DefaultStore] = WeakKeyDictionary()


def set_default_store(spark: Any, default: DefaultStore) -> None:
    _of_sessions[spark] = default


def default_store(spark: Any) -> DefaultStore:
    return DefaultStore() if spark is None else _of_sessions.get(spark, DefaultStore())


def session_store(spark: Any, store: str | os.PathLike[str] | None = None) -> str:
    """Return the location of `store`, else of the session's default store, else of the process's default store."""
    return store_location(store or default_store(spark).location)
