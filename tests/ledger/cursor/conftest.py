"""A cursor at the beginning of a log: see `tests.rigs.cursors`."""

from __future__ import annotations

from tests.rigs.cursors import rig

__all__ = ["rig"]
