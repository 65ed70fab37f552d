"""Cache of entry heads in one process, for repeated reads of the same objects.

The head of an entry is its offset, length, time, number of rows and transaction (`entry_heads`). A read needs the heads
of a topic to find transactions and chunks, and must fetch all bytes of the topic to get the heads. Spark reuses the
processes that plan reads. So a second read of the topic in one session gets the heads from this cache. A segment is one
file of a ledger.

Rules
- The key has the store's address and options, the object's name, the segment, and the object's sizes and times of
  change. So an object that was replaced is read again.
- The cache has heads of at most `entries_max` entries, about 32 bytes each. It evicts the least recently used segment.
- A segment with more entries is not cached.
- Cached heads are never changed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from pyspark_ledger.offload.bucket.entry_heads import EntryHeads

ENTRIES_MAX = 2 * 1024 * 1024


class HeadsCache:
    """Heads of segments by key. Thread-safe."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._lock = threading.Lock()
        self._heads: OrderedDict[Hashable, EntryHeads] = OrderedDict()
        self._entries = 0

    def get(self, key: Hashable) -> EntryHeads | None:
        """Return the heads of a key, or None."""
        with self._lock:
            found = self._heads.get(key)
            if found is not None:
                self._heads.move_to_end(key)
            return found

    def put(self, key: Hashable, heads: EntryHeads) -> None:
        """Cache heads, and evict other heads if the cache has too many entries."""
        with self._lock:
            if key in self._heads or _weight(heads) > self._entries_max:
                return
            self._heads[key] = heads
            self._entries += _weight(heads)
            while self._entries > self._entries_max:
                _, evicted = self._heads.popitem(last=False)
                self._entries -= _weight(evicted)


def _weight(heads: EntryHeads) -> int:
    """Return the size of heads as a number of entries. Entries of transactions and chunks count tenfold."""
    return len(heads) + 10 * (len(heads.transactional) + len(heads.outcomes) + len(heads.chunks))
