"""Staged parts: files with the entries of Spark tasks. They wait for the commit of their batch.

    <store>/staging/<query digest>/<batch>/<uuid>.part        frames (entries with length and number):

    +-----------+--------------+-----------------+
    | length u32| ordinal i64  | entry (length)  |   big-endian; ordinals count from 0
    +-----------+--------------+-----------------+

Rules
- Each attempt of a Spark task writes its own part. The commit contains the number of entries, the length and the
  checksum (CRC32C) of each part. The broker refuses a part that differs in one of these values.
- A part for a ledger of a local store has the layout of a segment instead (`ledger.transport.part_writer`). If the part
  is large, it becomes a segment at the commit, without a copy of its bytes (`ledger.log.staging.promotion`). Then the
  other parts of its batch also become segments, in their order. Consecutive small parts are first joined into one part.
- After a commit, its parts are deleted at once. Parts that were not committed are deleted when a later batch of the
  query is committed, or at the age that `stagingRetentionSeconds` sets.
- If a part is missing, the commit fails.
- The directory of a query has a digest as its name, because the name of a query may be any text.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.log.staging.opened_part import OpenedPart, open_part
from pyspark_ledger.ledger.message.entry import entry_rows, parse_entry
from pyspark_ledger.ledger.protocol.commits import CommitRun, PartRun, StagedPart, StagingPlace
from pyspark_ledger.ledger.transport.part_writer import PART_NAME, PartWriter

SyncParts = Callable[[Sequence[tuple[str, Path]]], None]
"""Function that makes files durable. Each file is a pair: its name in the store's directory, and its path."""


_ENTRY_BYTES_MIN = 64 * 1024
"""Minimum mean size in bytes of the entries of a promoted part. Smaller entries are cheaper to copy.

Reason: the broker writes a stamp before each entry of a promoted part. Each stamp changes a page of 4 KiB, which the
disk then writes a second time.
"""


class StagingArea:
    """Directory of the staged parts of one store."""

    def __init__(
        self, directory: Path, new_id: Callable[[], str], sync_parts: SyncParts | None = None, segment_from: int = -1
    ) -> None:
        """`sync_parts` makes parts durable in a bucket. With None, an fsync makes them durable on the local disk.

        Parts of at least `segment_from` bytes become segments. With -1, no part becomes a segment.
        """
        self._directory = directory
        self._segment_from = segment_from if sync_parts is None else -1
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
        return StagingPlace(str(path.relative_to(self._directory)), str(path), self._segment_from)

    def path(self, part: str) -> Path:
        """Return the path of a part. Raises Refused if the name does not have the form that `place` returns."""
        if not PART_NAME.fullmatch(part):
            raise Refused(f"{part!r} is not the name of a staged part", hint="Use the name that the broker returned")
        return self._directory / part

    def open(self, part: StagedPart) -> OpenedPart:
        """Map a part and verify its length, checksum and frames.

        Raises Corrupt if they differ from `part`, and NotFound if the file was deleted.
        """
        opened = open_part(part, self.path(part.part))
        return replace(opened, promotable=self._is_large(part))

    def open_run(self, run: CommitRun) -> list[OpenedPart]:
        """Open the parts of a run, in order. If one part is large, make all returned parts promotable.

        For this, consecutive small parts are joined into a new part.
        """
        parts = [self.open(part) for part in run.parts]
        large = next((part for part in parts if part.promotable), None)
        if large is None or large.marker is None:
            return parts
        time_ms = parse_entry(large.marker, f"the marker of {large.path}").metadata.publish_time
        kind = PartRun(run.query, run.batch, run.txn_most, run.txn_least, large.part.block_bytes, time_ms)
        return [
            part
            for promotable, group in groupby(parts, key=lambda part: part.promotable)
            for part in (group if promotable else self._joined(list(group), kind))
        ]

    def _joined(self, parts: Sequence[OpenedPart], run: PartRun) -> list[OpenedPart]:
        """Join small parts into one promotable part. Return an empty list if they have no entry."""
        with PartWriter.to_file(self.place(run.query, run.batch), run) as file:
            for part in parts:
                for entry in part.entries:
                    file.write([entry], entry_rows(parse_entry(entry, f"an entry of {part.path}").metadata))
            joined = file.close()
        if not joined.entries:
            self.remove([joined.part])
            return []
        return [replace(open_part(joined, self.path(joined.part)), promotable=True)]

    def _is_large(self, part: StagedPart) -> bool:
        return (
            0 <= self._segment_from <= part.length
            and part.block_bytes > 0
            and part.length >= part.entries * _ENTRY_BYTES_MIN
        )

    def sync(self, parts: Sequence[StagedPart]) -> None:
        """Fsync parts and their directories."""
        if self._sync_parts is not None:
            files = [part.part for part in parts if part.object is None]
            self._sync_parts([(f"{self._directory.name}/{name}", self.path(name)) for name in files])
            return
        folders: set[Path] = set()
        for part in parts:
            path = self.path(part.part)
            with disk.opened(path) as fd:
                disk.sync_data(fd)
            folders |= {path.parent, path.parent.parent}
        for folder in sorted(folders | {self._directory} if folders else folders):
            disk.sync_directory(folder)

    def remove_parts(self, parts: Sequence[StagedPart]) -> None:
        """Delete the files of parts. A part in the bucket has no file."""
        self.remove([part.part for part in parts if part.object is None])

    def remove(self, parts: Sequence[str]) -> None:
        """Delete parts. Ignores missing parts."""
        for part in parts:
            self.path(part).unlink(missing_ok=True)

    def remove_joined(self, run: CommitRun, opened: Sequence[OpenedPart]) -> None:
        """Delete the joined parts that `open_run` made for this run."""
        requested = {part.part for part in run.parts}
        self.remove([part.part.part for part in opened if part.part.part not in requested])

    def sweep_before(self, query: str, batch: int) -> None:
        """Delete the parts of earlier batches of this query."""
        for folder in _batch_folders(self._directory / _digest(query)):
            if int(folder.name) < batch:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep_older(self, cutoff_ms: int) -> list[str]:
        """Delete the directory of each batch that got no part since `cutoff_ms`. Return the deleted directories."""
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
