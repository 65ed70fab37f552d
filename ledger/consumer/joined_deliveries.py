"""Source of the batches of one cursor in several ledgers or partitions. All leases are acquired before the first batch.

    take ── the ledger whose turn is next, and that is due ──▶ CursorDeliveries ──▶ broker
    wait ── one wait for the ends of all ledgers ──▶ watch of the client

Rules
- Each ledger has its own cursor, lease, delivery records and positions, as `ledger.consumer.deliveries` has them.
- The ledgers take turns. A ledger without news is not asked, except for a reset of its cursor: ten ledgers in a second.
- If one lease is refused, those that were acquired are released. Workers acquire leases in the order of the names, so
  of two that begin at once, one gets all.
- While the worker works, one thread reads the next rows of one ledger: that whose turn is next. So the memory does not
  depend on the number of ledgers.
- A partition that is added, and a ledger that begins to match the pattern, join with their first row. The cursor is
  created there.
- `next` raises the error of one ledger, such as DataLoss, LeaseLost or NotFound. A further `next` goes on with the
  other ledgers, and raises the error again when the turn of this ledger comes. So nothing is skipped without notice.
- With ack="after", a batch is acknowledged before the rows of another ledger are requested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic

from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.consumer.batch import BatchLimits
from pyspark_ledger.ledger.consumer.batches import Batches
from pyspark_ledger.ledger.consumer.deliveries import (
    CursorDeliveries,
    DeliveredBatch,
    JoinedLoop,
    begin_all,
    require_ack,
)
from pyspark_ledger.ledger.consumer.lease import renewals_of
from pyspark_ledger.ledger.consumer.turns import LogTurns
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.ledger_selection import Addressing
from pyspark_ledger.ledger.names import canonical_name, partition_names, partition_of, short_name
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import AskEnd, ListLedgers
from pyspark_ledger.ledger.protocol.cursors import CURSORS_MAX, OpenCursor, OpenCursors
from pyspark_ledger.ledger.protocol.ends import MovedEnd
from pyspark_ledger.ledger.protocol.reads import SURVEY_MAX, AskLogStatuses, ReadProgress
from pyspark_ledger.ledger.rows.row_type import Row, RowType

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client

_LOOK_MS = 2_000
"""Time between two looks for ledgers that match a pattern. The broker tells of no new ledger."""


class JoinedDeliveries(Generic[Row]):
    """Source of the batches of a cursor in all selected ledgers. It holds their leases until `close`."""

    def __init__(
        self,
        client: Client,
        selection: Addressing,
        cursor: str,
        limits: BatchLimits,
        ack_timeout: float,
        max_redeliveries: int | None,
        row_type: RowType[Row] | None,
    ) -> None:
        """Acquire the leases. Raises Refused, with the ledger and the holder, if another reader has one of them."""
        self._client = client
        self._selection = selection
        self._cursor = cursor
        self._limits = limits
        self._ack_timeout = ack_timeout
        self._max_redeliveries = max_redeliveries
        self._row_type = row_type
        self._logs = LogTurns[CursorDeliveries[Row]](client)
        self._loop = JoinedLoop(self._logs.wake, self._logs.__len__, ThreadPoolExecutor(1, "ledger-read-ahead"))
        self._ahead: CursorDeliveries[Row] | None = None
        self._done: set[CursorDeliveries[Row]] = set()  # those with acknowledgements of ack="after" to send
        self._look_ms = 0
        try:
            self._join_selected()
        except BaseException:
            self.close()
            raise

    def take(self) -> DeliveredBatch[Row] | None:
        """Return the next batch, or None if there is none now. Until `passed`, the batch stays with its ledger."""
        if self._selection.pattern and monotonic_ms() >= self._look_ms:
            self._join_selected()
        for source in self._logs:
            if source.is_due():
                self._acknowledge_done(source)
                batch = self._take(source)
                if batch is not None:
                    self._read_ahead(source)
                    return batch
        self._acknowledge_done(None)
        return None

    def passed(self, batch: DeliveredBatch[Row]) -> None:
        """Go on after a batch that was handed out. The turn of its ledger comes last."""
        batch.deliveries.passed(batch)
        self._logs.pass_turn(canonical_name(batch.ledger))

    def wait(self, milliseconds: int) -> bool:
        """Wait until one of the ledgers may have a batch, or until this time has passed. May return early.

        Returns False if all ledgers are terminated, and no row waits for the end of its delay.
        """
        open_logs = [source for source in self._logs if not source.has_ended()]
        if not open_logs and not self._selection.pattern:
            return False
        due_ms = min((source.due_ms() for source in open_logs), default=self._look_ms)
        if self._selection.pattern:
            due_ms = min(due_ms, self._look_ms)
            if not milliseconds:
                self._look_ms = 0  # the loop is about to end
        known = [end for source in open_logs if (end := source.known_end()) is not None]
        moved = self._logs.wait(known, max(min(milliseconds, due_ms - monotonic_ms()), 0))
        errors = [error for state in moved if (error := self._learn(state)) is not None]
        if errors:
            raise errors[0]
        return True

    def wake(self) -> None:
        """End a `wait` that runs, or else the next one."""
        self._logs.wake()

    def close(self) -> None:
        """Release the leases. A repeated call has no further effect."""
        for source in self._logs:
            source.drop_ahead()
        self.leave()
        renewals_of(self._client).release_dropped()

    def leave(self) -> None:
        """Let another thread release the leases. Takes no lock, because the garbage collector may call it."""
        for source in self._logs:
            source.leave()

    def acknowledge_after(self, batch: DeliveredBatch[Row]) -> None:
        """Acknowledge a batch with the next request, unless the worker has settled the batch itself."""
        batch.deliveries.acknowledge_after(batch)
        self._done.add(batch.deliveries)

    def _take(self, source: CursorDeliveries[Row]) -> DeliveredBatch[Row] | None:
        try:
            batch = source.take()
        except LedgerError:
            self._logs.pass_turn(source.ledger)  # the next call goes on with the other ledgers
            raise
        self._done.discard(source)  # the request of `take` has acknowledged its batches
        return batch

    def _acknowledge_done(self, but: CursorDeliveries[Row] | None) -> None:
        """Send the acknowledgements of all ledgers but one, whose next request has them."""
        for source in list(self._done):
            if source is not but:
                self._done.discard(source)  # after an error, the source is still due, and sends them on its turn
                source.send_done()

    def _read_ahead(self, source: CursorDeliveries[Row]) -> None:
        """Read ahead for the ledger whose turn follows that of `source`, and for no other."""
        coming = next((other for other in self._logs if other is not source and other.is_due()), source)
        if self._ahead is not None and self._ahead is not coming:
            self._ahead.drop_ahead()
        self._ahead = coming
        coming.read_ahead()

    def _learn(self, state: MovedEnd) -> LedgerError | None:
        """Receive the state of a ledger. Return the error of this ledger, so that the others learn theirs first."""
        try:
            if not self._logs.is_partitioned(state.name):
                self._logs[state.name].learn(state)
            elif state.error is not None:
                return state.error.error()
            else:
                self._join({state.name: state.partitions})
        except LedgerError as error:
            return error
        return None

    def _join_selected(self) -> None:
        self._look_ms = monotonic_ms() + _LOOK_MS
        names = selected_ledgers(self._client, self._selection, self._cursor)
        self._join(partition_counts(self._client, [name for name in names if name not in self._logs]))

    def _join(self, partitions: Mapping[str, int]) -> None:
        """Begin with all logs of these ledgers that the loop does not have, with one request for many of them.

        `partitions` has the numbers of partitions, 0 for a ledger without partitions.
        """
        logs = [log for name, count in partitions.items() for log in partition_names(name, count) or [name]]
        begun = {log: self._source(log) for log in logs if log not in self._logs}
        open_cursors(self._client, [OpenCursor(log, self._cursor, EARLIEST) for log in begun])
        try:
            begin_all(self._client, list(begun.values()))
            for name, count in partitions.items():
                if count:
                    self._logs.join(name, count, begun.__getitem__)
                else:
                    self._logs.add(name, begun[name])
        except BaseException:
            for source in begun.values():  # also those that are added already: `close` does not drop them twice
                source.leave()
            raise

    def _source(self, name: str) -> CursorDeliveries[Row]:
        return CursorDeliveries(
            self._client,
            name,
            self._cursor,
            self._limits,
            self._ack_timeout,
            self._max_redeliveries,
            self._row_type,
            self._loop,
        )


def partition_counts(client: Client, names: list[str]) -> dict[str, int]:
    """Return the number of partitions of each ledger, 0 for one without partitions. Raises NotFound for a missing one.

    Makes one request for many ledgers.
    """
    counts: dict[str, int] = {}
    for first in range(0, len(names), SURVEY_MAX):
        part = names[first : first + SURVEY_MAX]
        found = client.ask(AskLogStatuses(part, otherwise=ReadProgress(count=False)))
        for missing in found.missing:
            client.ask(AskEnd(missing))  # raises NotFound with the most similar name
        logs = {log.name for log in found.logs}
        wholes = Counter(split[0] for log in logs if (split := partition_of(log)) is not None)
        counts |= {name: 0 if canonical_name(name) in logs else wholes[canonical_name(name)] for name in part}
    return counts


def open_cursors(client: Client, cursors: list[OpenCursor]) -> None:
    """Create those of the cursors that are missing, with one request for many of them."""
    for first in range(0, len(cursors), CURSORS_MAX):
        client.ask(OpenCursors(cursors[first : first + CURSORS_MAX]))


def selected_ledgers(client: Client, selection: Addressing, cursor: str) -> list[str]:
    """Return the names of the selected ledgers, sorted. A partitioned ledger has one name for all of its partitions.

    A pattern selects from the existing ledgers, except the dead-letter ledgers of the cursor.
    """
    if not selection.pattern:
        return sorted(selection.names)
    return sorted(selection.matching_for(client.ask(ListLedgers()).names, cursor))


def selection_words(selection: Addressing) -> str:
    """Return the short names or the pattern of a selection."""
    return ", ".join(map(short_name, selection.names)) or str(selection)


def joined_batches(
    client: Client,
    selection: Addressing,
    cursor: str,
    limits: BatchLimits,
    ack: str,
    ack_timeout: float,
    max_redeliveries: int | None,
    row_type: RowType[Row] | None,
) -> Batches[DeliveredBatch[Row]]:
    """Acquire the leases of a cursor in several ledgers, and return its loop. See `JoinedCursor.batches`."""
    require_ack(ack)
    deliveries = JoinedDeliveries(client, selection, cursor, limits, ack_timeout, max_redeliveries, row_type)
    after = deliveries.acknowledge_after if ack == "after" else None
    name = f"cursor {cursor!r} of {selection_words(selection)}"
    return Batches(deliveries, name, limits.wait_ms, after, deliveries.leave)
