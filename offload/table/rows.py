"""Rows of a published table, out of its data files: those of some logs at some positions, as the columns asked for.

Rules
- Only the columns that are asked for are read, and those that say where a row stood where a file may hold others too.
- Row groups that hold no position of a range are passed over by the file's own statistics.
- A column that a file does not have is null, one by which the table is partitioned is what the table's log says; types
  are cast without loss, or refused naming both.
- A file is shared out by its row groups: a share takes those whose middle lies in it, so every row is read once.
- A file that is not there any more is a loss with its name. Nothing is passed over in silence.
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
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.offload.storage.factory import open_object_store
from pyspark_ledger.offload.table.data_file import INCARNATION, POSITION, TableFile
from pyspark_ledger.offload.table.table_address import TableAddress

_BATCH_ROWS, _BATCH_BYTES = 64 * 1024, 4 * 1024 * 1024
_LEDGER, _ENTRY = f"{POSITION}.ledgerId", f"{POSITION}.entryId"
Mask = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogRows:
    """The rows of one log that are wanted."""

    incarnation: str
    range: PositionRange


@dataclass(frozen=True, slots=True)
class FileShare:
    """Share `number` of `shares` of a file."""

    file: TableFile
    number: int = 0
    shares: int = 1

    @property
    def size_bytes(self) -> int:
        """About how much of the file it is."""
        return self.file.size_bytes // self.shares


@dataclass(frozen=True, slots=True)
class TablePart:
    """What one task reads of a version of a table, of one log. `version` is for people. Pickles; holds no secret."""

    address: TableAddress
    version: int
    files: tuple[FileShare, ...]
    wanted: LogRows


def read_table_part(part: TablePart, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a part, as columns of `target`; DataLoss for a file that is gone."""
    for share in part.files:
        yield from _share_rows(part, share, target)


def _share_rows(part: TablePart, share: FileShare, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    where = f"{share.file.path} of table {part.address.location}"
    fit = ColumnFit(target)
    typed = [field.name for field in target if not pa.types.is_null(field.type)]  # Delta keeps no column without one
    for batch in read_rows(part, share, typed):
        yield fit.fit(_with_values(batch, share.file, target, where), where)


def read_rows(part: TablePart, share: FileShare, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a share, with those of these columns that the file has, and perhaps more."""
    where = f"{share.file.path} of table {part.address.location}"
    with open_file(part.address, part.version, share.file) as file:
        wanted = _Wanted(share.file, part.wanted)
        own = [name for name in names if name in file.schema_arrow.names]
        read = [*own, *(name for name in wanted.columns if name.split(".")[0] not in own)]
        for group, first, rows in _groups(file.metadata, share, part.wanted.range):
            done = first
            for batch in file.iter_batches(rows, row_groups=[group], columns=read):
                kept = wanted.mask(batch, done, where)
                done += batch.num_rows
                taken = batch if kept is None else batch.filter(pa.array(kept))
                if taken.num_rows:
                    yield taken


def open_file(address: TableAddress, version: int, file: TableFile) -> pq.ParquetFile:
    """A data file, opened; DataLoss when it is not there any more."""
    try:
        if address.local:
            source: Any = str(address.local_file(file.path))
            return pq.ParquetFile(source, memory_map=True, coerce_int96_timestamp_unit="us")
        return pq.ParquetFile(_ObjectFile(address, file), pre_buffer=True, coerce_int96_timestamp_unit="us")
    except (FileNotFoundError, NotFound) as gone:
        raise DataLoss(
            f"file {file.path} of version {version} of table {address.location} is gone: VACUUM removes the files of "
            "old versions",
            hint="Read again. A batch of a stream that is run again reads the newest version with option "
            "failOnDataLoss false. Keep versions for longer than a reader takes (delta.deletedFileRetentionDuration), "
            "where every host sees them",
        ) from gone
    except pa.ArrowInvalid as wrong:
        raise Corrupt(f"file {file.path} of table {address.location} is no Parquet file: {wrong}") from wrong


def positions(batch: pa.RecordBatch) -> tuple[Integers, Integers]:
    """Ledger ids and entry ids of the rows of a batch that has the column `__position`, in whole or these two of it."""
    column = batch.column(batch.schema.get_field_index(POSITION))
    ids = pc.struct_field(column, "ledgerId"), pc.struct_field(column, "entryId")
    if any(one.null_count for one in ids):
        raise Corrupt(f"a published row has no {POSITION}", hint="Somebody else wrote rows into the table")
    ledgers, entries = (np.asarray(one.to_numpy(zero_copy_only=False), dtype=np.int64) for one in ids)
    return ledgers, entries


def within(ledgers: Integers, entries: Integers, range_: PositionRange) -> Mask:
    start, end = range_.start, range_.end
    after = (ledgers > start.ledger_id) | ((ledgers == start.ledger_id) & (entries >= start.entry_id))
    before = (ledgers < end.ledger_id) | ((ledgers == end.ledger_id) & (entries < end.entry_id))
    return np.asarray(after & before)


class _Wanted:
    """Which rows of one file are wanted, and what has to be read to tell."""

    def __init__(self, file: TableFile, wanted: LogRows) -> None:
        self._wanted = wanted
        self._by_incarnation = not file.belongs_to(wanted.incarnation)
        self._by_position = not file.is_within(wanted.range)
        self._kept = np.unpackbits(np.frombuffer(file.live_rows, np.uint8)).astype(bool) if file.live_rows else None

    @property
    def columns(self) -> list[str]:
        return [*([INCARNATION] if self._by_incarnation else []), *([_LEDGER, _ENTRY] if self._by_position else [])]

    def mask(self, batch: pa.RecordBatch, first: int, where: str) -> Mask | None:
        """Which rows of a batch, whose first is that row of the file, are wanted; None for all of them."""
        found: list[Mask] = []
        if self._by_incarnation:
            found.append(_equals(batch, self._wanted.incarnation))
        if self._by_position:
            found.append(within(*positions(batch), self._wanted.range))
        if self._kept is not None:
            left = self._kept[first : first + batch.num_rows]
            if len(left) != batch.num_rows:
                raise Corrupt(f"{where} has more rows than the table's log knows of")
            found.append(left)
        kept: Mask = np.logical_and.reduce(found) if found else np.ones(0, dtype=bool)
        return None if kept.all() else kept


def _equals(batch: pa.RecordBatch, incarnation: str) -> Mask:
    found = pc.fill_null(pc.equal(batch.column(batch.schema.get_field_index(INCARNATION)), incarnation), False)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)


def _groups(metadata: Any, share: FileShare, range_: PositionRange) -> Iterator[tuple[int, int, int]]:
    """The row groups of a share that may hold what is wanted: number, number of the first row, rows in a batch."""
    first, begin = 0, 0
    sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    total = max(sum(sizes), 1)
    for number, size in enumerate(sizes):
        group = metadata.row_group(number)
        middle = (begin + size / 2) / total
        mine = share.number / share.shares <= middle < (share.number + 1) / share.shares
        if mine and group.num_rows and _may_hold(group, range_):
            yield number, first, max(min(_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(size, 1)), 1)
        first += group.num_rows
        begin += size


def _may_hold(group: Any, range_: PositionRange) -> bool:
    """Whether a row group may hold a position of the range, by its own statistics of ledger ids."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == _LEDGER:
            told = column.statistics
            if told is None or not told.has_min_max:
                return True
            return bool(told.min <= range_.end.ledger_id and range_.start.ledger_id <= told.max)
    return True


def _with_values(batch: pa.RecordBatch, file: TableFile, target: pa.Schema, where: str) -> pa.RecordBatch:
    """The batch with the columns that the table is partitioned by, of those that are asked for."""
    for name, value in file.values:
        if name in target.names and name not in batch.schema.names:
            field = target.field(name)
            column = cast_column(pa.repeat(pa.scalar(value), batch.num_rows), field, where)
            batch = batch.append_column(field, column)
    return batch


class _ObjectFile(io.RawIOBase):
    """An object as a file that is read where it is asked."""

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
        left = max(self._size - self._at, 0)
        data = bytes(self._store.get_range(self._key, self._at, left if size < 0 else min(size, left)))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
