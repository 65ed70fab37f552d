"""A store with a broker, and one without: see `tests.rigs.broker_process` and `tests.rigs.log`."""

from __future__ import annotations

from tests.rigs.broker_thread import served_store as store
from tests.rigs.log import rig

__all__ = ["rig", "store"]
