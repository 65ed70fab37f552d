"""Python API without Spark: `connect()` and `open_read_only()` return a store, which returns ledgers and cursors.

`pyspark_ledger` has the same names. They are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_ledger.ledger.api.store import LedgerStore, connect, open_read_only

__all__ = ["LedgerStore", "connect", "open_read_only"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module("pyspark_ledger.ledger.api.store"), name)
