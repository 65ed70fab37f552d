"""Counter of a log's segments (files) that publishers have committed to Delta tables, and of failed publications."""

from __future__ import annotations

import threading

from pyspark_ledger.ledger.protocol.metrics import PublishCounts, ReportPublished


class PublishCounter:
    """Publications since the log was opened. Publishers report them. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = PublishCounts()

    def add(self, report: ReportPublished) -> None:
        """Count the reported segment, or the reported failure."""
        with self._lock:
            before = self._counts
            if report.failed:
                counts = PublishCounts(before.segments, before.rows, before.size_bytes, before.failures + 1)
            else:
                rows, size_bytes = before.rows + max(report.rows, 0), before.size_bytes + report.size_bytes
                counts = PublishCounts(before.segments + 1, rows, size_bytes, before.failures)
            self._counts = counts

    def state(self) -> PublishCounts:
        """Return the present counts."""
        return self._counts
