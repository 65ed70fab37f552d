"""Fixture of a store whose broker is killed and restarted (`tests.rigs.victim`)."""

from __future__ import annotations

from tests.rigs.victim import dice, make_entry, read_log, victim

__all__ = ["dice", "make_entry", "read_log", "victim"]
