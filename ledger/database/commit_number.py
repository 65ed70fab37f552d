"""Number of the newest commit to the metadata, in a small file beside the metadata. It reveals lost commits.

    0       8        12       64      72       76
    +-------+--------+--------+-------+--------+
    | u64   | CRC32C |   0    | u64   | CRC32C |     little-endian; both places have the same number
    +-------+--------+--------+-------+--------+

SQLite writes commits to a write-ahead log. If a part of this log is damaged, SQLite ends the log there, without an
error. So later commits are lost. The metadata still pass all other checks, because they are only older.

Invariants
- The number is written after the commit is on the device, and before the call returns. If it is higher than the number
  of commits in the metadata, commits are lost.
- The file is mapped into memory and never synced. So a write costs no system call. The number survives a kill of the
  broker. After a power loss, it may be lower than the number of commits.
- Each new broker creates a new file and renames it into place. So an earlier broker that still runs writes to a file
  without a name.
- If one place is damaged, the other is used. If both are damaged, or if the file is missing, an error is raised
  (`Corrupt`). Exception: the file of a store that no broker has opened yet may be missing.
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
ACCEPT = "To continue with these metadata, run: ledger repair --accept-metadata"


class CommitNumber:
    """File with the number. The broker that owns the store keeps the file mapped until the broker ends."""

    def __init__(self, path: Path, number: int) -> None:
        """Replace the file by a new file with this number, durable on return."""
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
        """Record that commit `number` is done. After a kill between the two writes, one place is sound."""
        record = _NUMBER.pack(number)
        record += _CRC.pack(crc32c(record))
        for place in _PLACES:
            self._map[place : place + len(record)] = record

    def close(self) -> None:
        self._map.close()


def number_path(metadata: Path) -> Path:
    return metadata.with_suffix(".commit")


def read_number(path: Path) -> int | None:
    """Return the last written number, or None without a file. Raises Corrupt if both places are damaged."""
    try:
        with disk.opened(path) as fd:
            raw = disk.read_exact(fd, _BYTES, 0)
    except NotFound:
        return None
    numbers = [number for place in _PLACES if (number := _number_at(raw, place)) is not None]
    if not numbers:
        raise Corrupt(f"{path}: both of its numbers have a wrong checksum, the file has {len(raw)} bytes", hint=ACCEPT)
    return max(numbers)


def require_not_behind(metadata: Path, commits: int, epoch: int, number: int | None) -> None:
    """Raise Corrupt if the metadata have fewer commits than `number`, which was read before the metadata."""
    path = number_path(metadata)
    if number is None and epoch:
        raise Corrupt(f"{path} is missing: it is unknown whether {metadata} has every commit", hint=ACCEPT)
    if number is not None and commits < number:
        raise Corrupt(
            f"{metadata} and its log {metadata.name}-wal end with commit {commits}, {path} states commit {number}",
            hint=f"The log is damaged or a file is an older copy. Nothing was changed. Restore both. {ACCEPT}",
        )


def _number_at(raw: bytes, place: int) -> int | None:
    record = raw[place : place + _NUMBER.size]
    stated = raw[place + _NUMBER.size : place + _NUMBER.size + _CRC.size]
    if len(stated) < _CRC.size or _CRC.unpack(stated)[0] != crc32c(record):
        return None
    return int(_NUMBER.unpack(record)[0])
