"""Subscriptions of a running query: leases and acknowledgements in each ledger, or a name in the broker's cache.

Rules of leases
- A lease keeps a second query out of a cursor. The query has the leases of all its ledgers or fails, those of ledgers
  found later included.
- Spark kills the source's process at stop and calls nothing reliably. A lease therefore expires by itself, and the
  broker frees at once the lease of a process of its own host that is gone. Releasing a lease is a courtesy.
- A query that finds a lease taken waits as long as nobody renews the lease, up to its end. It is refused as soon as
  the lease is renewed: then another query is alive.
- One thread renews all leases. The renewals also keep a private broker from leaving because it is idle.

Rules of acknowledgements
- Acknowledged is only what is in Spark's commit log: the start of the next batch, or a committed end.
- The replay floor is set before the first batch. Any batch can therefore be repeated, whatever it acknowledged itself.
- A query acknowledges in each ledger by itself. A ledger that is gone has nothing to acknowledge.

Rules of a query without a subscription (`AnonymousReader`)
- The broker's cache knows the name that its tasks read by, and its position in each ledger. The query holds nothing
  back, and nothing of it is durable.
- The cache forgets the query 90 seconds after its last message. It sends one every 30 seconds, and at every trigger
  that finds it further on. The messages also keep a private broker from leaving.
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
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.ownership import process_identity
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.cache import RegisterReader, RegisterReaders
from pyspark_ledger.ledger.protocol.cursors import (
    AcquireLease,
    CursorState,
    MarkDelete,
    NameCursor,
    OpenCursor,
    ReleaseLease,
)

if TYPE_CHECKING:
    from pyspark_ledger.ledger.protocol.cursors import LeaseReply

_log = logging.getLogger(__name__)


LEASE_MS = 30_000
_RENEW_SECONDS = 5.0
_RETRY_MS = 250


class Heartbeat:
    """A thread that calls `beat` every few seconds until it is stopped. An error is logged and the next beat tried."""

    def __init__(self, beat: Callable[[], None], name: str, seconds: float = _RENEW_SECONDS) -> None:
        self._beat = beat
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to leave; does not wait for it."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                self._beat()
            except LedgerError as error:
                _log.warning("%s: %s", self._thread.name, error)
            except Exception:  # noqa: BLE001 — a lease that is renewed no more would go to somebody else
                _log.exception("%s failed in a way that nobody foresaw", self._thread.name)


class Subscription:
    """Durable cursor of one ledger, read under a lease of one query."""

    def __init__(self, connection: DriverConnection, ledger: str, name: str) -> None:
        self._connection = connection
        self._ledger = ledger
        self._name = name
        self._holder = f"{process_identity()}/{new_id()}"
        self._new_holder: str | None = None
        self._acknowledged: Position | None = None

    def state(self) -> CursorState | None:
        """The cursor as it stands; None when there is none yet."""
        try:
            found: CursorState = self._connection.call(
                lambda client: client.call("cursor.describe", NameCursor(self._ledger, self._name))
            )
        except NotFound:
            return None
        return found

    def open(self, start: Position) -> CursorState:
        """The cursor, created at `start` when there is none. One without a replay floor gets it, where reading begins.

        A floor that is there stays: a batch that is repeated may begin before the cursor, which the batch itself moved.
        """
        request = OpenCursor(self._ledger, self._name, start)
        state: CursorState = self._connection.call(lambda client: client.call("cursor.open", request))
        if state.replay_floor is not None:
            return state
        floor = state.next_position if start == EARLIEST else min(start, state.next_position)
        mark = MarkDelete(self._ledger, self._name, EARLIEST, replay_floor=floor)
        self._connection.call(lambda client: client.call("cursor.mark_delete", mark))
        return msgspec.structs.replace(state, replay_floor=floor)

    def acquire(self) -> None:
        """Take the lease; Refused names the holder when another query is alive."""
        first: LeaseReply | None = None
        began = monotonic_ms()
        while True:
            reply = self._request_lease()
            if reply.granted:
                return
            if first is None:
                first = reply
                _log.info("subscription %s is held by %s; waiting for it to end", self._name, reply.holder)
            renewed = (reply.holder, reply.until_ms) != (first.holder, first.until_ms)
            if renewed or monotonic_ms() - began > LEASE_MS + 1000:
                raise self._refusal(reply)
            pause(_RETRY_MS)

    def renew(self) -> None:
        """Renew the lease; one that went to somebody else is remembered and ends the query at its next call."""
        reply = self._request_lease()
        if not reply.granted:
            self._new_holder = reply.holder
            raise self._refusal(reply)

    def require_lease(self) -> None:
        """Refused when the lease has gone to another query meanwhile."""
        if self._new_holder is not None:
            raise Refused(
                f"subscription {self._name!r} of {self._ledger} was lost to {self._new_holder}, "
                f"this query is {self._holder}",
                hint="It did not renew its lease in time; stop one of the two queries",
            )

    def acknowledge(self, position: Position) -> None:
        """Acknowledge all entries before `position`, which are in Spark's commit log. Retention may then trim them."""
        if self._acknowledged is not None and position <= self._acknowledged:
            return
        request = MarkDelete(self._ledger, self._name, position, replay_floor=position)
        self._connection.call(lambda client: client.call("cursor.mark_delete", request))
        self._acknowledged = position

    def release(self) -> None:
        """Give the lease back."""
        request = ReleaseLease(self._ledger, self._name, self._holder)
        self._connection.client.call("lease.release", request)

    def _request_lease(self) -> LeaseReply:
        request = AcquireLease(self._ledger, self._name, self._holder, LEASE_MS)
        reply: LeaseReply = self._connection.call(lambda client: client.call("lease.acquire", request))
        return reply

    def _refusal(self, reply: LeaseReply) -> Refused:
        return Refused(
            f"subscription {self._name!r} of {self._ledger} is read by {reply.holder} until {reply.until_ms} "
            f"(milliseconds since 1970), this query is {self._holder}",
            hint="Stop that query, or give this one a subscription of its own",
        )


BEAT_SECONDS = 30.0
_ALIVE_MS = 90_000


class AnonymousReader:
    """A query without a subscription: reports its position in every ledger by one call."""

    def __init__(self, connection: DriverConnection) -> None:
        self.reader = f"query {new_id()}"
        self._connection = connection
        self._positions: dict[str, Position] = {}

    def report(self, positions: Mapping[str, Position]) -> None:
        """Everything before the position of each ledger is in Spark's commit log."""
        moved = {ledger: at for ledger, at in positions.items() if self._positions.get(ledger) != at}
        self._positions |= moved
        if moved:
            self._connection.call(lambda client: client.call("cache.follow.many", self._request(moved, _ALIVE_MS)))

    def renew(self) -> None:
        """Report all positions again: the query is alive."""
        said = self._request(dict(self._positions), _ALIVE_MS)
        self._connection.call(lambda client: client.call("cache.follow.many", said))

    def unregister(self) -> None:
        """Report that the query reads no more. A courtesy: the cache would forget it anyway."""
        if self._positions:
            self._connection.client.call("cache.follow.many", self._request(self._positions, 0))

    def _request(self, positions: Mapping[str, Position], ttl_ms: int) -> RegisterReaders:
        return RegisterReaders([RegisterReader(ledger, self.reader, at, ttl_ms) for ledger, at in positions.items()])


class SubscribedLedgers:
    """All subscriptions of a running query. Without a name only the broker's cache knows the query."""

    def __init__(self, connection: DriverConnection, name: str | None) -> None:
        self.name = name
        self._connection = connection
        self._leases: dict[str, tuple[str, Subscription]] = {}
        self.anonymous_reader = AnonymousReader(connection) if name is None else None
        self._heartbeat: Heartbeat | None = None

    def cursor(self, log: str) -> CursorState | None:
        """The cursor of a ledger as it stands; None when there is none yet."""
        return None if self.name is None else self._subscription(log).state()

    def acquire(self, begins: Mapping[str, tuple[str, Position]]) -> dict[str, CursorState]:
        """Have the cursor of each ledger, made at its position if need be, and its lease. By name: incarnation, place.

        Answers the cursors that were not held before: only now nobody else moves them.
        """
        opened: dict[str, CursorState] = {}
        for log, (incarnation, position) in begins.items():
            if self.name is not None and self._incarnation(log) != incarnation:
                subscription = self._subscription(log)
                subscription.open(position)
                subscription.acquire()
                self._leases[log] = (incarnation, subscription)
                opened[log] = subscription.open(position)
        if self.anonymous_reader is not None:
            self.anonymous_reader.report({log: at for log, (_, at) in begins.items()})
        if self._heartbeat is None and begins:
            self._heartbeat = self._start_heartbeat()
        return opened

    def require_leases(self) -> None:
        """Refused when any lease has gone to another query meanwhile."""
        for _, subscription in self._leases.values():
            subscription.require_lease()

    def acknowledge(self, offset: StreamOffset) -> None:
        """`offset` is the end of what Spark has committed: the cursors may follow."""
        for log, (incarnation, subscription) in self._leases.items():
            at = offset.ledgers.get(log)
            subscription.require_lease()
            if at is not None and at.incarnation == incarnation:
                try:
                    subscription.acknowledge(at.position)
                except NotFound:
                    continue  # the ledger is gone, and its cursor with it; whoever reads on is told

    def stop(self) -> None:
        """Release the leases, which would expire anyway. Spark may kill the process at any moment of this."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        for _, subscription in self._leases.values():
            subscription.release()
        if self.anonymous_reader is not None:
            self.anonymous_reader.unregister()

    def _subscription(self, log: str) -> Subscription:
        return Subscription(self._connection, log, self.name or "")

    def _incarnation(self, log: str) -> str:
        held = self._leases.get(log)
        return "" if held is None else held[0]

    def _start_heartbeat(self) -> Heartbeat:
        if self.anonymous_reader is not None:
            return Heartbeat(self.anonymous_reader.renew, self.anonymous_reader.reader, BEAT_SECONDS)
        return Heartbeat(self._renew_leases, f"leases of {self.name}")

    def _renew_leases(self) -> None:
        failed: LedgerError | None = None
        for _, subscription in list(self._leases.values()):
            try:
                subscription.renew()
            except NotFound:
                continue  # as above: else every beat of a query that goes on without it would complain
            except LedgerError as error:
                failed = error
        if failed is not None:
            raise failed
