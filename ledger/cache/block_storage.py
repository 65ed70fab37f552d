"""Storage of cached blocks in the broker's own memory, and evicted blocks that are still referenced.

Rules
- A block in `HeapStorage` was read from object storage. Its bytes stay in memory while a reference to them exists.
  `HeapStorage` counts the references.
- A block that came as a part of a larger buffer is copied. The accounted size is then the real size.
- The memory of an evicted block counts until its last reference is released. References belong to readers that have
  mapped the block, and to the broker while it sends the block.
- A block in its segment file is the system's memory, and is never counted here.
"""

from __future__ import annotations

import weakref

import pyarrow as pa

from pyspark_ledger.ledger.cache.block import CachedBlock


class PinnedBlocks:
    """Evicted blocks of one cache that are still referenced, under its lock. `size` is their memory at the last
    check.
    """

    def __init__(self) -> None:
        self.size = 0
        self._blocks: dict[CachedBlock, None] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: object) -> bool:
        return block in self._blocks

    def add(self, block: CachedBlock) -> int:
        """Add an evicted block, also repeatedly. Return its bytes that are not free: all or none."""
        if block.storage is None or not block.storage.is_pinned():
            return 0
        if block not in self._blocks:
            self._blocks[block] = None
            self.size += block.size
        return block.size

    def refresh(self) -> None:
        """Forget the blocks without a reference."""
        for block in [block for block in self._blocks if block.storage is None or not block.storage.is_pinned()]:
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
        """Bytes. Raises ValueError without a reference."""
        owner = self._owner()
        if owner is None:
            raise ValueError("the block was let go of")
        return owner.frames

    def acquire(self) -> HeapReference:
        """Return a reference to the bytes. Raises ValueError after `release`."""
        if self._held is None:
            raise ValueError("the block was let go of")
        return self._held

    def release(self) -> None:
        self._held = None

    def is_pinned(self) -> bool:
        return self._held is None and self._owner() is not None

    def is_referenced(self) -> bool:
        """Return False: readers cannot map the block. Only the broker references it, while it sends the block."""
        return False


class _Owner:
    def __init__(self, frames: pa.Buffer) -> None:
        self.frames = frames
