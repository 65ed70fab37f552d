"""A store of tiny ledgers, and an append queue: see `tests.rigs.log`, `tests.rigs.store`, `tests.rigs.append_queue`."""

from __future__ import annotations

from tests.rigs.append_queue import executor, make, pool
from tests.rigs.log import rig
from tests.rigs.store import store

__all__ = ["executor", "make", "pool", "rig", "store"]
