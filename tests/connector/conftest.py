"""Fixture of a store whose broker ends with the test (`tests.rigs.broker_thread`)."""

from __future__ import annotations

from tests.rigs.broker_thread import api, store
from tests.rigs.stream import orders

__all__ = ["api", "orders", "store"]
