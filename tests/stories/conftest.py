"""A store whose broker is gone when the test is: see `tests.rigs.broker_process`."""

from __future__ import annotations

from tests.rigs.broker_process import store

__all__ = ["store"]
