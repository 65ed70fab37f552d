"""Staged parts: rows that Spark tasks have written and no batch has committed yet.

    <store>/staging/<query digest>/<batch>/<uuid>.part        frames, one after another:

    +-----------+--------------+-----------------+
    | length u32| ordinal i64  | entry (length)  |   big-endian; ordinals count from 0
    +-----------+--------------+-----------------+

Rules
- A part is written by one task attempt and never again. Its writer states entries, length and the CRC32C of the whole
  file; a commit believes only a part that agrees with all three, and reads it through one mapping.
- Parts of a committed run are in the log and go at once; those of attempts that lost go when a later batch of the
  same query is committed, or after the staging retention. A part that is gone fails the commit and never shortens it.
- A query's name may be anything, so the folder is a digest of it; no path is ever built from a name given by a user.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from ledger import disk
from ledger.checksum import crc32c
from ledger.entry import Buffer
from ledger.errors import Corrupt, NotFound, Refused
from ledger.run_calls import StagedPart, StagingPlace

_FRAME = struct.Struct(">Iq")
_PART_NAME = re.compile(r"[0-9a-f]{32}/\d{1,19}/[0-9a-f-]{36}\.part")


class OpenedPart:
    """A verified part: its entries, in order, as views of one mapping."""

    def __init__(self, part: StagedPart, entries: list[memoryview]) -> None:
        self.part = part
        self.entries = entries


class StagingArea:
    """The folder of staged parts of one store."""

    def __init__(self, directory: Path, new_id: Callable[[], str]) -> None:
        self._directory = directory
        self._new_id = new_id
        directory.mkdir(mode=0o700, exist_ok=True)

    def place(self, query: str, batch: int) -> StagingPlace:
        """A new, empty part for one task attempt."""
        if batch < 0:
            raise Refused(f"batch {batch} of query {query!r} is negative", hint="Batch ids count from 0")
        folder = self._directory / _digest(query) / str(batch)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{self._new_id()}.part"
        os.close(disk.create_file(path))
        return StagingPlace(part=str(path.relative_to(self._directory)), path=str(path))

    def path(self, part: str) -> Path:
        """Where a part is. A name that this area never gave is refused."""
        if not _PART_NAME.fullmatch(part):
            raise Refused(f"{part!r} is not the name of a staged part", hint="Use the name that staging answered")
        return self._directory / part

    def open(self, part: StagedPart) -> OpenedPart:
        """Map a part and compare it with what its writer said of it."""
        path = self.path(part.part)
        view = _mapped(path, part)
        found = crc32c(view)
        if found != part.crc32c:
            raise Corrupt(f"staged part {path} has CRC32C {found:#010x}, its writer said {part.crc32c:#010x}")
        entries = list(_entries(view, path))
        if len(entries) != part.entries:
            raise Corrupt(f"staged part {path} holds {len(entries)} entries, its writer said {part.entries}")
        return OpenedPart(part, entries)

    def sync(self, parts: Sequence[StagedPart]) -> None:
        """Make parts durable, with their names."""
        folders: set[Path] = set()
        for part in parts:
            path = self.path(part.part)
            with disk.opened(path) as fd:
                disk.sync_data(fd)
            folders |= {path.parent, path.parent.parent}
        for folder in sorted(folders | {self._directory} if folders else folders):
            disk.sync_directory(folder)

    def remove(self, parts: Sequence[str]) -> None:
        """Delete parts; those that are gone already are ignored."""
        for part in parts:
            self.path(part).unlink(missing_ok=True)

    def sweep_before(self, query: str, batch: int) -> None:
        """Delete what earlier batches of this query left."""
        for folder in _batch_folders(self._directory / _digest(query)):
            if int(folder.name) < batch:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep_older(self, cutoff_ms: int) -> list[str]:
        """Delete every batch folder that nothing was added to since `cutoff_ms`; their names are returned."""
        swept = []
        for query in sorted(self._directory.iterdir()):
            for folder in _batch_folders(query):
                if folder.stat().st_mtime_ns // 1_000_000 < cutoff_ms:
                    shutil.rmtree(folder, ignore_errors=True)
                    swept.append(str(folder.relative_to(self._directory)))
        return swept


class PartFile:
    """The writer of one part: the frames of a task's entries, and what it has to say of them in the end."""

    def __init__(self, place: StagingPlace) -> None:
        self._place = place
        self._fd = disk.open_file(Path(place.path), writable=True)
        self._entries = self._rows = self._length = self._crc = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def rest(self) -> None:
        """Hold no file open; the next write opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, entry: Sequence[Buffer], rows: int) -> None:
        """Write one entry, given in its buffers, that delivers `rows` rows."""
        if self._fd < 0:
            self._fd = disk.open_file(Path(self._place.path), writable=True)
        size = sum(memoryview(buffer).nbytes for buffer in entry)
        frame = [_FRAME.pack(size, self._entries), *entry]
        disk.write_all(self._fd, frame, self._length, Path(self._place.path))
        for buffer in frame:
            self._crc = crc32c(buffer, self._crc)
        self._entries += 1
        self._rows += rows
        self._length += _FRAME.size + size

    def close(self) -> StagedPart:
        """Close the file; what is returned goes into the task's message to the committer."""
        self.rest()
        return StagedPart(self._place.part, self._entries, self._rows, self._length, self._crc)


def frame_header(length: int, ordinal: int) -> bytes:
    """The 12 bytes before an entry of a part."""
    return _FRAME.pack(length, ordinal)


def _digest(query: str) -> str:
    return hashlib.blake2b(query.encode(), digest_size=16).hexdigest()


def _batch_folders(query_folder: Path) -> list[Path]:
    if not query_folder.is_dir():
        return []
    return [folder for folder in query_folder.iterdir() if folder.name.isdecimal()]


def _mapped(path: Path, part: StagedPart) -> memoryview:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(
            f"staged part {part.part} of {part.entries} entries is gone from {path.parent}",
            hint="It was swept after the staging retention or by a later batch; run the batch again",
        ) from None
    try:
        length = os.fstat(fd).st_size
        if length != part.length:
            raise Corrupt(f"staged part {path} has {length} bytes, its writer said {part.length}")
        return memoryview(mmap.mmap(fd, length, prot=mmap.PROT_READ)) if length else memoryview(b"")
    finally:
        os.close(fd)


def _entries(view: memoryview, path: Path) -> Iterator[memoryview]:
    offset, ordinal, end = 0, 0, len(view)
    while offset < end:
        if end - offset < _FRAME.size:
            raise Corrupt(f"staged part {path} ends inside a frame header at {offset} of {end} bytes")
        length, number = _FRAME.unpack_from(view, offset)
        offset += _FRAME.size
        if number != ordinal or length > end - offset:
            raise Corrupt(
                f"staged part {path} has frame {number} of {length} bytes at {offset}, "
                f"expected frame {ordinal} of at most {end - offset} bytes"
            )
        yield view[offset : offset + length]
        offset += length
        ordinal += 1
