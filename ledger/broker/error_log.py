"""Newest errors in the broker's log, for health checks.

The broker logs every unexpected error, also errors of its background threads. `Health` reports the errors that this
handler keeps.
"""

from __future__ import annotations

import logging
from collections import deque

_KEPT = 20


class ErrorLog(logging.Handler):
    """Log handler that keeps the newest errors, one line each, and counts all errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
        self._errors: deque[tuple[float, str]] = deque(maxlen=_KEPT)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Record an error. Called with the handler's lock held."""
        # Without these fields the formatter does not append the traceback, which is in broker.log.
        line = logging.makeLogRecord(record.__dict__ | {"exc_info": None, "exc_text": None, "stack_info": None})
        error = record.exc_info[1] if record.exc_info else None
        text = self.format(line) if error is None else f"{self.format(line)}: {error!r}"
        self._errors.append((record.created * 1000, text))
        self._count += 1

    def newest(self) -> tuple[list[str], int]:
        """Return the newest errors, oldest first, and the number of all errors since the start."""
        self.acquire()
        try:
            return [text for _, text in self._errors], self._count
        finally:
            self.release()

    def since(self, time_ms: int) -> list[str]:
        """Return the kept errors since `time_ms`, oldest first."""
        self.acquire()
        try:
            return [text for at_ms, text in self._errors if at_ms >= time_ms]
        finally:
            self.release()
