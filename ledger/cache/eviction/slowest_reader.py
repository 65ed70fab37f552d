"""`slowest-reader`: Pulsar's policy with `cacheEvictionByExpectedReadCount=false`.

Ranges are evicted by age and by size, the oldest first. In addition, after each move of a reader the cache evicts the
entries that all active readers have passed. A reader passes an entry by reading it. With the setting
`cacheEvictionByMarkDeletedPosition` a reader passes an entry by acknowledging it.

A reader's backlog is the number of entries that it has not read. A reader with a backlog above 1,000 entries, which is
Pulsar's default, is not active: entries do not stay cached for it. Entries that a reader reads from storage are cached
only in unused memory.
"""

from __future__ import annotations

from pyspark_ledger.ledger.cache.eviction.policy import EvictionDecision, QueuePolicy, WantedRead
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.range_cache import CachedRange
from pyspark_ledger.ledger.position import Position

_BACKLOG_MAX = 1_000


class SlowestReaderPolicy(QueuePolicy):
    """Policy of Pulsar before PIP-430, implemented with the queue of PIP-430."""

    def admits(self, _wanted: WantedRead) -> bool:
        return False

    def keeps_from(self, readers: LedgerReaders) -> Position | None:
        """Return the position of the slowest active reader, or None without active readers."""
        behind = readers.backlogs()
        active = [name for name, backlog in behind.items() if backlog <= _BACKLOG_MAX]
        places = [
            readers.place(name, acknowledged=bool(self.settings.cacheEvictionByMarkDeletedPosition)) for name in active
        ]
        return min(places, default=None)

    def verdict(self, span: CachedRange, _now_ms: int) -> EvictionDecision:
        extends = self.settings.managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed
        return EvictionDecision.REQUEUE if extends and span.accessed else EvictionDecision.REMOVE
