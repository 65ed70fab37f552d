"""One ledger's part of the cache, and the values that reading through it comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ledger.cache.cache_counts import CacheCounts
from ledger.cache.cached_span import CachedBlock, CachedSpan, Held
from ledger.cache.ledger_readers import LedgerReaders
from ledger.cache.pending_reads import PendingReads
from ledger.cache.range_cache import RangeCache

Load = Callable[[int, int], CachedBlock]
"""Reads entries `[first, end)` of the ledger in question from storage, as one block."""


class Part(NamedTuple):
    """Entries `[first, end)` of a block, and the block's bytes, held, when they are not in the file of the ledger."""

    block: CachedBlock
    first: int
    end: int
    held: Held | None


class Loaded(NamedTuple):
    """A block that was read, held by whoever waits for it: it may be evicted before they look."""

    block: CachedBlock
    held: Held | None


class LedgerCache:
    """What is cached of a ledger, counted of it and read of it now. Under the lock of the whole cache."""

    def __init__(self, cache: RangeCache) -> None:
        self.cache = cache
        self.counts = CacheCounts()
        self.pending: PendingReads[Loaded] = PendingReads()
        self.tail: CachedSpan | None = None

    @property
    def readers(self) -> LedgerReaders:
        """Who reads it."""
        return self.cache.readers
