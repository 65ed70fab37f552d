"""Calls of readers about many logs at once. So a query over many ledgers needs one call and not one for each ledger.

The calls return the state of logs, schemas, and the places of entries in files. They also shorten ranges of positions
to a limit, and split ranges into parts for tasks. A *log* is a ledger without partitions, or one partition.

Rules
- The reply with the state of ledgers lists missing ledgers. The reply with schemas leaves them out. Any other call
  raises NotFound if a ledger is missing.
- If one log fails, the whole call fails. The error names the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.cursor.cursors import CursorTable
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol import reads
from pyspark_ledger.ledger.protocol.actions import AskSchemas, GetSchema, LedgerSchemas, SchemaOfMany, SchemaVersion


class ReadableLog(Protocol):
    """Methods of a managed ledger that these calls use."""

    @property
    def name(self) -> str: ...
    def status(self, reading: reads.ReadProgress, skipped: PositionSet | None = None) -> reads.LogStatus: ...
    def prefix(
        self, range_: PositionRange, rows: int, size_bytes: int, skipped: PositionSet | None = None
    ) -> reads.SplitPart: ...
    def split(self, range_: PositionRange, target_bytes: int, max_parts: int) -> list[reads.SplitPart]: ...


class ReadableStore(Protocol):
    """Store of a broker, or a store that is opened for reading."""

    @property
    def cursors(self) -> CursorTable: ...
    def logs(self, name: str) -> Sequence[str]: ...
    def ledger(self, name: str) -> ReadableLog: ...
    def get_schema(self, request: GetSchema) -> SchemaVersion: ...


class BatchStatus:
    """Requests about many logs of one store. Keeps no state."""

    def __init__(self, store: ReadableStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def statuses(self, request: reads.AskLogStatuses) -> reads.LogStatuses:
        """Return the state of the logs of each ledger, and the names of missing ledgers."""
        logs: list[reads.LogStatus] = []
        missing: list[str] = []
        for name in request.names:
            found = list(self._statuses(name, request))
            logs += found
            if not found:
                missing.append(canonical_name(name))
        return reads.LogStatuses(self._clock(), logs, missing)

    def limit(self, request: reads.AskLimitedRanges) -> reads.SplitParts:
        """Return the longest prefix of each range within the range's limits of rows and bytes."""
        return reads.SplitParts([self._prefix(limited) for limited in request.quotas])

    def split(self, request: reads.SplitRanges) -> reads.RangeParts:
        """Split each range into parts for tasks."""
        ledger = self._store.ledger
        return reads.RangeParts(
            [
                reads.SplitParts(ledger(split.name).split(split.range, split.target_bytes, split.max_parts))
                for split in request.requests
            ]
        )

    def schemas(self, request: AskSchemas) -> LedgerSchemas:
        """Return the newest schema of each ledger.

        Ledgers with the same schema share one element of the reply. A missing ledger is left out.
        """
        names: dict[tuple[int, bytes], list[str]] = {}
        for name in request.names:
            try:
                found = self._store.get_schema(GetSchema(name))
            except NotFound:
                continue
            names.setdefault((found.version, found.arrow_schema), []).append(found.name)
        return LedgerSchemas([SchemaOfMany(version, body, ledgers) for (version, body), ledgers in names.items()])

    def locate(
        self, request: reads.LocateRanges, locate: Callable[[reads.ReadRequest], reads.Places]
    ) -> reads.RangePlaces:
        """Return the places of each range in files. If a block of any range is in no local file, return no places."""
        read_requests = (msgspec.structs.replace(read, token=request.token) for read in request.requests)
        found = [locate(read) for read in read_requests]
        return reads.RangePlaces(found if all(places.mapped for places in found) else [])

    def _statuses(self, name: str, request: reads.AskLogStatuses) -> Iterator[reads.LogStatus]:
        readings = request.readings
        for log in self._store.logs(name):
            try:
                ledger = self._store.ledger(log)
            except NotFound:
                continue  # the ledger was deleted after `logs` listed it
            default = readings.get(canonical_name(name), request.otherwise)
            reading = readings.get(log, default)
            skipped = self._skipped(ledger, reading.cursor, reading.position) if reading.count else None
            yield ledger.status(reading, skipped)

    def _prefix(self, quota: reads.LimitedRange) -> reads.SplitPart:
        ledger = self._store.ledger(quota.name)
        skipped = self._skipped(ledger, quota.cursor, quota.range.start)
        return ledger.prefix(quota.range, quota.rows, quota.size_bytes, skipped)

    def _skipped(self, ledger: ReadableLog, cursor: str, start: Position | None) -> PositionSet | None:
        """Return the positions from `start` on that a cursor has acknowledged, or None without a cursor."""
        return self._store.cursors.acknowledged(ledger.name, cursor, start or EARLIEST) if cursor else None
