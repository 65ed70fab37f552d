"""A query without a subscription, as the broker's cache knows it: a name that its tasks read by, and where it stands.

Rules: it holds nothing back and is durable nowhere. Who is not heard of for a minute and a half is forgotten; a beat
every 30 seconds, which also keeps a private broker from leaving, and every trigger say that it is alive.
"""

from __future__ import annotations

from connector.connection import DriverConnection
from ledger.cache_calls import FollowLedger
from ledger.clock import new_id
from ledger.position import Position

BEAT_SECONDS = 30.0
_ALIVE_MS = 90_000


class Following:
    """One such query."""

    def __init__(self, connection: DriverConnection, ledger: str) -> None:
        self.reader = f"query {new_id()}"
        self._connection = connection
        self._ledger = ledger
        self._position: Position | None = None

    def at(self, position: Position) -> None:
        """Everything before `position` is in Spark's commit log."""
        self._position = position
        self._say(position, _ALIVE_MS)

    def beat(self) -> None:
        """It is alive."""
        if self._position is not None:
            self._say(self._position, _ALIVE_MS)

    def leave(self) -> None:
        """It reads no more. A courtesy: it would be forgotten anyway."""
        if self._position is not None:
            request = FollowLedger(self._ledger, self.reader, self._position, 0)
            self._connection.client.call("cache.follow", request)

    def _say(self, position: Position, ttl_ms: int) -> None:
        request = FollowLedger(self._ledger, self.reader, position, ttl_ms)
        self._connection.call(lambda client: client.call("cache.follow", request))
