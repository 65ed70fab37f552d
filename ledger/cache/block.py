"""Block of the cache: entries that were appended or read at once, and the unit of memory.

A block is held whole for as long as one span of it is cached (`ledger.cache.range_cache`).

Invariant: `block.spans` counts the spans of the block that are in a range cache. At 0 its home is released, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from pyspark_ledger.ledger.segment.index import Integers

Edges = Callable[[int, int], Integers]
NOTHING_AHEAD = 2**63


class BlockStorage(Protocol):
    """Where the bytes of a block are, when that is not the file of its ledger."""

    @property
    def frames(self) -> pa.Buffer:
        """The bytes, for whoever has them already."""

    def hold(self) -> BlockReference:
        """The bytes, for as long as the answer is referenced; not after `release`."""

    def release(self) -> None:
        """No cached span needs them any more. Readers that have them keep them."""

    def lingers(self) -> bool:
        """Whether it was released and its memory is held all the same, by a reader."""

    def in_hands(self) -> bool:
        """Whether a reader has it mapped, released or not."""


class BlockReference(Protocol):
    """Bytes of a whole block, held by whoever has this."""

    @property
    def frames(self) -> pa.Buffer: ...


class CachedBlock:
    """Entries `[first, end)` of a ledger in one piece of memory of `size` bytes.

    `edges(first, end)` answers `end - first + 1` offsets of entries in the block, the last being its end; it is asked
    only when less than the whole is wanted. Entries from `ahead` on were read ahead, and nobody has them yet. Without a
    home it is the account of a block of a local file. `offloaded`: read from object storage.
    """

    __slots__ = ("_table", "ahead", "edges", "end", "first", "home", "ledger_id", "offloaded", "size", "spans")

    def __init__(
        self,
        ledger_id: int,
        first: int,
        end: int,
        size: int,
        edges: Edges,
        home: BlockStorage | None = None,
        *,
        offloaded: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.end = end
        self.size = size
        self.home = home
        self.offloaded = offloaded
        self.spans = 0
        self.ahead = NOTHING_AHEAD
        self.edges = edges
        self._table: Integers | None = None

    def hold(self) -> BlockReference | None:
        """Its bytes, held; None when they are in the file of the ledger."""
        return None if self.home is None else self.home.hold()

    def given(self, first: int, end: int) -> tuple[int, int]:
        """Entries `[first, end)` are handed out: how many of them, and bytes, had been read ahead for that."""
        late = max(first, self.ahead)
        if late >= end:
            return 0, 0
        self.ahead = end if end < self.end else NOTHING_AHEAD
        return end - late, self.cut(late, end)[1]

    def cut(self, first: int, end: int) -> tuple[int, int]:
        """Offset and length of entries `[first, end)` in the block."""
        if first == self.first and end == self.end:
            return 0, self.size
        if self._table is None or len(self._table) <= end - self.first:
            self._table = self.edges(self.first, self.end)
        start = int(self._table[first - self.first])
        return start, int(self._table[end - self.first]) - start
