"""Packing of batches into objects of the write-ahead log, in the order of the batches.

A *batch* is a group of changes that becomes visible in one step. It contains rows of the metadata (`records`) or bytes
of files (`bytes`).

Rules
- A batch of `records` is never split between objects.
- A batch of `bytes` can be split at any byte, because a reader waits for the whole batch before it applies the batch.
- An object has at least one part. All its parts together have at most `bytes_max` bytes. Exception: if one part with
  `records` is larger than this limit, it is the only part of its object.
- If a file is shorter than its batch states, `pack` raises `Corrupt`. Reason: readers would refuse an object with too
  few bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_ledger.ledger.checksum import Buffer, crc32c
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.wal.log_object import BYTES, RECORDS, WalPart


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Bytes `[offset, offset + length)` of a file of the store's directory.

    The packer calls `read` only when it builds the object. So a waiting batch does not keep its bytes in memory.
    """

    file: str
    offset: int
    length: int
    read: Callable[[int, int], Buffer]


@dataclass(frozen=True, slots=True)
class MetadataRows:
    """Encoded rows of one metadata transaction."""

    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)


Item = FileBytes | MetadataRows


class Packed(NamedTuple):
    """Parts of one object, and the number of batches whose last part is in the object."""

    parts: list[tuple[WalPart, Buffer]]
    ended: int


class Packer:
    """Queue of batches. Not thread-safe."""

    def __init__(self) -> None:
        self._batches: deque[tuple[Item, ...]] = deque()
        self._item = 0  # number of the next item in the first batch
        self._done = 0  # number of bytes of this item that are packed already
        self.size = 0
        """Bytes that are not packed yet."""

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def is_inside_batch(self) -> bool:
        """Whether the last object ended inside a batch."""
        return bool(self._item or self._done)

    def put(self, batch: Sequence[Item]) -> None:
        """Queue a batch of at least one item."""
        self._batches.append(tuple(batch))
        self.size += sum(item.length for item in batch)

    def pack(self, bytes_max: int) -> Packed:
        """Remove and return the parts of the next object. Reads the bytes of files from the disk."""
        parts: list[tuple[WalPart, Buffer]] = []
        ended, left = 0, bytes_max
        while self._batches and (left > 0 or not parts):
            batch = self._batches[0]
            item = batch[self._item]
            taken = item.length if isinstance(item, MetadataRows) else min(item.length - self._done, max(left, 1))
            if parts and isinstance(item, MetadataRows) and taken > left:
                break
            is_end = self._done + taken == item.length
            last = is_end and self._item == len(batch) - 1
            parts.append(_part(item, self._done, taken, last=last))
            left -= taken
            self.size -= taken
            self._done = 0 if is_end else self._done + taken
            self._item += is_end
            if last:
                self._batches.popleft()
                self._item = 0
                ended += 1
        return Packed(parts, ended)


def _part(item: Item, start: int, length: int, *, last: bool) -> tuple[WalPart, Buffer]:
    if isinstance(item, MetadataRows):
        return WalPart(RECORDS, length, crc32c(item.data), last), item.data
    offset = item.offset + start
    data = item.read(offset, length)
    found = len(memoryview(data))
    if found != length:
        raise Corrupt(f"{item.file} has {found} bytes from {offset} on, the log needs {length}: the file was changed")
    return WalPart(BYTES, length, crc32c(data), last, item.file, offset), data
