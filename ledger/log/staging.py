"""Staged parts: files with entries that Spark tasks have written, and that wait for the commit of their batch.

    <store>/staging/<query digest>/<batch>/<uuid>.part        frames, one after another:

    +-----------+--------------+-----------------+
    | length u32| ordinal i64  | entry (length)  |   big-endian; ordinals count from 0
    +-----------+--------------+-----------------+

Rules
- One attempt of a Spark task writes a part, once. The commit states the part's number of entries, its length and the
  CRC32C of the whole file. The broker refuses a part that differs in one of them.
- After a commit, its parts are deleted at once. Parts that no commit named are deleted when a later batch of the same
  query is committed, or at the age of the setting `stagingRetentionSeconds`.
- If a part is missing, the commit fails.
- The name of the query's directory is a digest of the query's name, because the query's name may be any text.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.protocol.commits import StagedPart, StagingPlace
from pyspark_ledger.ledger.transport.part_file import FRAME

_PART_NAME = re.compile(r"[0-9a-f]{32}/\d{1,19}/[0-9a-f-]{36}\.part")


SyncParts = Callable[[Sequence[tuple[str, Path]]], None]
"""Function that makes files durable. Each file is a pair: its name in the store's directory, and its path."""


class OpenedPart:
    """Verified part with its entries, in order. The entries are views of the mapped file."""

    def __init__(self, part: StagedPart, entries: list[memoryview]) -> None:
        self.part = part
        self.entries = entries


class StagingArea:
    """Directory of the staged parts of one store."""

    def __init__(self, directory: Path, new_id: Callable[[], str], sync_parts: SyncParts | None = None) -> None:
        """`sync_parts` makes parts durable in a bucket; None: parts are durable after an fsync on the local disk."""
        self._directory = directory
        self._sync_parts = sync_parts
        self._new_id = new_id
        directory.mkdir(mode=0o700, exist_ok=True)

    def place(self, query: str, batch: int) -> StagingPlace:
        """Create a new, empty part for one task attempt. Raises Refused if `batch` is negative."""
        if batch < 0:
            raise Refused(f"batch {batch} of query {query!r} is negative", hint="Batch ids count from 0")
        folder = self._directory / _digest(query) / str(batch)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{self._new_id()}.part"
        os.close(disk.create_file(path))
        return StagingPlace(part=str(path.relative_to(self._directory)), path=str(path))

    def path(self, part: str) -> Path:
        """Return the path of a part. Raises Refused if the name does not have the form that `place` returns."""
        if not _PART_NAME.fullmatch(part):
            raise Refused(f"{part!r} is not the name of a staged part", hint="Use the name that the broker returned")
        return self._directory / part

    def open(self, part: StagedPart) -> OpenedPart:
        """Map a part and verify its length, checksum and entries.

        Raises Corrupt if they differ from `part`, and NotFound if the file was deleted.
        """
        path = self.path(part.part)
        view = _mapped(path, part)
        found = crc32c(view)
        if found != part.crc32c:
            raise Corrupt(f"staged part {path} has CRC32C {found:#010x}, its writer reported {part.crc32c:#010x}")
        entries = list(_entries(view, path))
        if len(entries) != part.entries:
            raise Corrupt(f"staged part {path} has {len(entries)} entries, its writer reported {part.entries}")
        return OpenedPart(part, entries)

    def sync(self, parts: Sequence[StagedPart]) -> None:
        """Fsync parts and their directories."""
        if self._sync_parts is not None:
            self._sync_parts([(f"{self._directory.name}/{part.part}", self.path(part.part)) for part in parts])
            return
        folders: set[Path] = set()
        for part in parts:
            path = self.path(part.part)
            with disk.opened(path) as fd:
                disk.sync_data(fd)
            folders |= {path.parent, path.parent.parent}
        for folder in sorted(folders | {self._directory} if folders else folders):
            disk.sync_directory(folder)

    def remove(self, parts: Sequence[str]) -> None:
        """Delete parts. Ignores missing parts."""
        for part in parts:
            self.path(part).unlink(missing_ok=True)

    def sweep_before(self, query: str, batch: int) -> None:
        """Delete the parts of earlier batches of this query."""
        for folder in _batch_folders(self._directory / _digest(query)):
            if int(folder.name) < batch:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep_older(self, cutoff_ms: int) -> list[str]:
        """Delete the directory of each batch without a new part since `cutoff_ms`. Return the deleted directories."""
        swept = []
        for query in sorted(self._directory.iterdir()):
            for folder in _batch_folders(query):
                if folder.stat().st_mtime_ns // 1_000_000 < cutoff_ms:
                    shutil.rmtree(folder, ignore_errors=True)
                    swept.append(str(folder.relative_to(self._directory)))
        return swept


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
            f"staged part {part.part} with {part.entries} entries is missing in {path.parent}",
            hint="A later batch or stagingRetentionSeconds deleted it. Run the batch again",
        ) from None
    try:
        length = os.fstat(fd).st_size
        if length != part.length:
            raise Corrupt(f"staged part {path} has {length} bytes, its writer reported {part.length}")
        return memoryview(mmap.mmap(fd, length, prot=mmap.PROT_READ)) if length else memoryview(b"")
    finally:
        os.close(fd)


def _entries(view: memoryview, path: Path) -> Iterator[memoryview]:
    offset, ordinal, end = 0, 0, len(view)
    while offset < end:
        if end - offset < FRAME.size:
            raise Corrupt(f"staged part {path} ends inside a frame header at {offset} of {end} bytes")
        length, number = FRAME.unpack_from(view, offset)
        offset += FRAME.size
        if number != ordinal or length > end - offset:
            raise Corrupt(
                f"staged part {path} has frame {number} of {length} bytes at {offset}, "
                f"expected frame {ordinal} of at most {end - offset} bytes"
            )
        yield view[offset : offset + length]
        offset += length
        ordinal += 1
