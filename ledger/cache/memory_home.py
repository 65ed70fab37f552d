"""A block's home in the broker's own memory: what was read from object storage.

Invariant: the bytes stay for as long as anybody holds them, and the home knows. A block that came as a part of
something larger is copied, so that what is accounted for is what is held.
"""

from __future__ import annotations

import weakref

import pyarrow as pa


class HeldMemory:
    """Bytes of a block in this process."""

    def __init__(self, frames: pa.Buffer) -> None:
        self.frames = frames


class MemoryHome:
    """Bytes of this process."""

    def __init__(self, frames: pa.Buffer) -> None:
        larger = frames.parent is not None and frames.parent.size > frames.size
        owner = _Owner(pa.py_buffer(frames.to_pybytes()) if larger else frames)
        self._owner = weakref.ref(owner)
        # Slices of this buffer keep its base, and nothing else keeps the owner.
        self._held: HeldMemory | None = HeldMemory(pa.foreign_buffer(owner.frames.address, owner.frames.size, owner))

    @property
    def frames(self) -> pa.Buffer:
        """The bytes, if anybody has them."""
        owner = self._owner()
        if owner is None:
            raise ValueError("the block was let go of")
        return owner.frames

    def hold(self) -> HeldMemory:
        """The bytes."""
        if self._held is None:
            raise ValueError("the block was let go of")
        return self._held

    def release(self) -> None:
        """The cache needs them no more."""
        self._held = None

    def lingers(self) -> bool:
        """Whether somebody has them still, though they were let go of."""
        return self._held is None and self._owner() is not None

    def in_hands(self) -> bool:
        """Never: it is not where readers could map it. While it is sent, somebody has it, for a moment."""
        return False


class _Owner:
    def __init__(self, frames: pa.Buffer) -> None:
        self.frames = frames
