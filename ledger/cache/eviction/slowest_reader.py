"""`slowest-reader`: Pulsar's policy with `cacheEvictionByExpectedReadCount=false`.

First in, first out, by time and by size. In addition, a move of a reader removes what every active reader has passed,
by reading or, with a setting, by acknowledging (`keeps_from`). The owner of the cache removes it.

Four settings select the readers that count. A reader with a backlog above `managedLedgerCursorBackloggedThreshold` is
too far behind to keep entries for. Reads from storage of a reader with a backlog of
`managedLedgerMinimumBacklogEntriesForCaching` or more are cached under a condition. At least
`managedLedgerMinimumBacklogCursorsForCaching` others, and at least one, must be within
`managedLedgerMaxBacklogBetweenCursorsForCaching` entries of it.
"""

from __future__ import annotations

from pyspark_ledger.ledger.cache.eviction.policy import EvictionDecision, QueuePolicy, WantedRead
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.range_cache import CachedRange
from pyspark_ledger.ledger.position import Position


class SlowestReaderPolicy(QueuePolicy):
    """Policy of Pulsar's cache before PIP-430, with the queue of PIP-430."""

    def admits(self, wanted: WantedRead) -> bool:
        """Decide by the backlogs of the reader and of those near it."""
        least = self.settings.managedLedgerMinimumBacklogCursorsForCaching
        if least < 1:
            return False
        behind = wanted.readers.backlogs()
        own = behind.get(wanted.reader)
        if own is None or own < self.settings.managedLedgerMinimumBacklogEntriesForCaching:
            return False
        near = self.settings.managedLedgerMaxBacklogBetweenCursorsForCaching
        others = sum(abs(backlog - own) <= near for name, backlog in behind.items() if name != wanted.reader)
        return others >= least

    def keeps_from(self, readers: LedgerReaders) -> Position | None:
        """Return the first position that a reader near the end still needs; None if there is no such reader."""
        behind = readers.backlogs()
        active = [
            name for name, backlog in behind.items() if backlog <= self.settings.managedLedgerCursorBackloggedThreshold
        ]
        places = [
            readers.place(name, acknowledged=bool(self.settings.cacheEvictionByMarkDeletedPosition)) for name in active
        ]
        return min(places, default=None)

    def verdict(self, span: CachedRange, _now_ms: int) -> EvictionDecision:
        extends = self.settings.managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed
        return EvictionDecision.REQUEUE if extends and span.accessed else EvictionDecision.REMOVE
