"""The table of a read, as the driver finds it: which version, how far each log is in it, and what tasks read of it.

Rules
- One version is read at a time, and it is the same table as before, or that is an error with both ids.
- A column that is in the table has the type that the ledger says, or is refused naming both; one that is not there yet
  is null. A table that has none of the ledger's columns is another's.
- What is in the table of a log was in the log: one that ends before it is not the log that was published.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pyspark.sql.types import NullType, StructType

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.offsets import HistoryPin
from pyspark_ledger.connector.read.table.task import TableTask
from pyspark_ledger.connector.read.task_split import part_bytes
from pyspark_ledger.connector.rows.metadata_columns import Topic
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.connector.schema import nullable_type
from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import LogStatus, ReadProgress
from pyspark_ledger.offload.table.commit_metadata import app_id
from pyspark_ledger.offload.table.data_file import TableFile
from pyspark_ledger.offload.table.limit_splitter import LimitSplitter
from pyspark_ledger.offload.table.rows import FileShare, LogRows, TablePart
from pyspark_ledger.offload.table.snapshot import TableSnapshot, open_table, require_same_table

BEGINNING = Position(-1, 0)
"""Before every entry of a log. Of a log that was trimmed it says that something was there."""
FROM_BEGINNING = ReadProgress(position=BEGINNING, count=False)


class LogIncarnation(Protocol):
    """One life of one log."""

    @property
    def name(self) -> str:
        """Its canonical name."""
        ...

    @property
    def incarnation(self) -> str: ...


class RowsRead(Protocol):
    """What is read beside a table, of a log or of a bucket."""

    @property
    def options(self) -> LedgerOptions: ...

    @property
    def name(self) -> str:
        """The ledger's name."""
        ...

    def shape(self) -> RowShape: ...


@dataclass(frozen=True)
class HistoryTable:
    """One version of the table of a read.

    `up_to`: the newest ledger id of each log in it, of those that are in it; `incarnations`: which logs those are.
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
        """Where a log goes on behind what is in the table; BEGINNING for one of which nothing is."""
        if log.name not in self.up_to:
            return BEGINNING
        return min(Position(self.up_to[log.name] + 1, 0), log.end)

    def require_reached(self, logs: Iterable[LogStatus]) -> None:
        """DataLoss when a log, looked at after the table was opened, ends before what was published of it."""
        for log in logs:
            newest = self.up_to.get(log.name, -1)
            if newest > log.end.ledger_id:
                raise DataLoss(
                    f"ledger {log.name} ends at {log.end}, its ledger {newest} is in {self.snapshot}",
                    hint="The store was restored from an older copy: publish to a new table",
                )

    def contains_from(self, log: str, position: Position) -> bool:
        """Whether what was published of a log from a position on is here: nothing is before BEGINNING.

        A table that was begun, or cut off, later than that lacks what comes before its first row.
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
        """What of a range of a log is in the table, and what is in the log only; either may be empty."""
        if log not in self.up_to:
            return PositionRange(range_.start, range_.start), range_
        table_end = Position(self.up_to[log] + 1, 0)
        return (
            PositionRange(range_.start, min(range_.end, table_end)),
            PositionRange(max(range_.start, table_end), range_.end),
        )


class HistoryRead:
    """The table of a read, opened on the driver. Columns are compared once for each version."""

    def __init__(self, log: RowsRead) -> None:
        history = log.options.history
        if history is None:
            raise Refused("no table is named", hint="Name it by option 'history'")
        self._log = log
        self._address = history.address()
        self.table_id = ""
        """The table of this read, once it is known: what the checkpoint names, else the first that was opened."""

    def newest(self, logs: Sequence[LogIncarnation]) -> HistoryTable:
        """The newest version, and how far these logs are in it."""
        snapshot = self._open(None)
        newest = {
            log.name: snapshot.published_up_to(log.incarnation, app_id(log.name, log.incarnation)) for log in logs
        }
        incarnations = {log.name: log.incarnation for log in logs}
        return HistoryTable(snapshot, {name: ledger for name, ledger in newest.items() if ledger >= 0}, incarnations)

    def newest_for_start(self, logs: Sequence[LogStatus]) -> HistoryTable:
        """The same for a reader that begins, of logs that were surveyed from their BEGINNING.

        Refused when the table has rows and nothing of any of them, though something of them is gone from the log: that
        is another's table.
        """
        table = self.newest(logs)
        trimmed = [log for log in logs if log.trimmed is not None]
        if trimmed and table.snapshot.files and not table.up_to:
            log = trimmed[0]
            raise Refused(
                f"{table.snapshot} has nothing of ledger {log.name}, incarnation {log.incarnation}, and the log has "
                f"nothing before {log.start}",
                hint="Name the table that the ledger is published to, or leave 'history' out",
            )
        return table

    def pinned(self, pin: HistoryPin, incarnations: Mapping[str, str]) -> HistoryTable:
        """The version that an offset names, as far as it said; DataLoss when it is gone, Refused for another table."""
        return HistoryTable(self._open(pin.version), pin.up_to, incarnations)

    def tasks(self, table: HistoryTable, wanted: Mapping[str, LogRows]) -> list[TableTask]:
        """What tasks read of the wanted rows of each log: files, large ones in shares, small ones together."""
        options, shape = self._log.options, self._log.shape()
        held = {name: table.splitter.candidate_files(rows) for name, rows in wanted.items() if rows.range}
        total = sum(file.size_bytes for files in held.values() for file in files)
        size = part_bytes(total, options.min_partition_bytes, options.target_partition_bytes)
        return [
            TableTask(
                TablePart(self._address, table.snapshot.version, files, wanted[name]), shape, Topic.of(name).partition
            )
            for name, found in held.items()
            for files in _group_files(found, size)
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
    """Refuse a table whose columns are not those of the ledger, naming the first that differs and both types."""
    there = StructType.fromJson(json.loads(snapshot.columns))
    for column in shape.spark_schema(ledger):
        if column.name not in there.names or isinstance(column.dataType, NullType):
            continue
        found = nullable_type(there[column.name].dataType)
        if found != column.dataType:
            raise Refused(
                f"column {column.name!r} is {found.simpleString()} in {snapshot} and {column.dataType.simpleString()} "
                f"in ledger {ledger!r}",
                hint="A ledger's types never change: this is not the table that it is published to",
            )
    if not set(shape.known) & set(there.names):
        raise Refused(
            f"{snapshot} has none of the columns of ledger {ledger!r}: {', '.join(shape.known)}",
            hint="Name the table that the ledger is published to",
        )


def _group_files(files: Sequence[TableFile], size: int) -> list[tuple[FileShare, ...]]:
    """Files in tasks of about so many bytes, in order; a larger file is cut into shares."""
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
