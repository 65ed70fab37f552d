"""Reads of ledgers on the driver: the ledgers that exist, their columns and state, the tasks; and the bounded read.

Rules
- A missing ledger is an error that names the nearest name. Except when the reader was told to wait for the ledger.
- All ledgers of a read have columns, or all of them have messages.
- One question is one call, however many ledgers there are.
- A query keeps its columns until it is started again. Columns that its ledgers got after planning are not read.
- The start and the end of a bounded read are pinned when the read is planned.
- The progress of a query reports how many such columns it leaves out, and which.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.connector.options.ledger_selection import (
    Addressing,
    dead_letter_ledger,
    require_dead_letter_ledgers,
)
from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bounds import ReadBounds
from pyspark_ledger.connector.read.data_loss import find_loss
from pyspark_ledger.connector.read.ledger.task import LedgerTask, ReadSource
from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.read.planner import BatchPlanner
from pyspark_ledger.connector.read.task_split import SizedRange, plan_tasks
from pyspark_ledger.connector.rows.shape import RowOptions, RowShape, row_shape, shared_columns
from pyspark_ledger.ledger.api.schemas import registered_rows
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.message.columns import schema_from_bytes
from pyspark_ledger.ledger.message.schema.documents import TopicSchemas, is_payload_schema
from pyspark_ledger.ledger.names import partition_of
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskSchemas, Empty, GetSchema, LedgerSchemas, SchemaOfMany
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

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


_WAIT_MS = 200
_PLACES = ReadProgress(count=False)


@dataclass(frozen=True, slots=True)
class FoundLedgers:
    """The logs of a read that exist: incarnations by name. `columns` is None for messages; those may have `schemas`."""

    incarnations: Mapping[str, str]
    columns: pa.Schema | None
    schemas: TopicSchemas | None = None


class LedgerRead:
    """One read, on the driver."""

    def __init__(self, options: LedgerOptions, given: StructType | None = None) -> None:
        self.options = options
        self._given = given
        self.addressing: Addressing = options.addressing()
        self.connection = DriverConnection(store_location(options.store), credentials=options.credentials())
        self.reader = options.subscription or ""
        """The subscription that tasks read by; empty without one."""
        self._found: FoundLedgers | None = None
        self._shape: RowShape | None = None

    @property
    def name(self) -> str:
        """The addressed ledgers as text, for messages."""
        return str(self.addressing)

    @property
    def found(self) -> FoundLedgers:
        """The ledgers as they were at first sight; NotFound when there is none, or none came while it was awaited."""
        if self._found is None:
            self._found = self._wait() if self.options.wait_for_ledger else self._find()[0]
        return self._found

    def schema(self) -> StructType:
        return self.shape().spark_schema(self.name)

    def shape(self) -> RowShape:
        """Return the shape of the rows, as Spark planned them; Refused if Spark's schema is not of these ledgers."""
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
        shape = row_shape(self.found.columns, self.found.schemas, row_options, self.name)
        return shape if self._given is None else shape.as_given(self._given, self.name)

    def names(self) -> list[str]:
        """The ledgers that are addressed, partitioned ones as a whole: for a pattern, those that there are now.

        But for those of its own dead letters: what a query gives up on does not come back to it as something new.
        """
        if not self.addressing.pattern:
            return self._with_dead_letters(list(self.addressing.names))
        names: list[str] = self.connection.call(lambda client: client.call("list", Empty())).names
        matching = self.addressing.matching(names)
        if self.options.ack_mode != "explicit":
            return matching
        own = {dead_letter_ledger(name, self.reader) for name in matching}
        return self._with_dead_letters([name for name in matching if name not in own])

    def _with_dead_letters(self, names: list[str]) -> list[str]:
        """The names, each of which can have dead letters if the query gives up on rows; Refused where one cannot."""
        if self.options.max_redeliveries is not None:
            require_dead_letter_ledgers(names, self.reader)
        return names

    def statuses(
        self,
        readings: Mapping[str, ReadProgress],
        otherwise: ReadProgress = _PLACES,
        *,
        of: Sequence[str] | None = None,
    ) -> LogStatuses:
        """How the ledgers stand, and what `readings` of them have left. `otherwise` is for those that have none."""
        request = AskLogStatuses(self.names() if of is None else list(of), dict(readings), otherwise)
        found: LogStatuses = self.connection.call(lambda client: client.call("survey", request))
        return found

    def require_found(self, statuses: LogStatuses) -> None:
        """NotFound, naming the nearest, when a ledger is not there, or when nothing matches."""
        if statuses.missing:
            name = statuses.missing[0]
            self.connection.call(lambda client: client.call("schema.get", GetSchema(name)))  # says which is the nearest
            raise NotFound(f"there was no ledger {name} a moment ago", hint="Try again")
        if not statuses.logs:
            raise NotFound(
                f"no ledger of the store matches {self.addressing.pattern!r}",
                hint="The whole name is compared, such as 'orders-.*'. Option 'waitForLedger' waits for the first",
            )

    def split_by_limits(self, quotas: Sequence[LimitedRange]) -> list[SplitPart]:
        cursor = self.options.subscription
        if cursor:
            quotas = [msgspec.structs.replace(quota, cursor=cursor) for quota in quotas]
        parts: list[SplitPart] = self.connection.call(lambda c: c.call("quotas", AskLimitedRanges(list(quotas)))).parts
        return parts

    def split(self, requests: Sequence[SplitRequest]) -> list[list[SplitPart]]:
        ranges = self.connection.call(lambda client: client.call("split.many", SplitRanges(list(requests)))).ranges
        return [cut.parts for cut in ranges]

    def tasks(self, ranges: Sequence[SizedRange]) -> list[LedgerTask]:
        """The partitions of ranges: a pure function of them, for logs do not change."""
        options = self.options
        planned = plan_tasks(ranges, options.min_partition_bytes, options.target_partition_bytes, self.split)
        if not planned:
            return []
        source = self.source(ledgers={one.ledger for task in planned for one in task})
        return [LedgerTask(source, tuple(ranges)) for ranges in planned]

    def newest_schemas(self, logs: Sequence[str]) -> list[SchemaOfMany]:
        """The newest schemas of the logs, and of the ledgers that they are partitions of, in one call."""
        wholes = {part[0] for log in logs if (part := partition_of(log)) is not None}
        request = AskSchemas([*logs, *sorted(wholes)])
        found: LedgerSchemas = self.connection.call(lambda client: client.call("schema.many", request))
        return found.schemas

    def task_ranges(self, range_: LedgerRange) -> list[LedgerRange]:
        """The parts of a range that are one partition each."""
        if not range_.range:
            return []
        ((whole,),) = self.split([SplitRequest(range_.ledger, range_.range, 2**62, 1)])
        least, target = self.options.min_partition_bytes, self.options.target_partition_bytes
        tasks = plan_tasks([sized_range(range_.ledger, range_.incarnation, whole)], least, target, self.split)
        return [one for task in tasks for one in task]

    def source(self, shape: RowShape | None = None, ledgers: Collection[str] = ()) -> ReadSource:
        """Return the state that all partitions share; they may read these ledgers, or any if none is given."""
        return ReadSource.of(
            self.connection.client,
            self.shape() if shape is None else shape,
            ledgers=ledgers,
            subscription=self.reader,
            mapping=self.options.mapping == "auto",
            fail_on_data_loss=self.options.fail_on_data_loss,
            dead_letters=self.options.dead_letter_ledger,
        )

    def _find(self) -> tuple[FoundLedgers, bool]:
        """The ledgers, and whether anything was ever written to them."""
        statuses = self.statuses({})
        self.require_found(statuses)
        written = [log.name for log in statuses.logs if log.last_publish_ms or log.end.ledger_id >= 0]
        found = self.newest_schemas([log.name for log in statuses.logs])
        columns, schemas = shared_columns(found, written, any_schema=bool(self.options.payload_schema)), None
        if columns is None and (typed := [one for one in found if one.version >= 0]):
            name = typed[0].names[0]
            schemas = self.connection.call(lambda client: registered_rows(client, name))[1]
        incarnations = {log.name: log.incarnation for log in statuses.logs}
        return FoundLedgers(incarnations, columns, schemas), bool(written) or any(one.version >= 0 for one in found)

    def _wait(self) -> FoundLedgers:
        end, told = monotonic_ms() + self.options.wait_timeout_ms, False
        while True:
            try:
                found, written = self._find()
                if written:
                    return found
                missing = NotFound(
                    f"ledger {self.name} has no columns and no entries yet", hint="Write to it, then read"
                )
            except NotFound as error:
                missing = error
            if monotonic_ms() >= end:
                raise missing
            if not told:
                _log.info("waiting for %s: %s", self.name, missing)
                told = True
            pause(_WAIT_MS)


class LedgerScan(BatchPlanner):
    """Plan of a bounded read of ledgers."""

    def __init__(self, options: LedgerOptions, given: StructType | None = None) -> None:
        self._read = LedgerRead(options, given)
        self._bounds = ReadBounds(options, stream=False)

    def schema(self) -> StructType:
        return self._read.schema()

    def tasks(self) -> list[LedgerTask]:
        read, bounds, names = self._read, self._bounds, self._read.names()
        statuses = read.statuses(bounds.initial_progress(names), of=names)
        read.require_found(statuses)
        readings = {
            log.name: ReadProgress(bounds.start_position(log, len(statuses.logs)), log.incarnation, until=log.stop)
            for log in statuses.logs
        }
        return read.tasks(measure_ranges(read, readings, strict=read.options.fail_on_data_loss))


def measure_ranges(read: LedgerRead, readings: Mapping[str, ReadProgress], *, strict: bool) -> list[SizedRange]:
    """Measure the ranges that are left of `readings`. Lost entries are DataLoss if `strict`, else left out."""
    statuses = read.statuses(readings, of=list(readings))
    for name, reading in readings.items():
        wanted = PositionRange(reading.position or EARLIEST, reading.until or LATEST)
        loss = find_loss(name, reading.incarnation, wanted, statuses) if wanted else None
        if loss is not None and strict:
            raise loss.error()
        if loss is not None:
            _log.warning("%s", loss)
    return [
        SizedRange(
            LedgerRange(log.name, log.incarnation, PositionRange(log.begin, log.stop)), log.entries, log.size_bytes
        )
        for log in statuses.logs
        if log.incarnation == readings[log.name].incarnation
    ]


def sized_range(ledger: str, incarnation: str, part: SplitPart) -> SizedRange:
    """A measured part of a ledger as something to plan."""
    return SizedRange(LedgerRange(ledger, incarnation, part.range), part.entries, part.size_bytes)


_LEDGERS_MAX = 8  # ledgers that are asked at each trigger; columns added to any other ledger are not reported
_NAMES_MAX = 20


def with_added_columns(report: dict[str, Any], read: LedgerRead) -> dict[str, Any]:
    """The report with `columnsAdded` and `columnsNotRead`, where there are any."""
    shape = read.shape()
    if shape.raw:
        return report
    added: dict[str, None] = {}
    for newest in read.newest_schemas(list(report["ledgers"])[:_LEDGERS_MAX]):
        if newest.version >= 0 and not is_payload_schema(newest.arrow_schema):
            columns = schema_from_bytes(newest.arrow_schema).names
            added |= dict.fromkeys(column for column in columns if column not in shape.known)
    if not added:
        return report
    told = {"columnsAdded": len(added), "columnsNotRead": list(added)[:_NAMES_MAX]}
    return dict(sorted({**report, **told}.items()))
