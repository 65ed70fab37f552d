"""A store with a broker: see `tests.rigs.broker_process`."""

from __future__ import annotations

from tests.rigs.broker_process import served_store as store

__all__ = ["store"]
