"""Meter of a ledger and its reader: a thread that samples ten times a second, and records events.

If the broker was just killed, the client waits for the next broker: the sample is late, but not lost. Before the ledger
or the subscription exists, there are no rows and no backlog.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from pyspark_ledger import LedgerError, NotFound
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.protocol.actions import DescribeLedger
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor

_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurement, `seconds` after the start. `backlog` is None without a subscription."""

    seconds: float
    rows: int
    backlog: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """Event of the demo."""

    seconds: float
    what: str


class Meter:
    """Meter that takes samples until it is stopped. `rows` and `backlog` are the figures of the last sample."""

    def __init__(self, client: Client, ledger: str, subscription: str) -> None:
        self.samples: list[Sample] = []
        self.events: list[Event] = []
        self._client, self._ledger, self._subscription = client, ledger, subscription
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    @property
    def rows(self) -> int:
        """Number of rows in the ledger."""
        return self.samples[-1].rows if self.samples else 0

    @property
    def backlog(self) -> int | None:
        """Number of rows that the subscription has not acknowledged."""
        return self.samples[-1].backlog if self.samples else None

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def mark(self, what: str) -> float:
        """Record an event at the present time. Return its seconds since the start."""
        event = Event(self.seconds(), what)
        self.events.append(event)
        return event.seconds

    def stop(self) -> None:
        """Take no more samples."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            try:
                self.samples.append(Sample(self.seconds(), *self._look()))
            except LedgerError as error:
                self.mark(f"no sample of the ledger: {error.code}")

    def _look(self) -> tuple[int, int | None]:
        try:
            rows = self._client.ask(DescribeLedger(self._ledger)).rows
        except NotFound:
            return 0, None
        try:
            cursor = DescribeCursor(self._ledger, self._subscription)
            return rows, self._client.ask(cursor).backlog_rows
        except NotFound:
            return rows, None
