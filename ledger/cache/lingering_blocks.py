"""Blocks that the cache let go of and that a reader has still: their memory counts until nobody has it."""

from __future__ import annotations

from collections.abc import Iterable

from ledger.cache.cached_span import CachedBlock


class LingeringBlocks:
    """Those of one cache, under its lock. `size` is their memory in bytes when they were last looked at."""

    def __init__(self) -> None:
        self.size = 0
        self._blocks: list[CachedBlock] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, blocks: Iterable[CachedBlock]) -> None:
        """Blocks were let go of. What lies in the file of its ledger is the system's memory and not counted."""
        self._blocks += [block for block in blocks if block.home is not None]
        self.look()

    def look(self) -> None:
        """Forget those that nobody has any more."""
        if self._blocks:
            self._blocks = [block for block in self._blocks if block.home is not None and block.home.lingers()]
            self.size = sum(block.size for block in self._blocks)
