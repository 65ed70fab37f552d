"""A subscription to all ledgers of a read: a cursor and a lease in each, those of ledgers found later included.

Rules: the query has all leases or none; what it acknowledges it acknowledges in each ledger by itself, and a ledger
that is gone has nothing to acknowledge. One thread renews what is held, and keeps a private broker from leaving.
"""

from __future__ import annotations

from collections.abc import Mapping

from connector.connection import DriverConnection
from connector.following import BEAT_SECONDS, Following
from connector.offsets import StreamOffset
from connector.subscription import Heartbeat, Subscription
from ledger.cursor_calls import CursorState
from ledger.errors import LedgerError, NotFound
from ledger.position import Position


class SubscribedLedgers:
    """What a running query holds. Without a name it holds nothing back, and is known to the broker's cache only."""

    def __init__(self, connection: DriverConnection, name: str | None) -> None:
        self.name = name
        self._connection = connection
        self._held: dict[str, tuple[str, Subscription]] = {}
        self.following = Following(connection) if name is None else None
        self._heartbeat: Heartbeat | None = None

    def known(self, log: str) -> CursorState | None:
        """The cursor of a ledger as it stands; None when there is none yet."""
        return None if self.name is None else self._of(log).exists()

    def hold(self, begins: Mapping[str, tuple[str, Position]]) -> dict[str, CursorState]:
        """Have the cursor of each ledger, made at its position if need be, and its lease. By name: incarnation, place.

        Answers the cursors that were not held before: only now nobody else moves them.
        """
        opened: dict[str, CursorState] = {}
        for log, (incarnation, position) in begins.items():
            if self.name is not None and self._incarnation(log) != incarnation:
                subscription = self._of(log)
                subscription.open(position)
                subscription.acquire()
                self._held[log] = (incarnation, subscription)
                opened[log] = subscription.open(position)
        if self.following is not None:
            self.following.at({log: at for log, (_, at) in begins.items()})
        if self._heartbeat is None and begins:
            self._heartbeat = self._beating()
        return opened

    def require_held(self) -> None:
        """Refused when any lease has gone to another query meanwhile."""
        for _, subscription in self._held.values():
            subscription.require_held()

    def acknowledge(self, offset: StreamOffset) -> None:
        """`offset` is the end of what Spark has committed: the cursors may follow."""
        for log, (incarnation, subscription) in self._held.items():
            at = offset.ledgers.get(log)
            subscription.require_held()
            if at is not None and at.incarnation == incarnation:
                try:
                    subscription.acknowledge(at.position)
                except NotFound:
                    continue  # the ledger is gone, and its cursor with it; whoever reads on is told

    def stop(self) -> None:
        """Give back what time would give back anyway. Spark may kill the process at any moment of this."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        for _, subscription in self._held.values():
            subscription.release()
        if self.following is not None:
            self.following.leave()

    def _of(self, log: str) -> Subscription:
        return Subscription(self._connection, log, self.name or "")

    def _incarnation(self, log: str) -> str:
        held = self._held.get(log)
        return "" if held is None else held[0]

    def _beating(self) -> Heartbeat:
        if self.following is not None:
            return Heartbeat(self.following.beat, self.following.reader, BEAT_SECONDS)
        return Heartbeat(self._beat, f"leases of {self.name}")

    def _beat(self) -> None:
        failed: LedgerError | None = None
        for _, subscription in list(self._held.values()):
            try:
                subscription.beat()
            except NotFound:
                continue  # as above: else every beat of a query that goes on without it would complain
            except LedgerError as error:
                failed = error
        if failed is not None:
            raise failed
