"""Memory of cached blocks: bytes in the broker's own memory, and evicted blocks that a reader or broker still holds.

Rules
- A block in `HeapStorage` was read from object storage. Its bytes stay in memory while a reference to them exists.
  `HeapStorage` counts the references.
- A block that came as a part of a larger buffer is copied. The accounted size is then the held size.
- The memory of an evicted block counts until nobody holds the block. Holders are readers that have mapped the block,
  and the broker while it sends the block.
- A block that lies in the file of its ledger is the system's memory, and is never counted here.
"""

from __future__ import annotations

import weakref

import pyarrow as pa

from pyspark_ledger.ledger.cache.block import CachedBlock


class PinnedBlocks:
    """Evicted blocks of one cache that are still held, under its lock. `size` is their memory when last checked."""

    def __init__(self) -> None:
        self.size = 0
        self._blocks: dict[CachedBlock, None] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: object) -> bool:
        return block in self._blocks

    def add(self, block: CachedBlock) -> int:
        """Add an evicted block, perhaps not for the first time; return its bytes that are not free: all or none."""
        if block.home is None or not block.home.lingers():
            return 0
        if block not in self._blocks:
            self._blocks[block] = None
            self.size += block.size
        return block.size

    def look(self) -> None:
        """Forget the blocks that nobody holds any more."""
        for block in [block for block in self._blocks if block.home is None or not block.home.lingers()]:
            del self._blocks[block]
            self.size -= block.size


class HeapReference:
    """Reference to the bytes of a block in this process."""

    def __init__(self, frames: pa.Buffer) -> None:
        self.frames = frames


class HeapStorage:
    """Storage of a block in the memory of this process."""

    def __init__(self, frames: pa.Buffer) -> None:
        larger = frames.parent is not None and frames.parent.size > frames.size
        owner = _Owner(pa.py_buffer(frames.to_pybytes()) if larger else frames)
        self._owner = weakref.ref(owner)
        # Slices of this buffer keep its base, and nothing else keeps the owner.
        self._held: HeapReference | None = HeapReference(
            pa.foreign_buffer(owner.frames.address, owner.frames.size, owner)
        )

    @property
    def frames(self) -> pa.Buffer:
        """The bytes; raises ValueError if nobody holds them."""
        owner = self._owner()
        if owner is None:
            raise ValueError("the block was let go of")
        return owner.frames

    def hold(self) -> HeapReference:
        """Return a reference to the bytes; raises ValueError after `release`."""
        if self._held is None:
            raise ValueError("the block was let go of")
        return self._held

    def release(self) -> None:
        self._held = None

    def lingers(self) -> bool:
        return self._held is None and self._owner() is not None

    def in_hands(self) -> bool:
        """Return False: readers cannot map the block. Only the broker holds it, for a moment, while sending."""
        return False


class _Owner:
    def __init__(self, frames: pa.Buffer) -> None:
        self.frames = frames
