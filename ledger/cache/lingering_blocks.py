"""Blocks that the cache let go of and that somebody has still: their memory counts until nobody has it.

Who has it is a reader that has mapped it, or the broker while it sends it. What lies in the file of its ledger is the
system's memory, and never counted here.
"""

from __future__ import annotations

from ledger.cache.cached_span import CachedBlock


class LingeringBlocks:
    """Those of one cache, under its lock. `size` is their memory in bytes when they were last looked at."""

    def __init__(self) -> None:
        self.size = 0
        self._blocks: dict[CachedBlock, None] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: object) -> bool:
        return block in self._blocks

    def add(self, block: CachedBlock) -> int:
        """A block was let go of, perhaps not for the first time; the bytes of it that are not free: all or none."""
        if block.home is None or not block.home.lingers():
            return 0
        if block not in self._blocks:
            self._blocks[block] = None
            self.size += block.size
        return block.size

    def look(self) -> None:
        """Forget those that nobody has any more."""
        for block in [block for block in self._blocks if block.home is None or not block.home.lingers()]:
            del self._blocks[block]
            self.size -= block.size

    def check(self) -> None:
        """Assert the invariants; for tests."""
        assert self.size == sum(block.size for block in self._blocks)  # noqa: S101 — this is what the method is for
        assert not any(block.spans for block in self._blocks)  # noqa: S101 — as above
