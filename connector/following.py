"""A query without a subscription, as the broker's cache knows it: a name that its tasks read by, and where it stands.

Rules: it holds nothing back and is durable nowhere. Who is not heard of for a minute and a half is forgotten; a beat
every 30 seconds, which also keeps a private broker from leaving, and every trigger that finds it further on, say that
it is alive.
"""

from __future__ import annotations

from collections.abc import Mapping

from connector.connection import DriverConnection
from ledger.cache_calls import FollowLedger, FollowLedgers
from ledger.clock import new_id
from ledger.position import Position

BEAT_SECONDS = 30.0
_ALIVE_MS = 90_000


class Following:
    """One such query: where it stands in each ledger, told in one call."""

    def __init__(self, connection: DriverConnection) -> None:
        self.reader = f"query {new_id()}"
        self._connection = connection
        self._positions: dict[str, Position] = {}

    def at(self, positions: Mapping[str, Position]) -> None:
        """Everything before the position of each ledger is in Spark's commit log."""
        moved = {ledger: at for ledger, at in positions.items() if self._positions.get(ledger) != at}
        self._positions |= moved
        if moved:
            self._connection.call(lambda client: client.call("cache.follow.many", self._said(moved, _ALIVE_MS)))

    def beat(self) -> None:
        """It is alive."""
        said = self._said(dict(self._positions), _ALIVE_MS)
        self._connection.call(lambda client: client.call("cache.follow.many", said))

    def leave(self) -> None:
        """It reads no more. A courtesy: it would be forgotten anyway."""
        if self._positions:
            self._connection.client.call("cache.follow.many", self._said(self._positions, 0))

    def _said(self, positions: Mapping[str, Position], ttl_ms: int) -> FollowLedgers:
        return FollowLedgers([FollowLedger(ledger, self.reader, at, ttl_ms) for ledger, at in positions.items()])
