"""Splitter of a log's published rows at a limit of rows and bytes: a *split* is the rows of one batch of a stream.

The page docs/concepts.md explains the words log, entry and position.

Rules
- The caller asks for the rows of a range of positions. These rows are *wanted*.
- Rows are sorted by position, because a compaction of the table may have mixed their order in the files.
- Files that fit into the limit as a whole are not opened.
- The size of a row is the size of its file divided by the file's number of rows.
- A split contains at least one entry, unless the range is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.offload.table.data_file import POSITION, PUBLISH_TIME, TableFile
from pyspark_ledger.offload.table.rows import FileShare, LogRows, TablePart, positions, read_rows, within
from pyspark_ledger.offload.table.snapshot import TableSnapshot

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LimitSplit:
    """Rows of a log from the start of the range to `end`. `whole` is set if the range has no rows after `end`."""

    end: Position
    rows: int = 0
    size_bytes: int = 0
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries with published rows, in order. Each array has an element for each entry."""

    ledgers: Integers
    entries: Integers
    rows: Integers
    sizes: npt.NDArray[np.float64]

    def within(self, range_: PositionRange) -> _Entries:
        mask = within(self.ledgers, self.entries, range_)
        return _Entries(self.ledgers[mask], self.entries[mask], self.rows[mask], self.sizes[mask])


class LimitSplitter:
    """Splitter for one version of a table. Caches the entries of files that it opened."""

    def __init__(self, snapshot: TableSnapshot) -> None:
        self._snapshot = snapshot
        self._entries_by_files: dict[tuple[str, ...], _Entries] = {}

    def candidate_files(self, wanted: LogRows) -> list[TableFile]:
        """Return the files that may contain a wanted row, ordered by the first position that their rows may have."""
        return [file for file in self._snapshot.files if file.may_contain(wanted.incarnation, wanted.range)]

    def split(self, wanted: LogRows, rows: int, size_bytes: int) -> LimitSplit:
        """Return the longest prefix of the wanted rows within the limits, and at least one entry."""
        at, split_rows, split_bytes = wanted.range.start, 0, 0
        for files in _overlapping(self.candidate_files(wanted)):
            rest_rows, rest_bytes = rows - split_rows, size_bytes - split_bytes
            if split_rows and (rest_rows <= 0 or rest_bytes <= 0):
                return LimitSplit(at, split_rows, split_bytes)
            more_rows, more_bytes = sum(file.rows for file in files), sum(file.size_bytes for file in files)
            is_stated = all(_is_fully_stated(file, wanted) for file in files)
            if not is_stated or more_rows > rest_rows or more_bytes > rest_bytes:
                entries = self._entries(files, wanted)
                row_ends, byte_ends = np.cumsum(entries.rows), np.cumsum(entries.sizes)
                count = min(_count_up_to(row_ends, rest_rows), _count_up_to(byte_ends, rest_bytes))
                if not split_rows and not count:
                    count = min(1, len(entries.rows))
                more_rows, more_bytes = (int(ends[count - 1]) if count else 0 for ends in (row_ends, byte_ends))
                if count:
                    at = Position(int(entries.ledgers[count - 1]), int(entries.entries[count - 1])).next()
                if count < len(entries.rows):
                    return LimitSplit(at, split_rows + more_rows, split_bytes + more_bytes)
            elif more_rows:
                at = max(file.high for file in files).next()
            split_rows, split_bytes = split_rows + more_rows, split_bytes + more_bytes
        return LimitSplit(wanted.range.end, split_rows, split_bytes, whole=True)

    def find_time(self, wanted: LogRows, publish_ms: int) -> Position | None:
        """Return the first position of a wanted row that was published at or after a time, or None."""
        first: Position | None = None
        for file in self.candidate_files(wanted):
            if first is not None and file.low >= first:
                break
            # Delta truncates statistics of times to milliseconds.
            if file.newest_ms is None or file.newest_ms + 1 >= publish_ms:
                found = self._find_time_in(file, wanted, publish_ms)
                first = found if first is None or (found is not None and found < first) else first
        return first

    def _find_time_in(self, file: TableFile, wanted: LogRows, publish_ms: int) -> Position | None:
        first: Position | None = None
        since = pa.scalar(publish_ms * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        for batch in self._rows(file, wanted, (POSITION, PUBLISH_TIME)):
            times = batch.column(batch.schema.get_field_index(PUBLISH_TIME))
            later = batch.filter(pc.greater_equal(times, since.cast(times.type)))
            if later.num_rows:
                ledgers, entries = positions(later)
                at = int(np.lexsort((entries, ledgers))[0])
                found = Position(int(ledgers[at]), int(entries[at]))
                first = found if first is None else min(first, found)
        return first

    def _entries(self, files: Sequence[TableFile], wanted: LogRows) -> _Entries:
        """Return the entries of the wanted rows in these files. Reads the position column."""
        key = (wanted.incarnation, *(file.path for file in files))
        if key not in self._entries_by_files:
            whole = LogRows(wanted.incarnation, PositionRange(EARLIEST, LATEST))
            self._entries_by_files[key] = _entries_of(
                [(file, list(self._rows(file, whole, (POSITION,)))) for file in files]
            )
        return self._entries_by_files[key].within(wanted.range)

    def _rows(self, file: TableFile, wanted: LogRows, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        part = TablePart(self._snapshot.address, self._snapshot.version, (), wanted)
        return read_rows(part, FileShare(file), names)


def _entries_of(files: Sequence[tuple[TableFile, Sequence[pa.RecordBatch]]]) -> _Entries:
    placed = [(file, *positions(batch)) for file, batches in files for batch in batches]
    ledgers, entries = (np.concatenate([np.empty(0, np.int64), *(item[side] for item in placed)]) for side in (1, 2))
    sizes = np.concatenate([np.empty(0), *(np.full(len(item[1]), _row_bytes(item[0])) for item in placed)])
    order = np.lexsort((entries, ledgers))
    ledgers, entries, sizes = ledgers[order], entries[order], sizes[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (ledgers[1:] != ledgers[:-1]) | (entries[1:] != entries[:-1])
    firsts = np.flatnonzero(new)
    rows = np.diff(np.append(firsts, len(order)))
    summed = np.add.reduceat(sizes, firsts) if len(firsts) else sizes
    return _Entries(ledgers[firsts], entries[firsts], rows, summed)


def _overlapping(files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Yield groups of files. Every position in a group precedes every position in the next group."""
    group: list[TableFile] = []
    high = EARLIEST
    for file in files:
        if group and file.low > high:
            yield group
            group = []
        group.append(file)
        high = max(high, file.high)
    if group:
        yield group


def _is_fully_stated(file: TableFile, wanted: LogRows) -> bool:
    """Return whether all rows of the file are wanted and Delta's log states their number."""
    return (
        file.rows >= 0 and not file.live_rows and file.belongs_to(wanted.incarnation) and file.is_within(wanted.range)
    )


def _row_bytes(file: TableFile) -> float:
    return file.size_bytes / max(file.rows, 1)


def _count_up_to(ends: npt.NDArray[np.float64] | Integers, most: int) -> int:
    """Return how many of the running sums `ends` are at most `most`."""
    return int(np.searchsorted(ends, most, side="right"))
