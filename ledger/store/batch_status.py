"""Status of many logs in one call: state, read limits, splits and locations.

Rules
- A missing ledger is an answer in a call for the state of ledgers, and an error in every other call.
- An error of one log fails the whole call, naming that log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol import reads
from pyspark_ledger.ledger.protocol.actions import AskSchemas, GetSchema, LedgerSchemas, SchemaOfMany
from pyspark_ledger.ledger.store.store import Store


class BatchStatus:
    """Answers about one store, without state."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def survey(self, request: reads.AskLogStatuses) -> reads.LogStatuses:
        logs: list[reads.LogStatus] = []
        missing: list[str] = []
        for name in request.names:
            found = list(self._surveyed(name, request))
            logs += found
            if not found:
                missing.append(canonical_name(name))
        return reads.LogStatuses(self._clock(), logs, missing)

    def quotas(self, request: reads.AskLimitedRanges) -> reads.SplitParts:
        return reads.SplitParts([self._prefix(limited) for limited in request.quotas])

    def split(self, request: reads.SplitRanges) -> reads.RangeParts:
        ledger = self._store.ledger
        return reads.RangeParts(
            [
                reads.SplitParts(ledger(split.name).split(split.range, split.target_bytes, split.max_parts))
                for split in request.requests
            ]
        )

    def schemas(self, request: AskSchemas) -> LedgerSchemas:
        """Return the newest schema of each ledger, grouped."""
        names: dict[tuple[int, bytes], list[str]] = {}
        for name in request.names:
            try:
                found = self._store.get_schema(GetSchema(name))
            except NotFound:
                continue
            names.setdefault((found.version, found.arrow_schema), []).append(found.name)
        return LedgerSchemas([SchemaOfMany(version, body, those) for (version, body), those in names.items()])

    def locate(
        self, request: reads.LocateRanges, locate: Callable[[reads.ReadRequest], reads.Places]
    ) -> reads.RangePlaces:
        wanted = (msgspec.structs.replace(read, token=request.token) for read in request.requests)
        found = [locate(read) for read in wanted]
        return reads.RangePlaces(found if all(places.mapped for places in found) else [])

    def _surveyed(self, name: str, request: reads.AskLogStatuses) -> Iterator[reads.LogStatus]:
        readings = request.readings
        for log in self._store.logs(name):
            try:
                ledger = self._store.ledger(log)
            except NotFound:
                continue  # deleted in between
            whole = readings.get(canonical_name(name), request.otherwise)
            reading = readings.get(log, whole)
            skipped = self._skipped(ledger, reading.cursor, reading.position) if reading.count else None
            yield ledger.status(reading, skipped)

    def _prefix(self, quota: reads.LimitedRange) -> reads.SplitPart:
        ledger = self._store.ledger(quota.name)
        skipped = self._skipped(ledger, quota.cursor, quota.range.start)
        return ledger.prefix(quota.range, quota.rows, quota.size_bytes, skipped)

    def _skipped(self, ledger: ManagedLedger, cursor: str, start: Position | None) -> PositionSet | None:
        """Return the positions that a cursor has acknowledged from `start` on."""
        return self._store.cursors.acknowledged(ledger.name, cursor, start or EARLIEST) if cursor else None
