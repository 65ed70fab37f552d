"""Block of the cache: entries that were appended or read together, and the unit of memory.

A block is kept whole as long as a range of it is cached (`ledger.cache.range_cache`).

Invariant: `block.spans` counts the cached ranges of the block. At 0 its storage is released, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from pyspark_ledger.ledger.segment.index import Integers

Edges = Callable[[int, int], Integers]
NOTHING_AHEAD = 2**63


class BlockStorage(Protocol):
    """Storage of a block's bytes outside of its segment file."""

    @property
    def frames(self) -> pa.Buffer:
        """Bytes, for a holder of a reference."""

    def acquire(self) -> BlockReference:
        """Return a reference to the bytes. Not allowed after `release`."""

    def release(self) -> None:
        """Release the cache's reference. Readers keep theirs."""

    def is_pinned(self) -> bool:
        """Return whether a reader still references released memory."""

    def is_referenced(self) -> bool:
        """Return whether a reader has mapped the block, released or not."""


class BlockReference(Protocol):
    """Reference to the bytes of a whole block."""

    @property
    def frames(self) -> pa.Buffer: ...


class CachedBlock:
    """Entries `[first, end)` of a segment in one buffer of `size` bytes.

    `edges(first, end)` returns `end - first + 1` offsets of entries in the block, the last being its end. It is called
    only for a part of the block. Entries from `ahead` on were prefetched and not served yet. Without a storage the
    block is the account of a local file. `offloaded`: read from object storage.
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
        """Return a reference to its bytes; None if they are in the segment file."""
        return None if self.storage is None else self.storage.acquire()

    def given(self, first: int, end: int) -> tuple[int, int]:
        """Record that entries `[first, end)` are served. Return their prefetched entries and bytes."""
        late = max(first, self.ahead)
        if late >= end:
            return 0, 0
        self.ahead = end if end < self.end else NOTHING_AHEAD
        return end - late, self.cut(late, end)[1]

    def cut(self, first: int, end: int) -> tuple[int, int]:
        """Return offset and length of entries `[first, end)` in the block."""
        if first == self.first and end == self.end:
            return 0, self.size
        if self._table is None or len(self._table) <= end - self.first:
            self._table = self.edges(self.first, self.end)
        start = int(self._table[first - self.first])
        return start, int(self._table[end - self.first]) - start
