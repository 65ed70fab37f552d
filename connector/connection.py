"""The driver's line to a broker: found or started through the store's directory, held on to while it restarts.

Rules
- Only the driver's side comes through here. It may start the private broker of a directory, and a writer may create the
  store; tasks never do either (see `connector.partition_fetch`).
- A broker that cannot be reached is retried until a deadline: an error out of a driver call ends a streaming query.
- At an address nobody is started: one that has never answered is an error within seconds, not at the deadline.
- What is retried must bear repetition; every request of the broker's protocol that is sent here does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ledger.clock import monotonic_ms, pause
from ledger.errors import Unavailable

if TYPE_CHECKING:
    from ledger.broker.client import Client
    from ledger.broker.credentials import Credentials

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
DRIVER_DEADLINE_MS = 30_000
_PAUSE_MS = 100
# How long the client itself retries before the broker of a directory is looked for, or started, anew.
_CLIENT_MS = 3_000


class DriverConnection:
    """A broker, as a driver process sees it. Connects at the first call."""

    def __init__(
        self,
        location: str,
        *,
        create: bool = False,
        deadline_ms: int = DRIVER_DEADLINE_MS,
        credentials: Credentials | None = None,
    ) -> None:
        self.location = location
        self._credentials = credentials
        self._answered = False
        self._create = create
        self._deadline_ms = deadline_ms
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client behind it; connects when there is none yet."""
        if self._client is None:
            from ledger.broker.embedded import connect_store

            self._client = connect_store(self.location, create=self._create, start=True, credentials=self._credentials)
            self._answered = True
            self._client.deadline_ms = _CLIENT_MS
            _log.info("store %s is served at %s", self._client.store_id, self._client.address)
        return self._client

    def call(self, ask: Callable[[Client], _Answer]) -> _Answer:
        """The answer of `ask`, repeated while the broker is Unavailable, until the deadline."""
        end = monotonic_ms() + self._deadline_ms
        while True:
            try:
                return ask(self.client)
            except Unavailable as error:
                self._client = None
                if monotonic_ms() >= end or (not self._answered and "://" in self.location):
                    raise
                _log.warning("broker of %s: %s; trying again", self.location, error)
            pause(_PAUSE_MS)
