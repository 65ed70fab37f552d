"""Number of the newest commit to the metadata, in a file beside them, which reveals lost commits.

    0       8        12       64      72       76
    +-------+--------+--------+-------+--------+
    | u64   | CRC32C |   0    | u64   | CRC32C |     little-endian; both places hold the same number
    +-------+--------+--------+-------+--------+

SQLite takes a frame of its write-ahead log with a wrong checksum for the end of the log. Commits behind the frame are
lost then, without an error: the metadata are whole, and older.

Invariants
- The number is written after the commit is on the device, and before the call returns. After a loss of power it may be
  behind the metadata. The metadata are never behind the number.
- The number is written through a mapping and not synced: no system call, nothing that a sync waits for.
- The owner of the store creates a new file when it takes the epoch, within that transaction, and renames it into place.
  A broker that lost the store writes to a file without a name.
- One damaged place changes nothing. Two are `Corrupt`, and so is a missing file of a store that was opened before.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import Corrupt, NotFound

_NUMBER, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_PLACES, _BYTES = (0, 64), 128
ACCEPT = "If the metadata are what you want to go on with: ledger repair --accept-metadata"


class CommitNumber:
    """File of the store's owner, open as long as its broker lives."""

    def __init__(self, path: Path, number: int) -> None:
        """Replace the file by a new one, durable on return."""
        scratch = path.with_name(path.name + ".new")
        scratch.unlink(missing_ok=True)
        fd = disk.create_file(scratch)
        try:
            disk.write_all(fd, [bytes(_BYTES)], 0, scratch)
            self._map = mmap.mmap(fd, _BYTES)
            self.write(number)
            os.fsync(fd)
        finally:
            os.close(fd)
        scratch.rename(path)
        disk.sync_directory(path.parent)

    def write(self, number: int) -> None:
        """State that `number` is committed. A kill in between leaves at least one place whole."""
        record = _NUMBER.pack(number)
        record += _CRC.pack(crc32c(record))
        for place in _PLACES:
            self._map[place : place + len(record)] = record

    def close(self) -> None:
        self._map.close()


def number_path(metadata: Path) -> Path:
    return metadata.with_suffix(".commit")


def read_number(path: Path) -> int | None:
    """Return the last written number; None without a file. Raises Corrupt if both places are damaged."""
    try:
        with disk.opened(path) as fd:
            raw = disk.read_exact(fd, _BYTES, 0)
    except NotFound:
        return None
    numbers = [number for place in _PLACES if (number := _number_at(raw, place)) is not None]
    if not numbers:
        raise Corrupt(f"{path}: neither of its two numbers has its checksum, {len(raw)} bytes are there", hint=ACCEPT)
    return max(numbers)


def require_not_behind(metadata: Path, commits: int, epoch: int, number: int | None) -> None:
    """Compare the commits in the metadata with the `number` that was read before them. Raises Corrupt."""
    path = number_path(metadata)
    if number is None and epoch:
        raise Corrupt(f"{path} is missing: nobody knows whether {metadata} holds every commit", hint=ACCEPT)
    if number is not None and commits < number:
        raise Corrupt(
            f"{metadata} and its log {metadata.name}-wal hold commit {commits}, {path} says that {number} was made",
            hint=f"The log is damaged or a file is an older copy. Nothing was changed. Restore both. {ACCEPT}",
        )


def _number_at(raw: bytes, place: int) -> int | None:
    record = raw[place : place + _NUMBER.size]
    stated = raw[place + _NUMBER.size : place + _NUMBER.size + _CRC.size]
    if len(stated) < _CRC.size or _CRC.unpack(stated)[0] != crc32c(record):
        return None
    return int(_NUMBER.unpack(record)[0])
