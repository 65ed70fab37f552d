"""Batch reads of a published table and of the entries after it, in a ledger or in a bucket (option `history`).

The page docs/concepts.md explains the words segment, entry and incarnation.

    spark.read.format("ledger").option("history", table)                        after the table: the ledger
    spark.read.format("ledger").option("history", table).option("offload", …)   after the table: a bucket, no broker

Rules
- Every row is read once: up to the last published segment from the table, later rows from the ledger or the bucket.
- With a ledger, the version of the table is fixed first, and then the state of the ledgers is read. Entries that are
  published in between are read from the ledger. If they are also deleted from the ledger in between, the read is
  planned again with the next version.
- With a bucket, the bucket is listed first, and then the newest version of the table is opened. If entries are
  published and deleted from the bucket in between, they are in that version.
- The table may end after the bucket: a sealed segment can be published before it is offloaded.
- If the table has rows, but no row of the topic, the read is refused. Reason: it is probably the wrong table, and the
  bucket alone cannot show whether entries are missing.
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
    """Plan of a batch read of a table, and of the ledgers that are published to this table."""

    def __init__(self, options: LedgerOptions, user_schema: StructType | None) -> None:
        self._read = LedgerRead(options, user_schema)
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
                return self._tasks_of_both(statuses, history, table, strict=strict)
            except DataLoss:
                newest = history.newest(read.statuses({}, FROM_BEGINNING, of=names).logs)
                if newest.snapshot.version > table.snapshot.version:
                    table = newest
                elif read.options.fail_on_data_loss or not strict:
                    raise
                else:
                    strict = False

    def _tasks_of_both(
        self, statuses: LogStatuses, history: HistoryRead, table: HistoryTable, *, strict: bool
    ) -> list[Task]:
        published, unpublished = {}, {}
        for log in statuses.logs:
            planned = self._bounds.read_range(log, len(statuses.logs), table)
            in_table, rest = table.split(log.name, planned)
            published[log.name] = LogRows(log.incarnation, in_table)
            if rest:
                unpublished[log.name] = ReadProgress(rest.start, log.incarnation, until=rest.end)
        tasks = self._read.tasks(measure_ranges(self._read, unpublished, strict=strict))
        return [*history.tasks(table, published), *tasks]


class BucketTableScan(BucketScan):
    """Plan of a batch read of a table, and of the topic in a bucket that is published to this table."""

    def tasks(self) -> list[Task]:
        read = self._read
        logs = [_Topic(canonical_name(log.topic.name), log.incarnation, log) for log in read.logs]
        history = HistoryRead(read)
        table = history.newest(logs)
        _require_own_table(table, logs)
        published: dict[str, LogRows] = {}
        bucket_tasks: list[Task] = []
        for topic in logs:
            in_table, rest = table.split(topic.name, _range_of(read, topic, table))
            published[topic.name] = LogRows(topic.incarnation, in_table)
            bucket_tasks += read.tasks(topic.log, _clip_to_bucket(topic, rest))
        return [*history.tasks(table, published), *bucket_tasks]


@dataclass(frozen=True, slots=True)
class _Topic:
    """Topic of the bucket, with the name and the incarnation that its rows have in the table."""

    name: str
    incarnation: str
    log: BucketLog


def _require_own_table(table: HistoryTable, logs: Sequence[_Topic]) -> None:
    if table.snapshot.files and not table.up_to:
        names = ", ".join(f"{topic.name} of incarnation {topic.incarnation}" for topic in logs)
        raise Refused(
            f"{table.snapshot} has rows, and nothing of what the bucket has: {names}",
            hint="Name the table that it is published to, or leave 'history' out",
        )
    for topic in logs:
        newest, first = table.up_to.get(topic.name), topic.log.start.ledger_id
        if newest is not None and newest < first:
            _log.warning(
                "%s: the table ends with segment %d, the bucket begins with segment %d; segments between may be lost",
                topic.name, newest, first,
            )  # fmt: skip


def _table_end(topic: _Topic, table: HistoryTable) -> Position:
    """Return the first position of a topic after the table; BEGINNING if the table has no rows of the topic."""
    return Position(table.up_to[topic.name] + 1, 0) if topic.name in table.up_to else BEGINNING


def _range_of(read: BucketRead, topic: _Topic, table: HistoryTable) -> PositionRange:
    """Return the range to read of a topic, in the table and after it."""
    options = read.options
    begin, end = BEGINNING, max(topic.log.end, _table_end(topic, table))
    if options.starting_timestamp is not None:
        begin = _time_position(read, topic, table, options.starting_timestamp)
    elif options.starting_position not in (None, EARLIEST):
        begin = _require_position(read, topic, table, options.starting_position, "startingPosition")
    if read.bucket.ending_timestamp is not None:
        end = _time_position(read, topic, table, read.bucket.ending_timestamp)
    elif options.ending_position not in (None, LATEST):
        end = _require_position(read, topic, table, options.ending_position, "endingPosition")
    if begin > end:
        raise Refused(f"the read of {topic.name} begins at {begin} and ends before it, at {end}")
    return PositionRange(begin, end)


def _require_position(
    read: BucketRead, topic: _Topic, table: HistoryTable, position: Position, option: str
) -> Position:
    """Return `position`. Raises DataLoss if neither table nor bucket has it, and Refused for several partitions."""
    read.require_one_topic(position, option)
    table_end = _table_end(topic, table)
    if position <= table_end and table.contains_from(topic.name, position):
        return position
    try:
        return topic.log.require_position(position, option)
    except DataLoss as neither:
        raise DataLoss(f"{neither.message}, and {table.snapshot} does not have it", hint=neither.hint) from neither


def _time_position(read: BucketRead, topic: _Topic, table: HistoryTable, timestamp_ms: int) -> Position:
    """Return the first position at or after a time.

    Entries in the bucket are compared by the time at which the broker stored them, rows of the table by their publish
    time.
    """
    log, table_end = topic.log, _table_end(topic, table)
    found = read.with_heads(log).find_time(timestamp_ms)
    if log.start < found < log.end:
        return found
    is_before_bucket = found <= log.start
    in_table = (
        PositionRange(BEGINNING, min(log.start, table_end))
        if is_before_bucket
        else PositionRange(log.end, max(table_end, log.end))
    )
    earlier = table.splitter.find_time(LogRows(topic.incarnation, in_table), timestamp_ms) if in_table else None
    return earlier or (found if is_before_bucket else in_table.end)


def _clip_to_bucket(topic: _Topic, rest: PositionRange) -> PositionRange:
    """Return the part of `rest` before the end of the bucket. Later entries are not lost, but not offloaded yet."""
    return PositionRange(rest.start, max(min(rest.end, topic.log.end), rest.start))
