"""Streams of a bucket, `spark.readStream.format("ledger").option("offload", …)`: offloaded segments in batches.

The page docs/concepts.md explains the words entry, segment and log.

Rules
- The stream starts at the first entry, unless an option sets another start. Segments that are offloaded later follow in
  later batches.
- `tasks(start, end)` depends only on its arguments and on objects, which never change.
- The limits of a batch apply to all partitions of a topic together, and are split evenly. Each batch has at least one
  entry.
- Nothing is acknowledged, because no broker is involved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bucket.scan import BucketRead
from pyspark_ledger.connector.read.bucket.task import BucketTask
from pyspark_ledger.connector.read.limits import Limits, share_limits
from pyspark_ledger.connector.read.offsets import LedgerOffset, StreamOffset, batch_range
from pyspark_ledger.connector.read.planner import StreamPlanner
from pyspark_ledger.ledger.errors import DataLoss, Refused, Unsupported
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.offload.bucket.topic_log import BucketLog

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class BucketStream(StreamPlanner):
    """Plan of one execution of a query of a bucket."""

    def __init__(self, options: LedgerOptions, user_schema: StructType | None = None) -> None:
        self.read = BucketRead(options, user_schema)
        self.limits = Limits(options.max_rows_per_trigger, options.max_bytes_per_trigger)
        self.pinned_ends: dict[str, Position] | None = None
        self._initial: StreamOffset | None = None

    def initial(self) -> StreamOffset:
        if self._initial is None:
            self._initial = StreamOffset(
                {
                    log.topic.path: LedgerOffset(self.read.start_position(log), log.incarnation)
                    for log in self.read.logs
                },
                initial=True,
            )
        return self._initial

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        self._require_topics(start)
        unread = self._unread(start)
        if not unread and self.pinned_ends is None:
            self.read.refresh()
            unread = self._unread(start)
        if not unread:
            return None
        ends = {log.topic.path: range_.end for log, range_ in unread}
        if limited and self.limits:
            parts = share_limits(unread, self.limits, lambda log, rows, size: self._take(*log, rows, size))
            ends = {log.topic.path: end for (log, _), (end, _, _) in zip(unread, parts, strict=True)}
        offsets = {
            log.topic.path: LedgerOffset(ends.get(log.topic.path, self._position(start, log)), log.incarnation)
            for log in self.read.logs
        }
        starts = {name: offset.position for name, offset in start.ledgers.items()} if start.initial else {}
        return StreamOffset(offsets, initial=False, start_positions=starts)

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[BucketTask]:
        tasks: list[BucketTask] = []
        logs = self._require_topics(end)
        for path in end.ledgers:
            log = logs[path]
            log_start = (
                start if path in start.ledgers else StreamOffset({path: LedgerOffset(log.start, log.incarnation)})
            )
            range_ = batch_range(path, log_start, end)
            if range_.end > log.end:
                raise DataLoss(f"{path} ends at {log.end} in the bucket, the checkpoint is at {range_.end}")
            tasks += self.read.tasks(log, range_)
        return tasks

    def pin_end(self) -> None:
        self.pinned_ends = {log.topic.path: log.end for log in self.read.logs}

    def _require_topics(self, offset: StreamOffset) -> dict[str, BucketLog]:
        """Return the logs by path. Raises DataLoss if the query does not read a topic of the checkpoint."""
        logs = {log.topic.path: log for log in self.read.logs}
        if not offset.ledgers.keys() <= logs.keys():
            self.read.refresh()
            logs = {log.topic.path: log for log in self.read.logs}
        if others := sorted(offset.ledgers.keys() - logs.keys()):
            raise DataLoss(
                f"the checkpoint has read {', '.join(others[:5])}, which is not a topic of {self.read.name} in "
                f"{self.read.bucket.address}",
                hint="Use a separate checkpoint for each query. If objects were deleted, restore them",
            )
        return logs

    def _position(self, start: StreamOffset, log: BucketLog) -> Position:
        offset = start.ledgers.get(log.topic.path)
        if offset is None:
            return log.start
        if offset.incarnation != log.incarnation:
            raise Refused(
                f"{log.topic.name} has incarnation {log.incarnation!r}, the checkpoint has {offset.incarnation!r}",
                hint="Start with a new checkpoint",
            )
        return offset.position

    def _unread(self, start: StreamOffset) -> list[tuple[BucketLog, PositionRange]]:
        ranges = []
        for log in self.read.logs:
            end = log.end if self.pinned_ends is None else min(log.end, self.pinned_ends.get(log.topic.path, log.start))
            range_ = PositionRange(self._position(start, log), end)
            if range_ and log.parts(range_, 2**62):
                ranges.append((log, range_))
        return ranges

    def _take(self, log: BucketLog, range_: PositionRange, rows: int, size_bytes: int) -> tuple[Position, int, int]:
        """Return the end of the largest range within the limits, with its row and byte counts. Never empty."""
        end = self.read.with_heads(log).split_by_limit(range_, rows, size_bytes)
        return end, *log.measure(PositionRange(range_.start, end))


def require_stream(options: LedgerOptions) -> None:
    """Raise Refused or Unsupported for options that a stream of a bucket cannot have."""
    if not options.ledger:
        raise Refused("no ledger is named, and a stream needs a ledger", hint="Name it in load()")
    if options.history is not None:
        raise Unsupported(
            "a stream with option 'history' continues in the log, and with 'offload' it has no broker to read the log",
            hint="Stream from the ledger's store, without 'offload'. Or read table and bucket in a batch. Then stream "
            "only the bucket, with startingPosition at the end of that batch",
        )
