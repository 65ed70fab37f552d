"""Counter of the appends that a log has acknowledged.

The thread that has synced a group of appends updates the counter. Any thread reads it.
"""

from __future__ import annotations

from pyspark_ledger.ledger.protocol.metrics import AppendCounts


class AppendCounter:
    """Appends since the log was opened. `rows_before` is the number of the log's rows when it was opened."""

    __slots__ = ("_counts", "_rows_before")

    def __init__(self, rows_before: int) -> None:
        self._rows_before = rows_before
        self._counts = (0, 0, 0)

    def add(self, appends: int, entries: int, size_bytes: int) -> None:
        """Count acknowledged appends. One thread at a time calls this."""
        before = self._counts
        self._counts = (before[0] + appends, before[1] + entries, before[2] + size_bytes)

    def state(self, rows: int) -> AppendCounts:
        """Return the counts of a log that has `rows` rows now."""
        appends, entries, size_bytes = self._counts
        return AppendCounts(appends, entries, max(rows - self._rows_before, 0), size_bytes)
