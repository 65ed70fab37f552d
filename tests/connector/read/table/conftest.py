"""Fixture of a published table (`tests.rigs.published_history`)."""

from __future__ import annotations

from tests.rigs.published_history import table

__all__ = ["table"]
