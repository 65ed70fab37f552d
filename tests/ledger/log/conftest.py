"""A store of tiny ledgers: see `tests.rigs.log` and `tests.rigs.store`."""

from __future__ import annotations

from tests.rigs.log import rig
from tests.rigs.store import store

__all__ = ["rig", "store"]
