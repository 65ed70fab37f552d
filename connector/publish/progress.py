"""Progress bar of one *pass* of a publisher. A pass publishes all segments that are sealed and not in the table yet.

The bar counts the bytes of these segments. They are the segments of one ledger, or of all its partitions.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_ledger.connector.publish.segments import SealedLog
from pyspark_ledger.ledger.display.amounts import size_words
from pyspark_ledger.ledger.display.progress_bar import ProgressBar
from pyspark_ledger.ledger.names import short_name


class PassProgress:
    """Bar of one pass. Before the publisher reads the table, all segments of a log count as unpublished."""

    def __init__(self, bar: ProgressBar, logs: Iterable[SealedLog]) -> None:
        self._bar = bar
        self._total = {log.name: sum(segment.size_bytes for segment in log.segments) for log in logs}
        self._remaining: dict[str, int] = {}
        if not self._total:
            bar.update(1.0, "no new segment")

    def show(self, log: SealedLog, up_to: int) -> None:
        """Show that the segments of a log up to the id `up_to` are published."""
        if not self._bar.shown:
            return
        remaining = sum(segment.size_bytes for segment in log.segments if segment.ledger_id > up_to)
        if log.name not in self._remaining:
            self._total[log.name] = remaining
        self._remaining[log.name] = remaining
        total = sum(self._total.values())
        done = sum(self._total[name] - size for name, size in self._remaining.items())
        words = f"{size_words(done)} of {size_words(total)}, {short_name(log.name)}"
        self._bar.update(done / total if total else 1.0, words)
