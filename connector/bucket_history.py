"""The bounded read of a published table and of the bucket behind it, without a broker: `history` with `offload`.

Rules
- The bucket is listed first and the newest version of the table is opened after it: what was published and taken out of
  the bucket in between is in that version.
- Every row is read once: from the table up to the last ledger that is in that version, from objects after it. The table
  may be ahead of the bucket: what is sealed can be published before it is offloaded.
- A table that has nothing of the topic, and yet rows, is another's: a bucket alone cannot tell that nothing is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from connector.bucket_read import BucketRead
from connector.bucket_reader import BucketPartition, BucketReader
from connector.history_partition import HistoryPart, fetch_history
from connector.history_reader import HistoryPartition
from connector.history_table import BEGINNING, HistoryRead, HistoryTable
from connector.spark_face import spark_face
from ledger.errors import DataLoss, Refused
from ledger.names import canonical_name
from ledger.position import EARLIEST, LATEST, Position, PositionRange
from offload.bucket_log import BucketLog
from offload.table_rows import LogRows

_log = logging.getLogger(__name__)


@spark_face
class BucketHistoryReader(BucketReader):
    """Plans both on the driver, reads their parts in tasks."""

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the table and of the bucket; an empty range has none."""
        read = BucketRead(self._options, self._schema, self._seen)
        logs = [_Log(canonical_name(log.topic.name), log.life, log) for log in read.logs]
        history = HistoryRead(read)
        table = history.newest(logs)
        _require_its_own(table, logs)
        published, left = {}, []
        for one in logs:
            there, rest = table.split(one.name, _range_of(read, one, table))
            published[one.name] = LogRows(one.incarnation, there)
            left += [BucketPartition(part) for part in read.parts(one.log, _held(one, rest))]
        return [*(HistoryPartition(part) for part in history.parts(table, published)), *left]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a part, of the table or of an object."""
        if partition is not None and isinstance(partition.value, HistoryPart):
            return fetch_history(partition.value)
        return super().read(partition)


@dataclass(frozen=True, slots=True)
class _Log:
    """One topic of the bucket by the name and the life that its rows in the table state."""

    name: str
    incarnation: str
    log: BucketLog


def _require_its_own(table: HistoryTable, logs: Sequence[_Log]) -> None:
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
    """Where a log goes on behind what is in the table."""
    return Position(table.up_to[one.name] + 1, 0) if one.name in table.up_to else BEGINNING


def _range_of(read: BucketRead, one: _Log, table: HistoryTable) -> PositionRange:
    """What is read of a log, wherever its rows are."""
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
    if wanted <= behind and table.holds_from(one.name, wanted):
        return wanted
    try:
        return one.log.require_position(wanted, option)
    except DataLoss as neither:
        raise DataLoss(f"{neither.message}, and {table.snapshot} does not have it", hint=neither.hint) from neither


def _timed(read: BucketRead, one: _Log, table: HistoryTable, timestamp_ms: int) -> Position:
    """The first entry of a time: as the broker stored what the bucket has, as it was published for the rest."""
    log, behind = one.log, _behind(one, table)
    found = read.timed(log).after_time(timestamp_ms)
    if log.start < found < log.end:
        return found
    before = found <= log.start
    there = PositionRange(BEGINNING, min(log.start, behind)) if before else PositionRange(log.end, max(behind, log.end))
    in_table = table.cut.first_published(LogRows(one.incarnation, there), timestamp_ms) if there else None
    return in_table or (found if before else there.end)


def _held(one: _Log, rest: PositionRange) -> PositionRange:
    """What of a range behind the table can be in the bucket; what is not there yet is not missing."""
    return PositionRange(rest.start, max(min(rest.end, one.log.end), rest.start))
