"""The errors that a broker wrote to its log, for whoever asks the broker about its health.

Every error that nothing handled is logged as one (`ledger.broker.main` writes the log to broker.log), so nothing that
fails in a thread of the broker's own can go unseen.
"""

from __future__ import annotations

import logging
from collections import deque

_KEPT = 20


class ErrorLog(logging.Handler):
    """A handler of log records that keeps the newest errors, one line each, and counts all."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
        self._errors: deque[str] = deque(maxlen=_KEPT)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an error. Called with the handler's lock held."""
        # The formatter would append the traceback, which is in broker.log.
        line = logging.makeLogRecord(record.__dict__ | {"exc_info": None, "exc_text": None, "stack_info": None})
        found = record.exc_info[1] if record.exc_info else None
        self._errors.append(self.format(line) if found is None else f"{self.format(line)}: {found!r}")
        self._count += 1

    def newest(self) -> tuple[list[str], int]:
        """The newest errors, oldest first, and the number of all since the start."""
        self.acquire()
        try:
            return list(self._errors), self._count
        finally:
            self.release()
