"""Published table of a read on the driver: version, last published segment of each ledger, and tasks.

The page docs/concepts.md explains the words segment, incarnation and trim.

Rules
- A batch reads one version. If the table's id has changed, an error names both ids.
- A column in the table must have the ledger's type or a narrower type. Otherwise the read is refused, with both types.
  If the table does not have a column yet, the column is null. A table without any column of the ledger is refused.
- If a ledger ends before its last published segment, DataLoss is raised. Reason: the store was restored from an older
  copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pyspark.sql.types import NullType, StructType

from pyspark_ledger.connector.cast_hint import ordered_like
from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.offsets import HistoryPin
from pyspark_ledger.connector.read.table.task import TableTask
from pyspark_ledger.connector.read.task_split import part_bytes
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.connector.schema import arrow_type, nullable_type
from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.message.columns import is_older, widens
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import LogStatus, ReadProgress
from pyspark_ledger.ledger.rows.metadata_columns import Topic
from pyspark_ledger.offload.table.commit_metadata import app_id
from pyspark_ledger.offload.table.data_file import TableFile
from pyspark_ledger.offload.table.limit_splitter import LimitSplitter
from pyspark_ledger.offload.table.rows import FileShare, LogRows, TablePart
from pyspark_ledger.offload.table.snapshot import TableSnapshot, open_table, require_same_table

BEGINNING = Position(-1, 0)
"""Position before every entry. A request with this position also returns the numbers of a ledger's trimmed entries."""
FROM_BEGINNING = ReadProgress(position=BEGINNING, count=False)


class LogIncarnation(Protocol):
    """Name and incarnation of a ledger."""

    @property
    def name(self) -> str:
        """Full name of the ledger."""
        ...

    @property
    def incarnation(self) -> str: ...


class RowsRead(Protocol):
    """Read of the ledgers, or of their bucket, that continues a read of a table."""

    @property
    def options(self) -> LedgerOptions: ...

    @property
    def name(self) -> str:
        """Name of the ledger."""
        ...

    def shape(self) -> RowShape: ...


@dataclass(frozen=True)
class HistoryTable:
    """Version of the published table of a read.

    `up_to` is the last published segment id of each ledger in the table; `incarnations` are the ledgers' incarnations.
    """

    snapshot: TableSnapshot
    up_to: Mapping[str, int]
    incarnations: Mapping[str, str]

    @cached_property
    def splitter(self) -> LimitSplitter:
        return LimitSplitter(self.snapshot)

    @property
    def pin(self) -> HistoryPin:
        return HistoryPin(self.snapshot.table_id, self.snapshot.version, self.up_to)

    def after(self, log: LogStatus) -> Position:
        """Return the first position of a ledger after the table; BEGINNING if the table has no rows of the ledger."""
        if log.name not in self.up_to:
            return BEGINNING
        return min(Position(self.up_to[log.name] + 1, 0), log.end)

    def require_reached(self, logs: Iterable[LogStatus]) -> None:
        """Raise DataLoss if a ledger ends before its last published segment.

        The statuses in `logs` must be newer than the table's version.
        """
        for log in logs:
            newest = self.up_to.get(log.name, -1)
            if newest > log.end.ledger_id:
                raise DataLoss(
                    f"ledger {log.name} ends at {log.end}, its segment {newest} is in {self.snapshot}",
                    hint="The store was restored from an older copy: publish to a new table",
                )

    def contains_from(self, log: str, position: Position) -> bool:
        """Return whether the table has the published entries of a ledger from `position` on.

        False if the first row of the ledger in the table is in a later segment than `position`.
        """
        if log not in self.up_to or position <= BEGINNING:
            return log in self.up_to
        whole = PositionRange(BEGINNING, Position(self.up_to[log] + 1, 0))
        first = min(
            (file.low for file in self.splitter.candidate_files(LogRows(self.incarnations[log], whole))),
            default=whole.end,
        )
        return first.ledger_id <= position.ledger_id

    def split(self, log: str, range_: PositionRange) -> tuple[PositionRange, PositionRange]:
        """Return the part of a range that is in the table, and the part after the table. Either may be empty."""
        if log not in self.up_to:
            return PositionRange(range_.start, range_.start), range_
        table_end = Position(self.up_to[log] + 1, 0)
        return (
            PositionRange(range_.start, min(range_.end, table_end)),
            PositionRange(max(range_.start, table_end), range_.end),
        )


class HistoryRead:
    """Published table of a read, opened on the driver. Each opened version is checked against the ledger's columns."""

    def __init__(self, log: RowsRead) -> None:
        history = log.options.history
        if history is None:
            raise Refused("no table is named", hint="Name it with option 'history'")
        self._log = log
        self._address = history.address()
        self.table_id = ""
        """Id of the table: from the checkpoint, else of the first opened version; empty before that."""

    def newest(self, logs: Sequence[LogIncarnation]) -> HistoryTable:
        """Return the newest version of the table, for these ledgers."""
        snapshot = self._open(None)
        newest = {
            log.name: snapshot.published_up_to(log.incarnation, app_id(log.name, log.incarnation)) for log in logs
        }
        incarnations = {log.name: log.incarnation for log in logs}
        return HistoryTable(snapshot, {name: ledger for name, ledger in newest.items() if ledger >= 0}, incarnations)

    def newest_for_start(self, logs: Sequence[LogStatus]) -> HistoryTable:
        """Return the newest version for a read that starts. `logs` are the ledgers' statuses from their beginning.

        Raises Refused for a table of other ledgers: it has rows, but no row of these ledgers. The check applies only if
        a ledger is trimmed.
        """
        table = self.newest(logs)
        trimmed = [log for log in logs if log.trimmed is not None]
        if trimmed and table.snapshot.files and not table.up_to:
            log = trimmed[0]
            raise Refused(
                f"{table.snapshot} has no rows of ledger {log.name}, incarnation {log.incarnation}, and the log begins "
                f"at {log.start}",
                hint="Name the table that the ledger is published to, or leave 'history' out",
            )
        return table

    def pinned(self, pin: HistoryPin, incarnations: Mapping[str, str]) -> HistoryTable:
        """Return the version in an offset. Raises DataLoss for a removed version, and Refused for another table."""
        return HistoryTable(self._open(pin.version), pin.up_to, incarnations)

    def tasks(self, table: HistoryTable, rows_by_log: Mapping[str, LogRows]) -> list[TableTask]:
        """Return the tasks for the rows of each ledger. Large files are split into shares; small files share a task."""
        options, shape = self._log.options, self._log.shape()
        files_by_log = {name: table.splitter.candidate_files(rows) for name, rows in rows_by_log.items() if rows.range}
        total = sum(file.size_bytes for files in files_by_log.values() for file in files)
        size = part_bytes(total, options.min_partition_bytes, options.target_partition_bytes)
        return [
            TableTask(
                TablePart(self._address, table.snapshot.version, files, rows_by_log[name]),
                shape,
                Topic.of(name).partition,
            )
            for name, log_files in files_by_log.items()
            for files in _group_files(log_files, size)
        ]

    def remember(self, pin: HistoryPin | None) -> None:
        self.table_id = self.table_id if pin is None else pin.table_id

    def _open(self, version: int | None) -> TableSnapshot:
        snapshot = open_table(self._address, version)
        require_same_table(snapshot, self.table_id or snapshot.table_id)
        self.table_id = snapshot.table_id
        require_columns(snapshot, self._log.shape(), self._log.name)
        return snapshot


def require_columns(snapshot: TableSnapshot, shape: RowShape, ledger: str) -> None:
    """Raise Refused if a column of the table cannot be cast to the ledger's type, or if they have no common column."""
    table_columns = StructType.fromJson(json.loads(snapshot.columns))
    for column in shape.spark_schema(ledger):
        if column.name not in table_columns.names or isinstance(column.dataType, NullType):
            continue
        actual = ordered_like(nullable_type(table_columns[column.name].dataType), column.dataType)
        if actual == column.dataType or is_older(arrow_type(column.dataType), arrow_type(actual)):
            continue  # rows with a value that an older plan has no place for raise Outdated
        if not widens(arrow_type(actual), arrow_type(column.dataType)):
            raise Refused(
                f"column {column.name!r} is {actual.simpleString()} in {snapshot} and {column.dataType.simpleString()} "
                f"in ledger {ledger!r}",
                hint="A ledger's types only become wider, so the ledger is not published to this table",
            )
    if not set(shape.known) & set(table_columns.names):
        raise Refused(
            f"{snapshot} has none of the columns of ledger {ledger!r}: {', '.join(shape.known)}",
            hint="Name the table that the ledger is published to",
        )


def _group_files(files: Sequence[TableFile], size: int) -> list[tuple[FileShare, ...]]:
    """Group files in order into tasks of about `size` bytes. A larger file is split into shares."""
    tasks: list[list[FileShare]] = []
    filled = size
    for file in files:
        shares = max(round(file.size_bytes / size), 1)
        for number in range(shares):
            share = FileShare(file, number, shares)
            if filled + share.size_bytes > size:
                tasks.append([])
                filled = 0
            tasks[-1].append(share)
            filled += share.size_bytes
    return [tuple(task) for task in tasks]
