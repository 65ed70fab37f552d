"""Retries of a request to object storage that may succeed later. `s3_errors` decides which errors may."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import Archived, Unavailable

_ATTEMPTS = 4
_PAUSE_MS, _PAUSE_MS_MAX = 200, 10_000
T = TypeVar("T")


def retry(action: Callable[[], T]) -> T:
    """Return the result of `action`. Retries up to 3 times with growing pauses while it raises Unavailable."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return action()
        except Archived:
            raise
        except Unavailable:
            pause(min(_PAUSE_MS << attempt, _PAUSE_MS_MAX))
    return action()
