"""A ledger as a reader finds it on the driver: its columns, where a read begins, and how a range is planned.

Rules: a missing ledger is an error that names the nearest, unless the reader was told to wait for it. A position is
checked against the ledger's incarnation: one that was deleted and made again is other data.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from connector.connection import DriverConnection
from connector.options import LedgerOptions, require_ledger
from connector.partition_fetch import FetchRange, ReadSource
from connector.read_plan import plan_partitions
from connector.row_shape import RowShape, RowWishes, row_shape
from ledger.api import store_location
from ledger.clock import monotonic_ms, pause
from ledger.errors import DataLoss, NotFound
from ledger.names import canonical_name
from ledger.payload_registry import registered_rows
from ledger.payload_schema.documents import TopicSchemas
from ledger.position import EARLIEST, LATEST, Position, PositionRange
from ledger.protocol import AskEnd, LedgerEnd, NameLedger, SeekTime, SplitPart, SplitRequest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)
_WAIT_MS = 200


@dataclass(frozen=True, slots=True)
class FoundLedger:
    """A ledger that exists. `columns` is None for one of messages; those may have `schemas`."""

    name: str
    incarnation: str
    columns: pa.Schema | None
    schemas: TopicSchemas | None = None


class LedgerRead:
    """One read of one ledger, on the driver."""

    def __init__(self, options: LedgerOptions, given: StructType | None = None) -> None:
        self.options = options
        self._given = given
        self.name = canonical_name(require_ledger(options))
        self.connection = DriverConnection(store_location(options.store), credentials=options.credentials())
        self.reader = options.subscription or ""
        """Who the tasks say that reads."""
        self._found: FoundLedger | None = None

    @property
    def found(self) -> FoundLedger:
        """The ledger; NotFound when there is none, or none came while it was waited for."""
        if self._found is None:
            self._found = self._wait() if self.options.wait_for_ledger else self._look()
        return self._found

    def schema(self) -> StructType:
        """What Spark gets."""
        return self.shape().spark_schema(self.name)

    def shape(self) -> RowShape:
        """What rows are: as the query was planned, where Spark has said so; Refused for a schema of something else."""
        options = self.options
        wishes = RowWishes(
            options.include_metadata,
            options.columns,
            options.rescued_data_column or "",
            options.payload_schema or "",
            options.ack_mode == "explicit",
        )
        shape = row_shape(self.found.columns, self.found.schemas, wishes, self.name)
        return shape if self._given is None else shape.as_given(self._given, self.name)

    def end(self, since: Position | None = None) -> LedgerEnd:
        """Where the log ends, and what lies after `since`; DataLoss when it is another log than before."""
        request = AskEnd(self.name, since, incarnation=self.found.incarnation)
        log: LedgerEnd = self.connection.call(lambda client: client.call("end", request))
        self.require_incarnation(log.incarnation, self.found.incarnation)
        return log

    def require_incarnation(self, now: str, before: str) -> None:
        """Refuse to take one log for another of the same name."""
        if now != before:
            raise DataLoss(
                f"ledger {self.name} is now incarnation {now}, the reader began with incarnation {before}",
                hint="It was deleted and made again. Start with a new checkpoint and subscription to read the new one",
            )

    def starting(self, default: Position) -> Position:
        """Where the options say to begin, as a position of this log."""
        if self.options.starting_timestamp is not None:
            request = SeekTime(self.name, self.options.starting_timestamp)
            found: Position = self.connection.call(lambda client: client.call("seek", request)).position
            return found
        wanted = self.options.starting_position or default
        log = self.end()
        if wanted == EARLIEST:
            return log.start
        return log.end if wanted == LATEST else self.require_within(wanted, log, "startingPosition")

    def require_within(self, wanted: Position, log: LedgerEnd, option: str) -> Position:
        """The position, if the log has it; DataLoss when it lies outside."""
        if not log.start <= wanted <= log.end:
            raise DataLoss(
                f"option {option!r} is {wanted}, ledger {self.name} begins at {log.start} and ends at {log.end}",
                hint="Give a position within, or earliest or latest",
            )
        return wanted

    def split(self, range_: PositionRange, target_bytes: int, max_parts: int) -> list[SplitPart]:
        """The range cut at entries."""
        request = SplitRequest(self.name, range_, target_bytes, max_parts)
        parts: list[SplitPart] = self.connection.call(lambda client: client.call("split", request)).parts
        return parts

    def partitions(self, range_: PositionRange) -> list[FetchRange]:
        """The partitions of a range: a pure function of it, for the log does not change."""
        source = self.source()
        return [FetchRange(source, part.range) for part in self.planned(range_)]

    def planned(self, range_: PositionRange) -> list[SplitPart]:
        """The parts of a range that are one partition each."""
        options = self.options
        return plan_partitions(self.split, range_, options.min_partition_bytes, options.target_partition_bytes)

    def source(self, shape: RowShape | None = None) -> ReadSource:
        """What the partitions share."""
        self.end()
        return ReadSource.of(
            self.connection.client,
            self.name,
            self.found.incarnation,
            self.shape() if shape is None else shape,
            subscription=self.reader,
            mapping=self.options.mapping == "auto",
        )

    def _look(self) -> FoundLedger:
        columns, schemas = self.connection.call(lambda client: registered_rows(client, self.name))
        log = self.connection.call(lambda client: client.call("end", AskEnd(self.name)))
        return FoundLedger(self.name, log.incarnation, columns, schemas)

    def _wait(self) -> FoundLedger:
        end, told = monotonic_ms() + self.options.wait_timeout_ms, False
        while True:
            try:
                found = self._look()
                described = self.connection.call(lambda client: client.call("describe", NameLedger(self.name)))
                if found.columns is not None or found.schemas is not None or described.entries:
                    return found
                missing = NotFound(
                    f"ledger {self.name} has no columns and no entries yet", hint="Write to it, then read"
                )
            except NotFound as error:
                missing = error
            if monotonic_ms() >= end:
                raise missing
            if not told:
                _log.info("waiting for ledger %s: %s", self.name, missing)
                told = True
            pause(_WAIT_MS)
