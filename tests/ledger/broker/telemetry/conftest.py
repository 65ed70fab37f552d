"""Brokers as processes: see `tests.rigs.broker`."""

from __future__ import annotations

from tests.rigs.broker import make_entry, rig, run_directory, session_run_directory

__all__ = ["make_entry", "rig", "run_directory", "session_run_directory"]
