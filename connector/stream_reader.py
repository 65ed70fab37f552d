"""The stream: `spark.readStream.format("ledger").load("orders")`, with or without a durable subscription.

Spark keeps one reader alive on the driver for a run of a query and calls, per trigger, `latestOffset(start)`,
`reportLatestOffset`, `commit(previous end)`, `partitions(start, end)`; after a failure it calls `partitions` first.

Invariants
- Where a query begins is decided once: by its checkpoint, else by its subscription's cursor, else by the options. With
  a subscription it is in the cursor before batch 0 exists; without one it travels in batch 0's end (connector.offsets).
- `partitions(start, end)` is a function of its arguments and the log alone.
- With nothing to deliver, `latestOffset` answers the start as it came, to the letter.
- Acknowledged is only what is in Spark's commit log: `start` of the next batch, or a committed end.
- Executors get a copy without connection, lease or thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from connector.added_columns import with_added_columns
from connector.batch_reader import LedgerPartition
from connector.deliveries import Deliveries
from connector.following import BEAT_SECONDS, Following
from connector.ledger_read import LedgerRead
from connector.offsets import LedgerOffset, StreamOffset, batch_range
from connector.options import LedgerOptions
from connector.partition_fetch import fetch
from connector.read_plan import Limits, admitted_end
from connector.stream_report import ALL_THERE_WAS, AVAILABLE_NOW, LedgerLag, Origin, reads_between, stream_report
from connector.subscription import Heartbeat, Subscription
from ledger.cache_calls import CacheMetrics
from ledger.clock import system_clock_ms
from ledger.errors import DataLoss, LedgerError, Unsupported
from ledger.position import EARLIEST, LATEST, Position, PositionRange
from ledger.protocol import Empty, LedgerEnd

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming import datasource as admission
except ImportError:  # Spark 4.0 and 4.1 know no limits and no AvailableNow for Python sources
    admission = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)
_MIXIN: Any = getattr(admission, "SupportsTriggerAvailableNow", object)


class StreamDriver:
    """What a running query holds on the driver: the ledger, its subscription, and what was decided so far."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        self.read = LedgerRead(options, schema)
        self.limits = Limits(options.max_rows_per_trigger, options.max_bytes_per_trigger)
        self.pinned: Position | None = None
        self.subscription: Subscription | None = None
        self.deliveries: Deliveries | None = None
        self._initial: StreamOffset | None = None
        self._last: StreamOffset | None = None
        self._reached: Position | None = None
        self._log: LedgerEnd | None = None
        self._ended_by = ALL_THERE_WAS
        self._counted: CacheMetrics | None = None
        self._heartbeat: Heartbeat | None = None
        self.following: Following | None = None
        if not options.subscription:
            self.following = Following(self.read.connection, self.read.name)
            self.read.reader = self.following.reader
        else:
            self.subscription = Subscription(self.read.connection, self.read.name, options.subscription)
            self.deliveries = Deliveries(self.read, options.subscription)

    def initial(self) -> StreamOffset:
        """Where the query begins without a checkpoint; the same answer however often it is asked."""
        if self._initial is None:
            position = self._begin()
            offset = LedgerOffset(position, self.read.found.incarnation)
            if self._is_explicit and self.deliveries is not None:
                known = self.deliveries.newest()
                offset = LedgerOffset(known.position, offset.incarnation, known.record)
            self._initial = StreamOffset({self.read.name: offset}, initial=True)
        return self._initial

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """The end of the next batch from `start`; None when there is no row to deliver."""
        here = start.of(self.read.name).position
        self._hold(here)
        self.acknowledge(start)
        if self.following is not None:
            self.following.at(here)
        log = self._end_from(start)
        self._log, self._reached = log, here
        end = log.end if self.pinned is None else min(self.pinned, log.end)
        self._ended_by = ALL_THERE_WAS if end == log.end else AVAILABLE_NOW
        fresh = end > here and log.rows_since > 0
        if not fresh and not self._is_explicit:
            return None
        if fresh and limited and self.limits:
            admitted = admitted_end(self.read.split, PositionRange(here, end), self.limits)
            self._ended_by = str(self.limits) if admitted < end else self._ended_by
            end = admitted
        return self._decided(start, end if fresh else here)

    def _decided(self, start: StreamOffset, end: Position) -> StreamOffset | None:
        """The end of a batch that reads on up to `end`: with a subscription the broker knows what else is in it."""
        name, record = self.read.name, 0
        here = start.of(name)
        if self.deliveries is not None:
            decided = self.deliveries.next(here, end)
            end, record = decided.position, decided.record
            if not record and (self._is_explicit or end == here.position):
                return None
        self._reached = end
        return start.moved_to(name, end, record)

    @property
    def _is_explicit(self) -> bool:
        return self.deliveries is not None and self.deliveries.explicit

    def latest_without_start(self) -> StreamOffset:
        """The same for a Spark that does not say where its batch starts; only `commit` acknowledges then."""
        if self._is_explicit:
            raise Unsupported("ackMode 'explicit' needs Spark 4.2", hint="This Spark does not say where a batch starts")
        start = self._last or self._initial
        if start is None:
            log = self.read.end()
            self._hold(log.end)
            self._last = StreamOffset({self.read.name: LedgerOffset(log.end, log.incarnation)})
            return self._last
        here = start.of(self.read.name).position
        self._hold(here)
        log = self._end_from(start)
        self._last = start.moved_to(self.read.name, log.end) if log.rows_since else start
        return self._last

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[LedgerPartition]:
        """The parts of a batch."""
        name, last = self.read.name, end.of(self.read.name)
        if last.delivery and self.deliveries is not None:
            self._hold(last.position)
            self.read.require_incarnation(self.read.found.incarnation, last.incarnation)
            return [LedgerPartition(part) for part in self.deliveries.partitions(last.delivery)]
        range_ = batch_range(name, start, end)
        self._hold(range_.start)
        self.read.require_incarnation(self.read.found.incarnation, last.incarnation)
        if not range_:
            return []
        return [LedgerPartition(part) for part in self.read.partitions(range_)]

    def acknowledge(self, offset: StreamOffset) -> None:
        """`offset` is the end of what Spark has committed: the cursor may follow."""
        if self.subscription is None:
            return
        self.subscription.require_held()
        here = offset.of(self.read.name)
        self.read.require_incarnation(self.read.found.incarnation, here.incarnation)
        if not self._is_explicit:
            self.subscription.acknowledge(here.position)

    def report(self) -> dict[str, Any] | None:
        """Where the log ended at this trigger, and what of it the batch leaves behind: see `stream_report`."""
        if self._log is None or self._reached is None:
            return None
        left = self.read.end(self._reached) if self._reached < self._log.end else None
        lag = LedgerLag(self._log, left, system_clock_ms())
        options, connection = self.read.options, self.read.connection
        counted: CacheMetrics = connection.call(lambda client: client.call("cache", Empty()))
        reads, self._counted = reads_between(self._counted, counted), counted
        store_id = connection.client.store_id
        # Whoever listens to progress acknowledges what a subscription has committed: here its rows do that themselves.
        subscription = None if self._is_explicit else options.subscription
        origin = Origin.of(connection.location, store_id, subscription, options.credentials())
        return stream_report(origin, {self.read.name: lag}, self._ended_by, reads)

    def pin_end(self) -> None:
        """AvailableNow: nothing beyond the end as it is now."""
        self.pinned = self.read.end().end

    def stop(self) -> None:
        """Spark may kill the process at any moment of this."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self.subscription is not None:
            self.subscription.release()
        if self.following is not None:
            self.following.leave()

    def _begin(self) -> Position:
        if self.subscription is None:
            return self.read.starting(LATEST)
        known, options = self.subscription.exists(), self.read.options
        self._hold(self.read.starting(LATEST) if known is None else known.next_position)
        # Only now nobody else moves it.
        position = self.subscription.open(EARLIEST).next_position
        if known is not None and (options.starting_position or options.starting_timestamp is not None):
            _log.warning(
                "subscription %s exists: the query begins at %s, its starting option is ignored",
                options.subscription, position,
            )  # fmt: skip
        return position

    def _hold(self, position: Position) -> None:
        """At the first call: open the subscription (made at `position` if it is gone), lease it, keep it leased."""
        if self._heartbeat is not None:
            return
        name = self.read.name
        if self.following is not None:
            self.following.at(position)
            self._heartbeat = Heartbeat(self.following.beat, f"reader of {name}", BEAT_SECONDS)
        if self.subscription is None:
            return
        self.subscription.open(position)
        self.subscription.acquire()
        self._heartbeat = Heartbeat(self.subscription.beat, f"lease on {name}")

    def _end_from(self, start: StreamOffset) -> LedgerEnd:
        here = start.of(self.read.name)
        self.read.require_incarnation(self.read.found.incarnation, here.incarnation)
        log = self.read.end(here.position)
        if here.position > log.end:
            raise DataLoss(
                f"ledger {self.read.name} ends at {log.end}, the checkpoint is at {here.position}",
                hint="The store was restored from an older copy; start with a new checkpoint",
            )
        return log


class LedgerStreamReader(DataSourceStreamReader, _MIXIN):  # type: ignore[misc]
    """Spark's face of it: offsets in and out as JSON values, partitions to executors."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        limited = options.max_rows_per_trigger is not None or options.max_bytes_per_trigger is not None
        if limited and admission is None:
            raise Unsupported(
                "maxRowsPerTrigger and maxBytesPerTrigger need Spark 4.2: this one knows no limits of Python sources",
                hint="Leave them out, or use Spark 4.2 or newer",
            )
        self._options = options
        self._schema = schema
        self._running: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": None, "_running": None}

    @property
    def _driver(self) -> StreamDriver:
        if self._running is None:
            self._running = StreamDriver(self._options, self._schema)
        return self._running

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the query begins without a checkpoint."""
        return self._driver.initial().to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself when there is nothing to deliver.

        Before 4.2 Spark hands over neither: then it is the end of the log, as far as it has rows.
        """
        if start is None:
            return self._driver.latest_without_start().to_json()
        all_of_it = type(limit).__name__ == "ReadAllAvailable"
        end = self._driver.latest(StreamOffset.from_json(start), limited=not all_of_it)
        return start if end is None else end.to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """A token of the limits; they are computed in `latestOffset`, both at once."""
        if self._options.max_bytes_per_trigger is not None:
            return admission.ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_rows_per_trigger is not None:
            return admission.ReadMaxRows(self._options.max_rows_per_trigger)
        return admission.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Pin the end: what comes later is for the next run."""
        self._driver.pin_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the log ends, and the lag, for Spark's progress."""
        return with_added_columns(self._driver.report(), self._driver.read)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch; the same for the same arguments, in any process."""
        return self._driver.partitions(StreamOffset.from_json(start), StreamOffset.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a part."""
        return iter(()) if partition.value is None else fetch(partition.value)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark has committed the batch that ended at `end`."""
        self._driver.acknowledge(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Give back what time would give back anyway."""
        if self._running is None:
            return
        try:
            self._running.stop()
        except LedgerError as error:
            _log.info("a lease was left to run out: %s", error)
