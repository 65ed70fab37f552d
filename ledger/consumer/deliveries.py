"""Batches of a cursor: rows that the broker delivers to one worker at a time, until they are acknowledged.

    take ── NextDelivery ──▶ broker: checks the lease, chooses the rows, stores the delivery record
         ◀── ranges ───────  read the rows of the first range ──▶ batch ──▶ worker
    acknowledge ── AckDelivery ──▶ broker: checks the lease, acknowledges the range

Rules
- A batch has the rows of one range of a delivery record. So all of its rows were delivered equally often.
- A row is delivered when the record is durable, before the worker has it. So after a crash between any two steps, the
  row is outstanding, and the next worker receives it at once. No row is acknowledged that was not handed out.
- The next record is decided after the worker received all batches of the record before. If a reply is lost, or an
  interrupt comes between the reply and its use, the broker decides the record again.
- While the worker works, one thread reads the rows that the next record will probably have. They are delivered only
  when the worker asks for them. So rows that it does not receive are not counted as delivered.
- With `acknowledge_after`, a batch costs one call and one sync. The acknowledgement, the next record and the open read
  of the rows after it are one request, and the first two are one transaction.
- A row that was redelivered `max_redeliveries` times is not delivered again. Before the next batch is handed out, the
  row is a dead letter in another ledger, and then acknowledged (`ledger.consumer.dead_letters`).
- If a reset moves the cursor, the next record starts at its new position. Batches from before the reset then
  acknowledge nothing.
- After the worker lost its lease, `take`, `acknowledge` and `nack` raise LeaseLost. After the end of the loop,
  acknowledgements succeed until another reader acquires the lease.
- The delay of a negative acknowledgement runs in this process. If the process ends, the next worker receives the rows
  at once. If the delay is longer than the rest of the time-out, the time-out redelivers the rows.
- A repeated acknowledgement has no effect, nor has a negative acknowledgement after it. An acknowledgement cancels a
  negative one that is not due yet.
- Times are measured by the monotonic clock here, and by a clock that never goes back in the broker. So no change of a
  host's clock delays a redelivery.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple

import pyarrow as pa

from pyspark_ledger.ledger.client.end_watch import WaitingReader
from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.consumer.batch import Batch, BatchLimits, milliseconds
from pyspark_ledger.ledger.consumer.batches import Batches
from pyspark_ledger.ledger.consumer.dead_letters import send_to_dead_letter
from pyspark_ledger.ledger.consumer.lease import CursorLease, renewals_of
from pyspark_ledger.ledger.consumer.opened_rows import OpenedRows, objects_of
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.ledger_selection import require_dead_letter_ledgers
from pyspark_ledger.ledger.names import canonical_name, short_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.protocol.cursors import (
    CURSORS_MAX,
    UNLIMITED,
    AckDelivery,
    AskDeliveries,
    AskDelivery,
    DeliveredRange,
    Delivery,
    NextDelivery,
)
from pyspark_ledger.ledger.protocol.ends import KnownEnd, MovedEnd, WaitEnds
from pyspark_ledger.ledger.protocol.reads import OpenedRead, OpenRead
from pyspark_ledger.ledger.rows.row_type import Row, RowType

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client

ACK_TIMEOUT = 300.0
"""Seconds after which an unacknowledged row is redelivered."""
_POLL_MS = 10_000
"""The longest wait between two requests to the broker. A reset of the cursor is noticed after this time."""
_POLLED = 100
"""Number of ledgers of one loop that are asked in this time. With more ledgers, the time is longer."""


@dataclass(frozen=True, eq=False, repr=False)
class DeliveredBatch(Batch[Row]):
    """Rows that were delivered to this worker. `redeliveries` counts their earlier deliveries.

    for batch in cursor.batches():
        work(batch.table); batch.acknowledge()
    """

    redeliveries: int
    share: DeliveredRange
    deliveries: CursorDeliveries[Row]

    def acknowledge(self) -> None:
        """Acknowledge the rows. Durable when the call returns. A repeated call has no effect.

        Raises LeaseLost if another reader uses the cursor now.
        """
        self.deliveries.acknowledge(self)

    def nack(self, delay: float = 0) -> None:
        """Let the loop receive the rows again, after `delay` seconds or after the time-out, whichever is first.

        Raises LeaseLost if another reader uses the cursor now.
        """
        self.deliveries.nack(self, delay)


class _Opened(NamedTuple):
    """Time at which unacknowledged rows are due again, and whether they were negatively acknowledged."""

    due_ms: int
    nacked: bool = False


class _Record(NamedTuple):
    """Newest delivery record: its number, its ranges that were not handed out, and the end of the known log.

    `ahead` is the open read of the range that the next record will probably have.
    """

    number: int
    shares: list[DeliveredRange]
    end: Position
    ahead: OpenedRead | None = None


class _Ahead(NamedTuple):
    """Range that a thread reads while the worker works. The broker decides later whether the range is delivered."""

    range: PositionRange
    table: Future[pa.Table]


class JoinedLoop(NamedTuple):
    """Parts that the cursors of one loop share: the end of their wait, their number, the thread that reads ahead."""

    wake: Callable[[], None]
    ledgers: Callable[[], int]
    ahead_thread: ThreadPoolExecutor


class CursorDeliveries(Generic[Row]):
    """Source of the batches of one cursor, which holds the cursor's lease from `begin` until `close`."""

    def __init__(
        self,
        client: Client,
        ledger: str,
        cursor: str,
        limits: BatchLimits,
        ack_timeout: float,
        max_redeliveries: int | None,
        row_type: RowType[Row] | None,
        loop: JoinedLoop | None = None,
    ) -> None:
        """Check the arguments. In a `loop` over several cursors, the loop waits, and calls `read_ahead`."""
        self._client = client
        self._limits = limits
        self._row_type = row_type
        self._timeout_ms = milliseconds("ack_timeout", ack_timeout)
        if not self._timeout_ms:
            raise Refused("ack_timeout is 0 seconds, expected more", hint="It is the time that your work may take")
        self._max_redeliveries = _redeliveries(max_redeliveries, ledger, cursor)
        self.lease = CursorLease(ledger, cursor)
        self._renewals = renewals_of(client)
        self._since_ms = 0
        self._record = _Record(0, [], EARLIEST)
        self._incarnation = ""
        self._batch: DeliveredBatch[Row] | None = None
        self._done: list[DeliveredRange] = []
        # One thread for all ranges: Arrow's allocator gives a thread its own memory again, and not that of others.
        self._ahead_thread = ThreadPoolExecutor(1, "ledger-read-ahead") if loop is None else loop.ahead_thread
        self._ahead: _Ahead | None = None
        self._opened: dict[DeliveredRange, _Opened] = {}
        self._reader = WaitingReader()
        self._loop = loop
        self._has_news = True
        self._asked_ms = monotonic_ms()
        self._terminated = False

    def begin(self, newest: Delivery) -> None:
        """Begin after the newest delivery record of the cursor. The source has the lease."""
        self._since_ms = newest.now_ms
        self._record = _Record(newest.record, [], newest.position)
        self._incarnation = newest.incarnation
        self._has_news = not newest.idle

    def take(self) -> DeliveredBatch[Row] | None:
        """Return the next batch, or None if there is none now. Until `passed`, a repeated call returns it again."""
        if self._batch is None and not self._record.shares:
            self._decide()
        else:
            self.send_done()
        if self._batch is None and self._record.shares:
            share = self._record.shares[0]
            batch = self._batch_of(share)
            self._opened[share] = _Opened(monotonic_ms() + self._timeout_ms)
            self._batch = batch
        return self._batch

    def passed(self, batch: DeliveredBatch[Row]) -> None:
        """Go on after a batch that was handed out. A repeated call has no further effect."""
        if self._record.shares[:1] == [batch.share]:
            self._record = self._record._replace(shares=self._record.shares[1:])
        self._batch = None

    def wait(self, milliseconds: int) -> bool:
        """Wait until there may be a batch, or until this time has passed. May return early.

        Returns False at the end of a terminated ledger, unless rows wait for the end of their delay.
        """
        if self.has_ended():
            return False
        left = max(min(milliseconds, self.due_ms() - monotonic_ms()), 0)
        if self._terminated:
            self._reader.news(left)
        else:
            self._wait_past_end(left)
        return not self.has_ended()

    @property
    def ledger(self) -> str:
        """The full name of the ledger."""
        return canonical_name(self.lease.ledger)

    def is_due(self) -> bool:
        """Return whether `take` has to be called: there may be a batch, or acknowledgements to send."""
        kept = self._batch is not None or self._record.shares or self._done
        return bool(kept) or self._has_news or self.due_ms() <= monotonic_ms()

    def due_ms(self) -> int:
        """Return the time at which `is_due` returns True although the log has not moved."""
        due = [at.due_ms for at in self._opened.copy().values()]
        ledgers = 1 if self._loop is None else self._loop.ledgers()
        return min([self._asked_ms + _POLL_MS * -(-ledgers // _POLLED), *due])

    def has_ended(self) -> bool:
        """Return whether no batch can follow: the ledger is terminated, and no row waits for the end of its delay."""
        return self._terminated and not any(at.nacked for at in self._opened.copy().values())

    def known_end(self) -> KnownEnd | None:
        """Return the end of the log that this source knows; None if the log moves no more."""
        if self._terminated:
            return None
        return KnownEnd(self.ledger, self._incarnation, self._record.end)

    def learn(self, state: MovedEnd) -> None:
        """Receive the state of the log, which has moved. Raises the error of the log."""
        self._has_news = True
        if state.error is not None:
            raise state.error.error()
        self._terminated = state.terminated and state.end <= self._record.end

    def read_ahead(self) -> None:
        """Begin to read the rows that the next record will probably have."""
        self._read_ahead(self._record.ahead)

    def drop_ahead(self) -> None:
        """Forget the rows that were read ahead. A read that has not begun is left out."""
        if self._ahead is not None:
            self._ahead.table.cancel()
            self._ahead = None

    def wake(self) -> None:
        """End a `wait` that runs, or else the next one."""
        if self._loop is None:
            self._reader.wake()
        else:
            self._loop.wake()

    def close(self) -> None:
        """Release the lease. A repeated call has no further effect."""
        self._ahead = None
        self.leave()
        self._renewals.release_dropped()

    def leave(self) -> None:
        """Let another thread release the lease. Takes no lock, because the garbage collector may call it."""
        self._renewals.drop(self.lease)

    def acknowledge(self, batch: DeliveredBatch[Row]) -> None:
        """Acknowledge the rows of a batch."""
        self._settle([batch.share])
        self._opened.pop(batch.share, None)

    def acknowledge_after(self, batch: DeliveredBatch[Row]) -> None:
        """Acknowledge the rows of a batch with the next request, unless the worker has settled the batch itself."""
        opened = self._opened.get(batch.share)
        if opened is not None and not opened.nacked:
            self._done.append(batch.share)
            self._opened.pop(batch.share, None)

    def send_done(self) -> None:
        """Send the acknowledgements that wait for the next request. If this fails, the next call repeats it."""
        if self._done:
            self._settle(self._done)
            self._done = []

    def nack(self, batch: DeliveredBatch[Row], delay: float) -> None:
        """Let the next request name the rows of a batch for redelivery, when `delay` seconds have passed."""
        due_ms = monotonic_ms() + milliseconds("delay", delay)
        self._settle([])  # raises LeaseLost
        opened = self._opened.get(batch.share)
        if opened is not None:
            self._opened[batch.share] = _Opened(min(due_ms, opened.due_ms), nacked=True)
            self.wake()

    def _settle(self, shares: list[DeliveredRange]) -> None:
        self._client.ask(AckDelivery(self.lease.ledger, self.lease.cursor, self.lease.holder, shares))

    def _decide(self) -> None:
        now, opened = monotonic_ms(), self._opened.copy()
        request = NextDelivery(
            self.lease.ledger,
            self.lease.cursor,
            self._record.number,
            EARLIEST,
            LATEST,
            explicit=True,
            ack_timeout_ms=self._timeout_ms,
            max_redeliveries=self._max_redeliveries,
            back_rows=UNLIMITED if self._limits.max_rows is None else self._limits.max_rows,
            back_bytes=self._limits.max_bytes,
            holder=self.lease.holder,
            due_before_ms=self._since_ms,
            nacked=[share for share, at in opened.items() if at.nacked and at.due_ms <= now],
            done=self._done,
            token=self._client.same_host_token(),
        )
        decided = self._client.ask(request)
        self._done = []
        if decided.dead:  # before the record is kept: after an error, the broker decides again, with these dead letters
            send_to_dead_letter(self._client, self.lease.ledger, self.lease.cursor, decided.dead)
        self._asked_ms = now
        self._has_news = bool(decided.shares or decided.dead)
        # One assignment: an interrupt before it lets the broker decide again, and after it loses nothing.
        number = decided.record or self._record.number
        self._record = _Record(number, decided.shares, decided.position, decided.opened)
        for share, at in opened.items():
            if at.due_ms <= now:  # the broker has redelivered the rows, or does so in one of the next records
                self._opened.pop(share, None)

    def _batch_of(self, share: DeliveredRange) -> DeliveredBatch[Row]:
        reads = self._reads_of(share)
        if self._loop is None:  # before the wait for `reads`, so that the thread goes on without a gap
            self._read_ahead(self._record.ahead)
        try:
            parts = [read.result() for read in reads]
        except Exception:  # noqa: BLE001 — the next read raises the error if it persists
            parts = []
        if not parts or parts[0].schema != parts[-1].schema:  # a column was added between the reads
            parts = [self._read(share.range, share.skip).result()]
        request = OpenRead(self.lease.ledger, share.range.start, share.range.end)
        return DeliveredBatch(
            short_name(self.lease.ledger),
            share.range.start,
            share.range.end,
            pa.concat_tables(parts),
            share.count,
            share,
            self,
            _objects=objects_of(self._client, request, self._row_type, share.skip),
        )

    def _reads_of(self, share: DeliveredRange) -> list[Future[pa.Table]]:
        """Return the reads of a share. Rows that were read ahead are not read again."""
        ahead = self._ahead
        if ahead is None:
            return [self._read(share.range, share.skip)]
        rest = PositionRange(ahead.range.end, share.range.end)
        if ahead.range.start != share.range.start or rest.start > rest.end or share.skip:
            ahead.table.cancel()
            return [self._read(share.range, share.skip)]
        return [ahead.table, *([self._read(rest)] if rest else [])]

    def _read_ahead(self, opened: OpenedRead | None) -> None:
        if opened is None:
            self._ahead = None
        elif self._ahead is None or self._ahead.range != opened.range:
            self._ahead = _Ahead(opened.range, self._read(opened.range, opened=opened))

    def _read(self, range_: PositionRange, skip: bytes = b"", opened: OpenedRead | None = None) -> Future[pa.Table]:
        client, request = self._client, OpenRead(self.lease.ledger, range_.start, range_.end)
        return self._ahead_thread.submit(lambda: OpenedRows(client, request, RowSelection(skip), found=opened).table())

    def _wait_past_end(self, milliseconds: int) -> None:
        """Wait until the log goes on after its known end, or until `wake`. 0: look once."""
        known = [end for end in [self.known_end()] if end is not None]
        if milliseconds:
            moved = self._client.watch.wait(self._reader, known, milliseconds)
        else:
            moved = self._client.ask(WaitEnds("", 0, 0, known)).moved
        for state in moved:
            self.learn(state)


def _redeliveries(most: object, ledger: str, cursor: str) -> int:
    """Return the limit for the broker. Raises Refused for a wrong number or name of the dead-letter ledger."""
    if most is None:
        return -1
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise Refused(
            f"max_redeliveries is {most!r}, expected None, for no limit, or a whole number of at least 0",
            hint="After so many redeliveries, a row becomes a dead letter",
        )
    require_dead_letter_ledgers([ledger], cursor)
    return min(most, 2**31)


def begin_all(client: Client, sources: Sequence[CursorDeliveries[Row]]) -> None:
    """Acquire the leases of all sources or of none, and begin with all of them. Makes one request for many sources.

    Raises Refused, with the ledger and the holder, if another reader has one of the leases.
    """
    renewals = renewals_of(client)
    try:
        renewals.acquire([source.lease for source in sources])
        for first in range(0, len(sources), CURSORS_MAX):
            part = sources[first : first + CURSORS_MAX]
            asked = AskDeliveries([AskDelivery(source.lease.ledger, source.lease.cursor, 0) for source in part])
            for source, newest in zip(part, client.ask(asked).deliveries, strict=True):
                source.begin(newest)
    except BaseException:
        for source in sources:
            source.leave()
        renewals.release_dropped()
        raise


def cursor_batches(
    client: Client,
    ledger: str,
    cursor: str,
    limits: BatchLimits,
    ack: str,
    ack_timeout: float,
    max_redeliveries: int | None,
    row_type: RowType[Row] | None,
) -> Batches[DeliveredBatch[Row]]:
    """Acquire the lease of a cursor, and return its loop. `Cursor.batches` explains the arguments and errors."""
    require_ack(ack)
    deliveries = CursorDeliveries(client, ledger, cursor, limits, ack_timeout, max_redeliveries, row_type)
    begin_all(client, [deliveries])
    after = deliveries.acknowledge_after if ack == "after" else None
    name = f"cursor {cursor!r} of {short_name(ledger)}"
    return Batches(deliveries, name, limits.wait_ms, after, deliveries.leave)


def require_ack(ack: str) -> None:
    """Raise Refused for a value of `ack` that is none."""
    if ack not in ("explicit", "after"):
        raise Refused(
            f"ack is {ack!r}, expected 'explicit' or 'after'",
            hint="'explicit': you call batch.acknowledge(). 'after': a batch is acknowledged when you ask for the next",
        )
