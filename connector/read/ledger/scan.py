"""Reads of ledgers on the driver: ledgers, columns, statuses and tasks of a read, and the planner of batch reads.

The *incarnation* of a ledger is an id that changes when the ledger is deleted and created again.

Rules
- A missing ledger raises NotFound with the most similar name in the store. With option `waitForLedger` the read waits
  for the ledger.
- The ledgers of a read all contain rows, or all contain messages.
- A request to the broker covers all ledgers of the read in one call.
- A query keeps its columns until it is restarted. It does not read columns that were added after planning. The progress
  of the query reports their number and names.
- The start and the end of a batch read are fixed when Spark plans the read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bounds import ReadBounds
from pyspark_ledger.connector.read.data_loss import find_loss
from pyspark_ledger.connector.read.ledger.task import LedgerTask, ReadSource
from pyspark_ledger.connector.read.offsets import LedgerRange, OffsetStore
from pyspark_ledger.connector.read.planner import BatchPlanner, Task
from pyspark_ledger.connector.read.task_split import SizedRange, plan_tasks
from pyspark_ledger.connector.rows.shape import RowOptions, RowShape, row_shape, shared_columns
from pyspark_ledger.ledger.client.schemas import registered_rows
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.ledger_selection import Addressing, require_dead_letter_ledgers
from pyspark_ledger.ledger.location import bucket_of, location_text, store_location
from pyspark_ledger.ledger.message.columns import schema_from_bytes
from pyspark_ledger.ledger.message.schema.documents import TopicSchemas, is_payload_schema
from pyspark_ledger.ledger.names import partition_of
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskSchemas, GetSchema, ListLedgers, SchemaOfMany
from pyspark_ledger.ledger.protocol.cache import AskCacheReads, CacheReads
from pyspark_ledger.ledger.protocol.reads import (
    AskLimitedRanges,
    AskLogStatuses,
    LimitedRange,
    LogStatuses,
    ReadProgress,
    SplitPart,
    SplitRanges,
    SplitRequest,
)
from pyspark_ledger.ledger.protocol.request import Ask

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


_WAIT_MS = 200
_POSITIONS_ONLY = ReadProgress(count=False)


@dataclass(frozen=True, slots=True)
class FoundLedgers:
    """Existing ledgers of a read, with their incarnations. `columns` is None for messages, which may have `schemas`."""

    incarnations: Mapping[str, str]
    columns: pa.Schema | None
    schemas: TopicSchemas | None = None


class LedgerRead:
    """State and requests of one read on the driver."""

    def __init__(
        self,
        options: LedgerOptions,
        user_schema: StructType | None = None,
        ledgers: FoundLedgers | None = None,
        ask: Ask | None = None,
    ) -> None:
        """Create the read. If another process has already found the ledgers, `ledgers` has its result.

        Without `ask`, the read connects to the broker of the store in the options.
        """
        self.options = options
        self._user_schema = user_schema
        self.addressing: Addressing = options.addressing()
        self.ask: Ask = ask or self.connection.ask
        self.reader = options.subscription or ""
        """Subscription or reader name that tasks pass to the broker; may be empty."""
        self._ledgers = ledgers
        self._offloaded: dict[str, int] = {}
        self._shape: RowShape | None = None

    @cached_property
    def connection(self) -> DriverConnection:
        """The connection to the broker of the store in the options."""
        return DriverConnection(self.location, credentials=self.options.credentials())

    @property
    def broker(self) -> DriverConnection | None:
        """The connection to the broker. None if the read has no broker."""
        return self.connection

    @property
    def location(self) -> str:
        return store_location(self.options.store)

    def refresh(self) -> None:
        """Let later requests show the present state of the store. A broker's replies always do."""

    def store(self) -> OffsetStore:
        """Return the store of the read's offsets."""
        return OffsetStore(self.connection.call(lambda client: client.store_id), location_text(self.location))

    def former_ids(self) -> Collection[str]:
        """Return the earlier ids of a store that is a copy."""
        return self.connection.call(lambda client: client.hello()).former

    def cache_reads(self) -> CacheReads:
        """Return the counters of the broker's cache."""
        return self.ask(AskCacheReads())

    @property
    def name(self) -> str:
        """The ledgers of the read as text, for errors."""
        return str(self.addressing)

    @property
    def ledgers(self) -> FoundLedgers:
        """Ledgers of the read, found at the first access. Raises NotFound if a ledger is missing after the wait."""
        if self._ledgers is None:
            self._ledgers = self._wait() if self.options.wait_for_ledger else self._find()[0]
        return self._ledgers

    def schema(self) -> StructType:
        return self.shape().spark_schema(self.name)

    def shape(self) -> RowShape:
        """Return the columns of the read. Raises Refused if Spark's schema does not match the ledgers."""
        if self._shape is None:
            self._shape = self._make_shape()
        return self._shape

    def _make_shape(self) -> RowShape:
        options = self.options
        row_options = RowOptions(
            options.include_metadata,
            options.columns,
            options.rescued_data_column or "",
            options.payload_schema or "",
            options.ack_mode == "explicit",
        )
        shape = row_shape(self.ledgers.columns, self.ledgers.schemas, row_options, self.name)
        return shape if self._user_schema is None else shape.for_schema(self._user_schema, self.name)

    def names(self) -> list[str]:
        """Return the names of the ledgers to read. A partitioned ledger is listed by its name, without its partitions.

        A pattern selects from the existing ledgers. With `ackMode` = `explicit` the query's own dead-letter ledgers are
        left out.
        """
        if not self.addressing.pattern:
            return self._with_dead_letters(list(self.addressing.names))
        names = self.ask(ListLedgers()).names
        if self.options.ack_mode != "explicit":
            return self.addressing.matching(names)
        return self._with_dead_letters(self.addressing.matching_for(names, self.reader))

    def _with_dead_letters(self, names: list[str]) -> list[str]:
        """Return `names`. Raises Refused if `maxRedeliveries` is set and a dead-letter ledger has an invalid name."""
        if self.options.max_redeliveries is not None:
            require_dead_letter_ledgers(names, self.reader)
        return names

    def statuses(
        self,
        progress: Mapping[str, ReadProgress],
        otherwise: ReadProgress = _POSITIONS_ONLY,
        *,
        of: Sequence[str] | None = None,
    ) -> LogStatuses:
        """Return the statuses of the ledgers in `of` (default: all), each with its number of unread entries.

        `progress` has start and end of the read of some ledgers. `otherwise` has them for all other ledgers.
        """
        request = AskLogStatuses(self.names() if of is None else list(of), dict(progress), otherwise)
        statuses = self.ask(request)
        self._offloaded |= {log.name: log.offloaded_id for log in statuses.logs}
        return statuses

    def require_found(self, statuses: LogStatuses) -> None:
        """Raise NotFound with the most similar name if a ledger is missing. Also raise it if no ledger matches."""
        if statuses.missing:
            name = statuses.missing[0]
            self.ask(GetSchema(name))  # this call raises NotFound with the most similar name
            raise NotFound(f"ledger {name} did not exist when the read was planned, and exists now", hint="Try again")
        if not statuses.logs:
            raise NotFound(
                f"no ledger of the store matches {self.addressing.pattern!r}",
                hint="The pattern must match the whole name, such as 'orders-.*'. Option 'waitForLedger' waits for the "
                "first ledger",
            )

    def split_by_limits(self, ranges: Sequence[LimitedRange]) -> list[SplitPart]:
        cursor = self.options.subscription
        if cursor:
            ranges = [msgspec.structs.replace(limited, cursor=cursor) for limited in ranges]
        return self.ask(AskLimitedRanges(list(ranges))).parts

    def split(self, requests: Sequence[SplitRequest]) -> list[list[SplitPart]]:
        ranges = self.ask(SplitRanges(list(requests))).ranges
        return [split.parts for split in ranges]

    def tasks(self, ranges: Sequence[SizedRange]) -> list[Task]:
        """Return the tasks of ranges. Entries are immutable, so the same ranges have the same tasks."""
        planned = self.split_into_tasks(ranges)
        if not planned:
            return []
        source = self.source(ledgers={part.ledger for task in planned for part in task})
        return [LedgerTask(self.source_of(source, ranges), tuple(ranges)) for ranges in planned]

    def source_of(self, source: ReadSource, ranges: Sequence[LedgerRange]) -> ReadSource:
        """Return the source of a task for `ranges`. It allows direct reads only if a range may start in the bucket.

        Reason: a task with direct reads makes one more call, which asks for the places of its blocks.
        """
        access = self.options.direct
        if access is None or all(part.range.start.ledger_id > self._offloaded.get(part.ledger, -1) for part in ranges):
            return source
        return replace(source, direct=access.s3())

    def split_into_tasks(self, ranges: Sequence[SizedRange]) -> list[list[LedgerRange]]:
        """Return the ranges of each task."""
        least, target = self.options.min_partition_bytes, self.options.target_partition_bytes
        return plan_tasks(ranges, least, target, self.split)

    def newest_schemas(self, logs: Sequence[str]) -> list[SchemaOfMany]:
        """Return the newest schemas of ledgers, in one call. For a partition, also its partitioned ledger's schema."""
        partitioned = {part[0] for log in logs if (part := partition_of(log)) is not None}
        request = AskSchemas([*logs, *sorted(partitioned)])
        newest = self.ask(request)
        return newest.schemas

    def task_ranges(self, range_: LedgerRange) -> list[LedgerRange]:
        """Return the parts of a range, one for each task that reads the range."""
        if not range_.range:
            return []
        ((whole,),) = self.split([SplitRequest(range_.ledger, range_.range, 2**62, 1)])
        tasks = self.split_into_tasks([sized_range(range_.ledger, range_.incarnation, whole)])
        return [part for task in tasks for part in task]

    def source(self, shape: RowShape | None = None, ledgers: Collection[str] = ()) -> ReadSource:
        """Return the parameters of tasks. Their credentials allow only `ledgers`, or all ledgers if it is empty."""
        source = ReadSource.of(
            self.connection.client,
            self.shape() if shape is None else shape,
            ledgers=ledgers,
            subscription=self.reader,
            mapping=self.options.mapping == "auto",
            fail_on_data_loss=self.options.fail_on_data_loss,
            dead_letters=self.options.dead_letter_ledger,
        )
        return replace(source, bucket=bucket_of(Path(self.location)))

    def _find(self) -> tuple[FoundLedgers, bool]:
        """Return the ledgers, and whether one of them has columns or has ever had entries."""
        statuses = self.statuses({})
        self.require_found(statuses)
        written = [log.name for log in statuses.logs if log.last_publish_ms or log.end.ledger_id >= 0]
        newest = self.newest_schemas([log.name for log in statuses.logs])
        columns, schemas = shared_columns(newest, written, any_schema=bool(self.options.payload_schema)), None
        if columns is None and (typed := [schema for schema in newest if schema.version >= 0]):
            name = typed[0].names[0]
            schemas = registered_rows(self.ask, name)[1]
        incarnations = {log.name: log.incarnation for log in statuses.logs}
        return FoundLedgers(incarnations, columns, schemas), bool(written) or any(
            schema.version >= 0 for schema in newest
        )

    def _wait(self) -> FoundLedgers:
        deadline_ms, has_logged = monotonic_ms() + self.options.wait_timeout_ms, False
        while True:
            try:
                ledgers, is_written = self._find()
                if is_written:
                    return ledgers
                missing = NotFound(
                    f"ledger {self.name} has no columns and no entries yet", hint="Write to it, then read"
                )
            except NotFound as error:
                missing = error
            if monotonic_ms() >= deadline_ms:
                raise missing
            if not has_logged:
                _log.info("waiting for %s: %s", self.name, missing)
                has_logged = True
            pause(_WAIT_MS)


class LedgerScan(BatchPlanner):
    """Plan of a batch read of ledgers."""

    def __init__(self, options: LedgerOptions, user_schema: StructType | None = None) -> None:
        self._read = LedgerRead(options, user_schema)

    def schema(self) -> StructType:
        return self._read.schema()

    def tasks(self) -> list[Task]:
        return self._read.tasks(bounded_ranges(self._read))


def bounded_ranges(read: LedgerRead) -> list[SizedRange]:
    """Return the ranges of a batch read with sizes. Their ends are the present ends of the ledgers, or earlier."""
    bounds, names = ReadBounds(read.options, stream=False), read.names()
    statuses = read.statuses(bounds.initial_progress(names), of=names)
    read.require_found(statuses)
    progress = {
        log.name: ReadProgress(bounds.start_position(log, len(statuses.logs)), log.incarnation, until=log.stop)
        for log in statuses.logs
    }
    return measure_ranges(read, progress, strict=read.options.fail_on_data_loss)


def measure_ranges(read: LedgerRead, progress: Mapping[str, ReadProgress], *, strict: bool) -> list[SizedRange]:
    """Return the unread ranges with sizes. If entries are lost, raise DataLoss with `strict`, else log a warning."""
    statuses = read.statuses(progress, of=list(progress))
    for name, current in progress.items():
        unread = PositionRange(current.position or EARLIEST, current.until or LATEST)
        loss = find_loss(name, current.incarnation, unread, statuses) if unread else None
        if loss is not None and strict:
            raise loss.error()
        if loss is not None:
            _log.warning("%s", loss)
    return [
        SizedRange(
            LedgerRange(log.name, log.incarnation, PositionRange(log.begin, log.stop)), log.entries, log.size_bytes
        )
        for log in statuses.logs
        if log.incarnation == progress[log.name].incarnation
    ]


def sized_range(ledger: str, incarnation: str, part: SplitPart) -> SizedRange:
    """Return a part of a ledger with its size, for `plan_tasks`."""
    return SizedRange(LedgerRange(ledger, incarnation, part.range), part.entries, part.size_bytes)


_LEDGERS_MAX = 8  # number of ledgers whose columns are compared at each trigger, and whose new columns are reported
_NAMES_MAX = 20


def with_added_columns(report: dict[str, Any], read: LedgerRead) -> dict[str, Any]:
    """Return the report with `columnsAdded` and `columnsNotRead` if columns were added; else `report` itself."""
    shape = read.shape()
    if shape.raw:
        return report
    added: dict[str, None] = {}
    for newest in read.newest_schemas(list(report["ledgers"])[:_LEDGERS_MAX]):
        if newest.version >= 0 and not is_payload_schema(newest.arrow_schema):
            columns = schema_from_bytes(newest.arrow_schema, newest.names[0]).names
            added |= dict.fromkeys(column for column in columns if column not in shape.known)
    if not added:
        return report
    fields = {"columnsAdded": len(added), "columnsNotRead": list(added)[:_NAMES_MAX]}
    return dict(sorted({**report, **fields}.items()))
