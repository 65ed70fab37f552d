"""Warnings of a streaming run, for its progress report.

Spark keeps the source of a run in a process on the driver's host. A client of Spark Connect does not see the standard
error of this process. So the report has the newest warnings, and the session's listener logs them on the client.

Rules
- A report has at most `LINES_MAX` different lines of `CHARS_MAX` characters. Spark 4.0 and 4.1 store it in the offset.
- The lines also appear on standard error, as without this handler.
"""

from __future__ import annotations

import logging
from collections import deque

LINES_MAX, CHARS_MAX = 5, 500
_PACKAGE = logging.getLogger("pyspark_ledger")


class RunWarnings(logging.Handler):
    """Handler that keeps the newest warnings of this package from `start` to `stop`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def start(self) -> None:
        _PACKAGE.addHandler(self)

    def stop(self) -> None:
        _PACKAGE.removeHandler(self)

    def lines(self) -> list[str]:
        """Return the lines, the newest last."""
        return list(self._lines)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()[:CHARS_MAX]
        if line not in self._lines:
            self._lines.append(line)
        others = [handler for handler in _PACKAGE.handlers if not isinstance(handler, RunWarnings)]
        if logging.lastResort and not others and not logging.getLogger().handlers and _PACKAGE.handlers[0] is self:
            logging.lastResort.handle(record)  # Python does so only for a logger without any handler
