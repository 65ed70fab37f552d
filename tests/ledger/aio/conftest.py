"""A store with a broker: see `tests.rigs.broker_thread`."""

from __future__ import annotations

from tests.rigs.broker_thread import served_store as store
from tests.rigs.log import rig

__all__ = ["rig", "store"]
