"""Storage of cached blocks in the broker's own memory, and evicted blocks that are still referenced.

Rules
- A block in `HeapStorage` was read from object storage. Its bytes stay in memory while a reference to them exists.
- If the bytes are a part of a larger buffer, they are copied. So the block uses as much memory as the cache counts.
- The memory of an evicted block counts until its last reference is released. A reader that has mapped the block has a
  reference; blocks in `HeapStorage` cannot be mapped. The broker has a reference while it sends the block.
- A block that is read from its segment file uses the system's page cache, which is never counted here.
"""

from __future__ import annotations

import weakref

import pyarrow as pa

from pyspark_ledger.ledger.cache.block import CachedBlock


class PinnedBlocks:
    """Evicted blocks of one cache that are still referenced. The caller of each method holds the cache's lock.

    `size` is their memory at the last check.
    """

    def __init__(self) -> None:
        self.size = 0
        self._blocks: dict[CachedBlock, None] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: object) -> bool:
        return block in self._blocks

    def add(self, block: CachedBlock) -> int:
        """Add an evicted block if it is still referenced. Return the bytes that it still uses. May be called again."""
        if block.storage is None or not block.storage.is_pinned():
            return 0
        if block not in self._blocks:
            self._blocks[block] = None
            self.size += block.size
        return block.size

    def refresh(self) -> None:
        """Remove the blocks without a reference."""
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
        # Only the buffer below and its slices keep `owner` alive. So `_owner` is empty once no slice exists any more.
        self._reference: HeapReference | None = HeapReference(
            pa.foreign_buffer(owner.frames.address, owner.frames.size, owner)
        )

    @property
    def frames(self) -> pa.Buffer:
        """The bytes of the block. Raises ValueError if no reference exists."""
        owner = self._owner()
        if owner is None:
            raise ValueError("the block was released")
        return owner.frames

    def acquire(self) -> HeapReference:
        """Return a reference to the bytes. Raises ValueError after `release`."""
        if self._reference is None:
            raise ValueError("the block was released")
        return self._reference

    def release(self) -> None:
        self._reference = None

    def is_pinned(self) -> bool:
        return self._reference is None and self._owner() is not None

    def is_referenced(self) -> bool:
        """Return False: only readers' references count here, and no reader can map memory of the broker."""
        return False


class _Owner:
    def __init__(self, frames: pa.Buffer) -> None:
        self.frames = frames
