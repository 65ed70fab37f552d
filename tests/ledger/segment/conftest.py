"""A segment in a directory of its own: see `tests.rigs.segment`."""

from __future__ import annotations

from tests.rigs.segment import make_rig, rig

__all__ = ["make_rig", "rig"]
