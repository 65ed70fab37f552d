"""Reads of a published table's data files: the rows of a log in a range of positions, as the requested columns.

The page docs/concepts.md explains the words log, entry and position.

Rules
- Only the requested columns are read. Exception: if a file may contain other rows than the wanted rows, the columns
  with position and incarnation are read too. An incarnation is an id that changes if a ledger is created again.
- Row groups that have no position of the range according to their statistics are skipped.
- A column that a file does not have is null. A partition column has the value in Delta's log.
- A column of another type is cast if no value is lost. Otherwise an error names both types.
- Several tasks can share a file. A task reads the row groups whose middle lies in its share of the bytes, so every row
  is read once.
- A missing file raises DataLoss naming the file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_ledger.ledger.errors import Corrupt, DataLoss, NotFound
from pyspark_ledger.ledger.message.columns import ColumnFit, cast_column
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.offload.table.data_file import INCARNATION, POSITION, TableFile
from pyspark_ledger.offload.table.table_address import TableAddress

_BATCH_ROWS, _BATCH_BYTES = 64 * 1024, 4 * 1024 * 1024
_LEDGER, _ENTRY = f"{POSITION}.ledgerId", f"{POSITION}.entryId"
Mask = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogRows:
    """Wanted rows: a range of positions of one incarnation of a log."""

    incarnation: str
    range: PositionRange


@dataclass(frozen=True, slots=True)
class FileShare:
    """Share of a data file: share `number`, from 0, of `shares` equal shares."""

    file: TableFile
    number: int = 0
    shares: int = 1

    @property
    def size_bytes(self) -> int:
        """The approximate size of the share in bytes."""
        return self.file.size_bytes // self.shares


@dataclass(frozen=True, slots=True)
class TablePart:
    """Input of one task: rows of one log in a version of a table. `version` is used in errors only.

    The value can be pickled, and contains no secret.
    """

    address: TableAddress
    version: int
    files: tuple[FileShare, ...]
    wanted: LogRows


def read_table_part(part: TablePart, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part with the columns of `target`. Raises DataLoss if a file is missing."""
    for share in part.files:
        yield from _share_rows(part, share, target)


def _share_rows(part: TablePart, share: FileShare, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    where = f"{share.file.path} of table {part.address.location}"
    fit = ColumnFit(target)
    for batch in read_rows(part, share, target.names):
        yield fit.fit(_add_partition_columns(batch, share.file, target, where), where)


def read_rows(part: TablePart, share: FileShare, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a share. They have the columns `names` that the file has, and possibly other columns."""
    where = f"{share.file.path} of table {part.address.location}"
    with open_file(part.address, part.version, share.file) as file:
        wanted = _Wanted(share.file, part.wanted)
        own = [name for name in names if name in file.schema_arrow.names]
        read = [*own, *(name for name in wanted.columns if name.split(".")[0] not in own)]
        for group, first, rows in _row_groups(file.metadata, share, part.wanted.range):
            row_number = first
            for batch in file.iter_batches(rows, row_groups=[group], columns=read):
                mask = wanted.mask(batch, row_number, where)
                row_number += batch.num_rows
                selected = batch if mask is None else batch.filter(pa.array(mask))
                if selected.num_rows:
                    yield selected


def open_file(address: TableAddress, version: int, file: TableFile) -> pq.ParquetFile:
    """Open a data file. Raises DataLoss if the file is missing, Corrupt if it is not a Parquet file."""
    try:
        if address.local:
            source: Any = str(address.local_file(file.path))
            return pq.ParquetFile(source, memory_map=True, coerce_int96_timestamp_unit="us")
        return pq.ParquetFile(_ObjectFile(address, file), pre_buffer=True, coerce_int96_timestamp_unit="us")
    except (FileNotFoundError, NotFound) as gone:
        raise DataLoss(
            f"file {file.path} of version {version} of table {address.location} is gone: VACUUM removes the files of "
            "old versions",
            hint="Read again. With option failOnDataLoss false, a stream repeats the batch with the newest version. "
            "Keep deleted files for longer than a read takes (delta.deletedFileRetentionDuration), and the table in a "
            "location that every host can read",
        ) from gone
    except pa.ArrowInvalid as wrong:
        raise Corrupt(f"file {file.path} of table {address.location} is not a Parquet file: {wrong}") from wrong


def positions(batch: pa.RecordBatch) -> tuple[Integers, Integers]:
    """Return the ledger ids and entry ids of a batch's rows. Other fields of `__position` may be missing."""
    column = batch.column(batch.schema.get_field_index(POSITION))
    ids = pc.struct_field(column, "ledgerId"), pc.struct_field(column, "entryId")
    if any(column.null_count for column in ids):
        raise Corrupt(f"a published row has no {POSITION}", hint="Another program wrote rows to the table")
    ledgers, entries = (np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64) for column in ids)
    return ledgers, entries


def within(ledgers: Integers, entries: Integers, range_: PositionRange) -> Mask:
    start, end = range_.start, range_.end
    after = (ledgers > start.ledger_id) | ((ledgers == start.ledger_id) & (entries >= start.entry_id))
    before = (ledgers < end.ledger_id) | ((ledgers == end.ledger_id) & (entries < end.entry_id))
    return np.asarray(after & before)


class _Wanted:
    """Filter that selects the wanted rows of a file, and the columns that the filter reads."""

    def __init__(self, file: TableFile, wanted: LogRows) -> None:
        self._wanted = wanted
        self._by_incarnation = not file.belongs_to(wanted.incarnation)
        self._by_position = not file.is_within(wanted.range)
        self._live_rows = (
            np.unpackbits(np.frombuffer(file.live_rows, np.uint8)).astype(bool) if file.live_rows else None
        )

    @property
    def columns(self) -> list[str]:
        return [*([INCARNATION] if self._by_incarnation else []), *([_LEDGER, _ENTRY] if self._by_position else [])]

    def mask(self, batch: pa.RecordBatch, first: int, where: str) -> Mask | None:
        """Return the mask of the wanted rows, None if all rows are wanted.

        `first` is the number of the batch's first row in the file.
        """
        masks: list[Mask] = []
        if self._by_incarnation:
            masks.append(_equals(batch, self._wanted.incarnation))
        if self._by_position:
            masks.append(within(*positions(batch), self._wanted.range))
        if self._live_rows is not None:
            live = self._live_rows[first : first + batch.num_rows]
            if len(live) != batch.num_rows:
                raise Corrupt(f"{where} has more rows than the table's log states")
            masks.append(live)
        mask: Mask = np.logical_and.reduce(masks) if masks else np.ones(0, dtype=bool)
        return None if mask.all() else mask


def _equals(batch: pa.RecordBatch, incarnation: str) -> Mask:
    matches = pc.fill_null(pc.equal(batch.column(batch.schema.get_field_index(INCARNATION)), incarnation), False)
    return np.asarray(matches.to_numpy(zero_copy_only=False), dtype=bool)


def _row_groups(metadata: Any, share: FileShare, range_: PositionRange) -> Iterator[tuple[int, int, int]]:
    """Yield the row groups of a share that may contain wanted rows: group number, first row, rows in each batch."""
    first, start = 0, 0
    sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    total = max(sum(sizes), 1)
    for number, size in enumerate(sizes):
        group = metadata.row_group(number)
        middle = (start + size / 2) / total
        is_in_share = share.number / share.shares <= middle < (share.number + 1) / share.shares
        if is_in_share and group.num_rows and _may_hold(group, range_):
            yield number, first, max(min(_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(size, 1)), 1)
        first += group.num_rows
        start += size


def _may_hold(group: Any, range_: PositionRange) -> bool:
    """Return whether a row group may contain a position of the range according to its statistics of ledger ids."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == _LEDGER:
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                return True
            return bool(statistics.min <= range_.end.ledger_id and range_.start.ledger_id <= statistics.max)
    return True


def _add_partition_columns(batch: pa.RecordBatch, file: TableFile, target: pa.Schema, where: str) -> pa.RecordBatch:
    """Add the partition columns of `target` to a batch, because a data file does not contain them."""
    for name, value in file.values:
        if name in target.names and name not in batch.schema.names:
            field = target.field(name)
            column = cast_column(pa.repeat(pa.scalar(value), batch.num_rows), field, where)
            batch = batch.append_column(field, column)
    return batch


class _ObjectFile(io.RawIOBase):
    """Object as a file: each read fetches a range."""

    def __init__(self, address: TableAddress, file: TableFile) -> None:
        super().__init__()
        self._store = open_object_store(address.location, address.s3)
        self._key, self._at = file.path, 0
        self._size = self._store.head(file.path).size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, size: int = -1, /) -> bytes:
        remaining = max(self._size - self._at, 0)
        data = bytes(self._store.get_range(self._key, self._at, remaining if size < 0 else min(size, remaining)))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
