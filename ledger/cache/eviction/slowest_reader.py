"""`slowest-reader`: what Pulsar does with `cacheEvictionByExpectedReadCount=false`.

First in, first out, by time and by size; beside that, whatever every active reader is past is removed at once, by the
owner of the cache, when a reader moves (`keeps_from`): past in reading, or, by a setting, in acknowledging.

Four settings say which readers count. One whose backlog exceeds `managedLedgerCursorBackloggedThreshold` is too far
behind to keep entries for. What a reader with a backlog of `managedLedgerMinimumBacklogEntriesForCaching` or more
reads from storage is cached when at least `managedLedgerMinimumBacklogCursorsForCaching` others, and at least one, are
within `managedLedgerMaxBacklogBetweenCursorsForCaching` entries of it.
"""

from __future__ import annotations

from pyspark_ledger.ledger.cache.eviction.policy import EvictionDecision, QueuePolicy, WantedRead
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.range_cache import CachedRange
from pyspark_ledger.ledger.position import Position


class SlowestReaderPolicy(QueuePolicy):
    """The cache before PIP-430, with the queue that it brought."""

    def admits(self, wanted: WantedRead) -> bool:
        """By the backlogs of the reader and of those near it."""
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
        """The first position that a reader near enough to the end still needs; None when there is no such reader."""
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
