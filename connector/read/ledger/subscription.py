"""Subscription of a running query: its leases and acknowledgements. A query without one is an anonymous reader.

The page docs/concepts.md explains the words cursor, entry and incarnation.

Rules of leases
- A *lease* is the right of one query to use a cursor. A query acquires the leases of all its ledgers or fails. This
  includes ledgers that it finds while it runs.
- When a query stops, Spark may kill the source's process without a call of `stop()`. So a lease expires unless it is
  renewed. If the process of the lease's holder ran on the broker's host and has ended, the broker releases the lease at
  once.
- If another process holds a lease, a query waits until the lease expires. If the holder renews the lease meanwhile, it
  is still running. Then the waiting query is refused.
- One thread renews all leases. The renewals also keep a private broker from its idle shutdown.

Rules of acknowledgements
- A query acknowledges only entries of batches that Spark has committed, which Spark's commit log names. So it
  acknowledges up to the start of the next batch, or up to the end of a committed batch.
- The *replay floor* is the end of the last batch that Spark is known to have committed. It is set before the first
  batch, and retention keeps all rows after it. So Spark can repeat a batch whose rows are acknowledged already.
- Each ledger is acknowledged separately. A deleted ledger is skipped.

Rules of a query without a subscription (`AnonymousReader`)
- The broker's cache has the query's reader name and its position in each ledger. The broker stores neither durably. So
  retention may delete rows that the query has not read.
- The query registers every 30 seconds, and at every trigger that moves its position. The cache removes the query 90
  seconds after its last registration. The registrations also keep a private broker from its idle shutdown.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.connector.read.offsets import StreamOffset
from pyspark_ledger.ledger.clock import monotonic_ms, new_id, pause
from pyspark_ledger.ledger.consumer.lease import LEASE_MS, CursorLease
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.cache import RegisterReader, RegisterReaders
from pyspark_ledger.ledger.protocol.cursors import (
    CursorState,
    DescribeCursor,
    MarkDelete,
    OpenCursor,
)
from pyspark_ledger.ledger.times import iso_text

if TYPE_CHECKING:
    from pyspark_ledger.ledger.protocol.cursors import LeaseReply

_log = logging.getLogger(__name__)


_RENEW_SECONDS = 5.0
_RETRY_MS = 250


class Heartbeat:
    """Thread that calls `beat` every `seconds` until it is stopped. Errors are logged and do not end the thread."""

    def __init__(self, beat: Callable[[], None], name: str, seconds: float = _RENEW_SECONDS) -> None:
        self._beat = beat
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Signal the thread to end. Does not wait for the end."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                self._beat()
            except LedgerError as error:
                _log.warning("%s: %s", self._thread.name, error)
            except Exception:  # noqa: BLE001 — without renewals another query would acquire the lease
                _log.exception("%s failed unexpectedly", self._thread.name)


class Subscription:
    """Durable cursor of one ledger and the query's lease on it."""

    def __init__(self, connection: DriverConnection, ledger: str, name: str) -> None:
        self._connection = connection
        self._ledger = ledger
        self._name = name
        self._lease = CursorLease(ledger, name)
        self._new_holder: str | None = None
        self._acknowledged: Position | None = None

    def state(self) -> CursorState | None:
        """Return the state of the cursor; None if there is no cursor."""
        try:
            state = self._connection.ask(DescribeCursor(self._ledger, self._name))
        except NotFound:
            return None
        return state

    def open(self, start: Position) -> CursorState:
        """Open the cursor, or create it at `start`, and set its replay floor to the start of the read.

        An existing replay floor does not change. Reason: a repeated batch may start before the cursor, because the
        batch itself moved the cursor.
        """
        request = OpenCursor(self._ledger, self._name, start)
        state = self._connection.ask(request)
        if state.replay_floor is not None:
            return state
        floor = state.next_position if start == EARLIEST else min(start, state.next_position)
        mark = MarkDelete(self._ledger, self._name, EARLIEST, replay_floor=floor)
        self._connection.ask(mark)
        return msgspec.structs.replace(state, replay_floor=floor)

    def acquire(self) -> None:
        """Acquire the lease. Raises Refused with the holder if another query renews the lease."""
        first: LeaseReply | None = None
        start_ms = monotonic_ms()
        while True:
            reply = self._request_lease()
            if reply.granted:
                return
            if first is None:
                first = reply
                _log.info("subscription %s is held by %s; waiting for it to end", self._name, reply.holder)
            renewed = (reply.holder, reply.until_ms) != (first.holder, first.until_ms)
            if renewed or monotonic_ms() - start_ms > LEASE_MS + 1000:
                raise self._refusal(reply)
            pause(_RETRY_MS)

    def renew(self) -> None:
        """Renew the lease. Raises Refused if another query has acquired it.

        After that, `require_lease` raises Refused too, and so ends the query.
        """
        reply = self._request_lease()
        if not reply.granted:
            self._new_holder = reply.holder
            raise self._refusal(reply)

    def require_lease(self) -> None:
        """Raise Refused if another query has acquired the lease."""
        if self._new_holder is not None:
            raise Refused(
                f"subscription {self._name!r} of {self._ledger} was lost to {self._new_holder}, "
                f"this query is {self._lease.holder}",
                hint="It did not renew its lease in time; stop one of the two queries",
            )

    def acknowledge(self, position: Position) -> None:
        """Acknowledge all entries before `position`. Spark must have committed all of them.

        Reason: retention may delete the entries after this call.
        """
        if self._acknowledged is not None and position <= self._acknowledged:
            return
        request = MarkDelete(self._ledger, self._name, position, replay_floor=position)
        self._connection.ask(request)
        self._acknowledged = position

    def release(self) -> None:
        """Release the lease."""
        self._connection.client.ask(self._lease.end())

    def _request_lease(self) -> LeaseReply:
        return self._connection.ask(self._lease.acquisition())

    def _refusal(self, reply: LeaseReply) -> Refused:
        return Refused(
            f"subscription {self._name!r} of {self._ledger} is read by {reply.holder} until "
            f"{iso_text(reply.until_ms)}, this query is {self._lease.holder}",
            hint="Stop that query, or set another subscription for this query. If one query has several load(), each "
            "needs a subscription of its own",
        )


BEAT_SECONDS = 30.0
_ALIVE_MS = 90_000


class AnonymousReader:
    """Query without a subscription that registers its position in every ledger with the broker's cache."""

    def __init__(self, connection: DriverConnection) -> None:
        self.reader = f"query {new_id()}"
        self._connection = connection
        self._positions: dict[str, Position] = {}

    def report(self, positions: Mapping[str, Position]) -> None:
        """Register the changed positions. `positions` are by ledger. Spark has committed all entries before them."""
        moved = {ledger: at for ledger, at in positions.items() if self._positions.get(ledger) != at}
        self._positions |= moved
        if moved:
            self._connection.ask(self._request(moved, _ALIVE_MS))

    def renew(self) -> None:
        """Register all positions again, so that the registration does not expire."""
        request = self._request(dict(self._positions), _ALIVE_MS)
        self._connection.ask(request)

    def unregister(self) -> None:
        """End the registrations at once. Otherwise they expire."""
        if self._positions:
            self._connection.client.ask(self._request(self._positions, 0))

    def _request(self, positions: Mapping[str, Position], ttl_ms: int) -> RegisterReaders:
        return RegisterReaders([RegisterReader(ledger, self.reader, at, ttl_ms) for ledger, at in positions.items()])


class SubscribedLedgers:
    """Subscriptions of a running query, one for each ledger. Without a subscription, its anonymous reader.

    A query without a broker (`connection` is None) has neither: nobody knows its position.
    """

    def __init__(self, connection: DriverConnection | None, name: str | None) -> None:
        self.name = name
        self._connection = connection
        self._leases: dict[str, tuple[str, Subscription]] = {}
        self.anonymous_reader = None if name is not None or connection is None else AnonymousReader(connection)
        self._heartbeat: Heartbeat | None = None

    def cursor(self, log: str) -> CursorState | None:
        """Return the state of a ledger's cursor; None if there is no cursor or no subscription."""
        return None if self.name is None else self._subscription(log).state()

    def acquire(self, starts: Mapping[str, tuple[str, Position]]) -> dict[str, CursorState]:
        """Open the cursor of each ledger, or create it at its start, and acquire its lease.

        `starts` are incarnation and start position by ledger. Returns the states that the cursors have after their
        leases were acquired. Leases that the query already has are skipped.
        """
        leased: dict[str, CursorState] = {}
        for log, (incarnation, position) in starts.items():
            if self.name is not None and self._incarnation(log) != incarnation:
                subscription = self._subscription(log)
                subscription.open(position)
                subscription.acquire()
                self._leases[log] = (incarnation, subscription)
                leased[log] = subscription.open(position)
        if self.anonymous_reader is not None:
            self.anonymous_reader.report({log: at for log, (_, at) in starts.items()})
        if self._heartbeat is None and starts and self._connection is not None:
            self._heartbeat = self._start_heartbeat()
        return leased

    def require_leases(self) -> None:
        """Raise Refused if another query has acquired any of the leases."""
        for _, subscription in self._leases.values():
            subscription.require_lease()

    def acknowledge(self, offset: StreamOffset) -> None:
        """Acknowledge up to `offset`, the end of a batch that Spark has committed."""
        for log, (incarnation, subscription) in self._leases.items():
            at = offset.ledgers.get(log)
            subscription.require_lease()
            if at is not None and at.incarnation == incarnation:
                try:
                    subscription.acknowledge(at.position)
                except NotFound:
                    continue  # the ledger was deleted with its cursor; the next read reports the loss

    def stop(self) -> None:
        """Release the leases at once. Otherwise they expire. Spark may kill the process during this call."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        for _, subscription in self._leases.values():
            subscription.release()
        if self.anonymous_reader is not None:
            self.anonymous_reader.unregister()

    def _subscription(self, log: str) -> Subscription:
        assert self._connection is not None, "the options refuse a subscription without a broker"  # noqa: S101
        return Subscription(self._connection, log, self.name or "")

    def _incarnation(self, log: str) -> str:
        lease = self._leases.get(log)
        return "" if lease is None else lease[0]

    def _start_heartbeat(self) -> Heartbeat:
        if self.anonymous_reader is not None:
            return Heartbeat(self.anonymous_reader.renew, self.anonymous_reader.reader, BEAT_SECONDS)
        return Heartbeat(self._renew_leases, f"leases of {self.name}")

    def _renew_leases(self) -> None:
        last_error: LedgerError | None = None
        for _, subscription in list(self._leases.values()):
            try:
                subscription.renew()
            except NotFound:
                continue  # the ledger was deleted; an error would be logged at every renewal
            except LedgerError as error:
                last_error = error
        if last_error is not None:
            raise last_error
