"""Block of the cache: entries that were appended or read together. Memory is allocated and freed for whole blocks.

A block stays whole while at least one range of its entries is cached (`ledger.cache.range_cache`).

Invariant: `block.spans` is the number of cached ranges of the block. When it becomes 0, the cache releases the block's
storage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from pyspark_ledger.ledger.segment.index import Integers

Edges = Callable[[int, int], Integers]
NOTHING_AHEAD = 2**63


class BlockStorage(Protocol):
    """Storage of a block's bytes outside its segment (the file of the ledger)."""

    @property
    def frames(self) -> pa.Buffer:
        """The bytes of the block. The caller must have a reference."""

    def acquire(self) -> BlockReference:
        """Return a reference to the bytes. Must not be called after `release`."""

    def release(self) -> None:
        """Release the cache's own reference. References of readers stay valid."""

    def is_pinned(self) -> bool:
        """Return whether the cache has released the block, and a reader still has a reference."""

    def is_referenced(self) -> bool:
        """Return whether a reader has mapped the block."""


class BlockReference(Protocol):
    """Reference to the bytes of a whole block."""

    @property
    def frames(self) -> pa.Buffer: ...


class CachedBlock:
    """Entries `[first, end)` of a segment in one buffer of `size` bytes.

    `edges(first, end)` returns the offsets of the entries in the block, and the block's end. It is called only if a
    part of the block is needed. Entries from `ahead` on were prefetched and not served yet. `offloaded` means that the
    block was read from object storage.

    A block without a storage is in its segment file. The cache then only counts the bytes that the block probably has
    in the system's page cache.
    """

    __slots__ = ("_table", "ahead", "edges", "end", "first", "ledger_id", "offloaded", "size", "spans", "storage")

    def __init__(
        self,
        ledger_id: int,
        first: int,
        end: int,
        size: int,
        edges: Edges,
        storage: BlockStorage | None = None,
        *,
        offloaded: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.end = end
        self.size = size
        self.storage = storage
        self.offloaded = offloaded
        self.spans = 0
        self.ahead = NOTHING_AHEAD
        self.edges = edges
        self._table: Integers | None = None

    def acquire(self) -> BlockReference | None:
        """Return a reference to the bytes, or None if they are in the segment file."""
        return None if self.storage is None else self.storage.acquire()

    def given(self, first: int, end: int) -> tuple[int, int]:
        """Record that entries `[first, end)` were served. Return how many of them were prefetched, and their bytes."""
        prefetched = max(first, self.ahead)
        if prefetched >= end:
            return 0, 0
        self.ahead = end if end < self.end else NOTHING_AHEAD
        return end - prefetched, self.cut(prefetched, end)[1]

    def cut(self, first: int, end: int) -> tuple[int, int]:
        """Return the offset and the length of entries `[first, end)` in the block."""
        if first == self.first and end == self.end:
            return 0, self.size
        if self._table is None or len(self._table) <= end - self.first:
            self._table = self.edges(self.first, self.end)
        start = int(self._table[first - self.first])
        return start, int(self._table[end - self.first]) - start
