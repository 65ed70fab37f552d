"""Bounded reads of a published table and of the entries behind it, in a log or in a bucket (option `history`).

    spark.read.format("ledger").option("history", table)                        behind the table: the log
    spark.read.format("ledger").option("history", table).option("offload", …)   behind the table: a bucket, no broker

Rules
- Every row is read once: from the table up to the last ledger that is in its version, from the log or objects after it.
- Log: the version of the table is pinned first, the logs are read after it. Entries that are published meanwhile are
  still read from the log. Entries that were published and then trimmed in between are in the next version.
- Bucket: the bucket is listed first, the newest version of the table is opened after it. Entries that were published
  and then taken out of the bucket in between are in that version.
- The table may be ahead of the bucket: a sealed segment can be published before it is offloaded.
- A table that has rows, but none of the topic, belongs to another topic. Reason: a bucket alone cannot show that
  nothing is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bucket.scan import BucketRead, BucketScan
from pyspark_ledger.connector.read.ledger.scan import LedgerRead, measure_ranges
from pyspark_ledger.connector.read.planner import BatchPlanner, Task
from pyspark_ledger.connector.read.table.bounds import TableBounds
from pyspark_ledger.connector.read.table.published_table import BEGINNING, FROM_BEGINNING, HistoryRead, HistoryTable
from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import LogStatuses, ReadProgress
from pyspark_ledger.offload.bucket.topic_log import BucketLog
from pyspark_ledger.offload.table.rows import LogRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


class TableScan(BatchPlanner):
    """Plan of a bounded read of a table and of the ledgers that are published to it."""

    def __init__(self, options: LedgerOptions, given: StructType | None = None) -> None:
        self._read = LedgerRead(options, given)
        self._bounds = TableBounds(options, stream=False)

    def schema(self) -> StructType:
        return self._read.schema()

    def tasks(self) -> list[Task]:
        read, names, history = self._read, self._read.names(), HistoryRead(self._read)
        statuses = read.statuses({}, FROM_BEGINNING, of=names)
        read.require_found(statuses)
        table, strict = history.newest_for_start(statuses.logs), True
        while True:
            statuses = read.statuses(self._bounds.initial_progress(names), of=names)
            table.require_reached(statuses.logs)
            try:
                return self._both(statuses, history, table, strict=strict)
            except DataLoss:
                newest = history.newest(read.statuses({}, FROM_BEGINNING, of=names).logs)
                if newest.snapshot.version > table.snapshot.version:
                    table = newest
                elif read.options.fail_on_data_loss or not strict:
                    raise
                else:
                    strict = False

    def _both(self, statuses: LogStatuses, history: HistoryRead, table: HistoryTable, *, strict: bool) -> list[Task]:
        published, left = {}, {}
        for log in statuses.logs:
            whole = self._bounds.read_range(log, len(statuses.logs), table)
            there, rest = table.split(log.name, whole)
            published[log.name] = LogRows(log.incarnation, there)
            if rest:
                left[log.name] = ReadProgress(rest.start, log.incarnation, until=rest.end)
        tasks = self._read.tasks(measure_ranges(self._read, left, strict=strict))
        return [*history.tasks(table, published), *tasks]


class BucketTableScan(BucketScan):
    """Plan of a bounded read of a table and of the topic of a bucket that is published to it."""

    def tasks(self) -> list[Task]:
        read = self._read
        logs = [_Log(canonical_name(log.topic.name), log.incarnation, log) for log in read.logs]
        history = HistoryRead(read)
        table = history.newest(logs)
        _require_own_table(table, logs)
        published: dict[str, LogRows] = {}
        left: list[Task] = []
        for one in logs:
            there, rest = table.split(one.name, _range_of(read, one, table))
            published[one.name] = LogRows(one.incarnation, there)
            left += read.tasks(one.log, _clip_to_bucket(one, rest))
        return [*history.tasks(table, published), *left]


@dataclass(frozen=True, slots=True)
class _Log:
    """One topic of the bucket, with the name and the incarnation that its rows in the table state."""

    name: str
    incarnation: str
    log: BucketLog


def _require_own_table(table: HistoryTable, logs: Sequence[_Log]) -> None:
    if table.snapshot.files and not table.up_to:
        lives = ", ".join(f"{one.name} of life {one.incarnation}" for one in logs)
        raise Refused(
            f"{table.snapshot} has rows, and nothing of what the bucket has: {lives}",
            hint="Name the table that it is published to, or leave 'history' out",
        )
    for one in logs:
        newest, first = table.up_to.get(one.name), one.log.start.ledger_id
        if newest is not None and newest < first:
            _log.warning(
                "%s: the table ends with ledger %d, the bucket begins with %d; whether one between them was lost, "
                "neither tells",
                one.name, newest, first,
            )  # fmt: skip


def _behind(one: _Log, table: HistoryTable) -> Position:
    """Return the first position of a log behind the table."""
    return Position(table.up_to[one.name] + 1, 0) if one.name in table.up_to else BEGINNING


def _range_of(read: BucketRead, one: _Log, table: HistoryTable) -> PositionRange:
    """Return the range of a log that is read, in the table and behind it."""
    options = read.options
    begin, end = BEGINNING, max(one.log.end, _behind(one, table))
    if options.starting_timestamp is not None:
        begin = _timed(read, one, table, options.starting_timestamp)
    elif options.starting_position not in (None, EARLIEST):
        begin = _placed(read, one, table, options.starting_position, "startingPosition")
    if read.bucket.ending_timestamp is not None:
        end = _timed(read, one, table, read.bucket.ending_timestamp)
    elif options.ending_position not in (None, LATEST):
        end = _placed(read, one, table, options.ending_position, "endingPosition")
    if begin > end:
        raise Refused(f"the read of {one.name} begins at {begin} and ends before it, at {end}")
    return PositionRange(begin, end)


def _placed(read: BucketRead, one: _Log, table: HistoryTable, wanted: Position, option: str) -> Position:
    """A position in the table or in the bucket; Refused of several partitions, DataLoss where it is in neither."""
    read.require_one_topic(wanted, option)
    behind = _behind(one, table)
    if wanted <= behind and table.contains_from(one.name, wanted):
        return wanted
    try:
        return one.log.require_position(wanted, option)
    except DataLoss as neither:
        raise DataLoss(f"{neither.message}, and {table.snapshot} does not have it", hint=neither.hint) from neither


def _timed(read: BucketRead, one: _Log, table: HistoryTable, timestamp_ms: int) -> Position:
    """The first entry of a time: as the broker stored what the bucket has, as it was published for the rest."""
    log, behind = one.log, _behind(one, table)
    found = read.with_heads(log).find_time(timestamp_ms)
    if log.start < found < log.end:
        return found
    before = found <= log.start
    there = PositionRange(BEGINNING, min(log.start, behind)) if before else PositionRange(log.end, max(behind, log.end))
    in_table = table.splitter.find_time(LogRows(one.incarnation, there), timestamp_ms) if there else None
    return in_table or (found if before else there.end)


def _clip_to_bucket(one: _Log, rest: PositionRange) -> PositionRange:
    """Clip `rest` to the end of the bucket. Entries after that are not offloaded yet and are not data loss."""
    return PositionRange(rest.start, max(min(rest.end, one.log.end), rest.start))
