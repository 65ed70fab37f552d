"""A subscription while a query runs: the lease that keeps a second query out, and the acknowledgements of the first.

Rules
- Spark kills the source's process at stop and calls nothing reliably: a lease runs out by itself, and the broker gives
  away at once the lease of a process of its own host that is gone. Giving it back is a courtesy.
- Whoever finds the lease taken waits for as long as nobody renews it, up to its end, and is refused as soon as it is
  seen renewed: then another query is alive.
- Acknowledged is only what stands in Spark's commit log: the start of the next batch, or a committed end.
- The replay floor stands before the first batch does: whatever a batch acknowledges by itself, it can be repeated.
- A thread renews the lease, which also keeps a private broker from leaving for want of work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from connector.connection import DriverConnection
from ledger.clock import monotonic_ms, new_id, pause
from ledger.cursor_calls import AcquireLease, CursorState, MarkDelete, NameCursor, OpenCursor, ReleaseLease
from ledger.errors import LedgerError, NotFound, Refused
from ledger.host import process_identity
from ledger.position import EARLIEST, Position

if TYPE_CHECKING:
    from ledger.cursor_calls import LeaseReply

_log = logging.getLogger(__name__)
LEASE_MS = 30_000
_RENEW_SECONDS = 5.0
_ASK_MS = 250


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
    """One query's hold on a durable cursor of one ledger."""

    def __init__(self, connection: DriverConnection, ledger: str, name: str) -> None:
        self._connection = connection
        self._ledger = ledger
        self._name = name
        self._holder = f"{process_identity()}/{new_id()}"
        self._lost: str | None = None
        self._acknowledged: Position | None = None

    def exists(self) -> CursorState | None:
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
        floored: CursorState = self._connection.call(lambda client: client.call("cursor.mark_delete", mark))
        return floored

    def acquire(self) -> None:
        """Take the lease; Refused names the holder when another query is alive."""
        first: LeaseReply | None = None
        began = monotonic_ms()
        while True:
            reply = self._ask()
            if reply.granted:
                return
            if first is None:
                first = reply
                _log.info("subscription %s is held by %s; waiting for it to end", self._name, reply.holder)
            renewed = (reply.holder, reply.until_ms) != (first.holder, first.until_ms)
            if renewed or monotonic_ms() - began > LEASE_MS + 1000:
                raise self._refusal(reply)
            pause(_ASK_MS)

    def beat(self) -> None:
        """Renew the lease; one that went to somebody else is remembered and ends the query at its next call."""
        reply = self._ask()
        if not reply.granted:
            self._lost = reply.holder
            raise self._refusal(reply)

    def require_held(self) -> None:
        """Refused when the lease has gone to another query meanwhile."""
        if self._lost is not None:
            raise Refused(
                f"subscription {self._name!r} of {self._ledger} was lost to {self._lost}, this query is {self._holder}",
                hint="It did not renew its lease in time; stop one of the two queries",
            )

    def acknowledge(self, position: Position) -> None:
        """Everything before `position` is in Spark's commit log: acknowledge it, and let the log trim behind it."""
        if self._acknowledged is not None and position <= self._acknowledged:
            return
        request = MarkDelete(self._ledger, self._name, position, replay_floor=position)
        self._connection.call(lambda client: client.call("cursor.mark_delete", request))
        self._acknowledged = position

    def release(self) -> None:
        """Give the lease back."""
        request = ReleaseLease(self._ledger, self._name, self._holder)
        self._connection.client.call("lease.release", request)

    def _ask(self) -> LeaseReply:
        request = AcquireLease(self._ledger, self._name, self._holder, LEASE_MS)
        reply: LeaseReply = self._connection.call(lambda client: client.call("lease.acquire", request))
        return reply

    def _refusal(self, reply: LeaseReply) -> Refused:
        return Refused(
            f"subscription {self._name!r} of {self._ledger} is read by {reply.holder} until {reply.until_ms} "
            f"(milliseconds since 1970), this query is {self._holder}",
            hint="Stop that query, or give this one a subscription of its own",
        )
