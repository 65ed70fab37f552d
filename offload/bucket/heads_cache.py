"""Cache of entry heads in one process, for repeated reads of the same objects.

Spark keeps the processes that plan reads. A second read of a topic in one session therefore finds the heads here. It
does not fetch the topic's bytes to look for transactions and chunks.

Rules
- A key has the access to the store, the object's name, the segment, and the object's sizes and times of change. An
  object that was replaced is thus read again.
- The cache holds heads of at most `entries_max` entries, some 32 bytes each. It evicts the least recently used segment.
- A segment with more entries is not cached.
- Heads are values: nobody changes them after they were read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from pyspark_ledger.offload.bucket.entry_heads import EntryHeads

ENTRIES_MAX = 2 * 1024 * 1024


class HeadsCache:
    """Heads of segments by key, bounded by their entries. Any thread may call it."""

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
        """Keep heads, and evict others if there are too many entries."""
        with self._lock:
            if key in self._heads or _weight(heads) > self._entries_max:
                return
            self._heads[key] = heads
            self._entries += _weight(heads)
            while self._entries > self._entries_max:
                _, evicted = self._heads.popitem(last=False)
                self._entries -= _weight(evicted)


def _weight(heads: EntryHeads) -> int:
    """Return the entries of a segment. Entries of transactions and chunks count tenfold: they are objects."""
    return len(heads) + 10 * (len(heads.transactional) + len(heads.outcomes) + len(heads.chunks))
