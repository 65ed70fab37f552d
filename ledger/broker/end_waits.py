"""Waits of clients for new entries. Each waiting call has one thread, however many ledgers it names.

    writer of a log ── changed(name) ──▶ event of each call that waits for this ledger
    call of the same watch with a higher turn ──▶ event of the earlier call

Rules
- A call registers its ledgers before it looks at their state. So it misses no change between the look and its wait.
- An append to a ledger for which nobody waits costs one look into a dictionary.
- The setting `maxConcurrentRequests` limits the waiting calls together with all other calls. A process has one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.ends import KnownEnd, MovedEnd, MovedEnds, WaitEnds, WireError
from pyspark_ledger.ledger.store.store import Store

_WAIT_MS_MAX = 60_000  # below the time-out of a client's call, two minutes
_LOOK_SECONDS = 0.5  # after which a call looks whether the broker stops
_WATCHES_MAX = 10_000  # whose newest turn is kept; without it, a call of an earlier turn waits for its time


class _Wait:
    """Waiting call. `names` are the full names of its ledgers, `changed` those that may have moved since its look."""

    def __init__(self, request: WaitEnds) -> None:
        self.turn = request.turn
        self.names = {canonical_name(known.name): known for known in request.known}
        self.changed: set[str] = set()
        self.event = threading.Event()
        self.replaced = False


class EndWaits:
    """Waiting calls of one broker. Thread-safe."""

    def __init__(self, store: Store, stopping: threading.Event, monotonic_ms: Clock) -> None:
        self._store = store
        self._stopping = stopping
        self._clock = monotonic_ms
        self._lock = threading.Lock()
        self._waits: dict[str, set[_Wait]] = {}
        self._newest: OrderedDict[str, _Wait] = OrderedDict()

    def wait(self, request: WaitEnds) -> MovedEnds:
        """Return the ledgers that have moved, as soon as there is one. Returns none if the call was replaced."""
        wait = _Wait(request)
        if not self._begin(request.watch, wait):
            return MovedEnds()
        try:
            moved = self._moved(wait, wait.names)
            until = self._clock() + min(request.wait_ms, _WAIT_MS_MAX)
            while not moved and not wait.replaced and (left := until - self._clock()) > 0:
                if self._stopping.is_set():
                    raise Unavailable("the broker is stopping", hint="Connect again")
                if wait.event.wait(min(left / 1000, _LOOK_SECONDS)):
                    moved = self._moved(wait, self._changed(wait))
            return MovedEnds(moved)
        finally:
            self._end(wait)

    def changed(self, name: str) -> None:
        """Wake the calls that wait for a log. Called on the thread of each change of the log; never raises."""
        if name in self._waits:
            with self._lock:
                for wait in self._waits.get(name, ()):
                    wait.changed.add(name)
                    wait.event.set()

    def all_changed(self) -> None:
        """Wake all calls. Called after ledgers were deleted, or partitions were added."""
        for name in list(self._waits):
            self.changed(name)

    def _begin(self, watch: str, wait: _Wait) -> bool:
        """Register a call, and end the earlier call of its watch. Return False if the watch made a later call."""
        with self._lock:
            newest = self._newest.get(watch)
            if newest is not None and newest.turn > wait.turn:
                return False
            self._newest[watch] = wait
            self._newest.move_to_end(watch)
            if len(self._newest) > _WATCHES_MAX:
                self._newest.popitem(last=False)
            if newest is not None:
                newest.replaced = True
                newest.event.set()
            for name in wait.names:
                self._waits.setdefault(name, set()).add(wait)
        return True

    def _end(self, wait: _Wait) -> None:
        with self._lock:
            for name in wait.names:
                self._waits[name].discard(wait)
                if not self._waits[name]:
                    del self._waits[name]
            wait.names = {}  # the newest wait of a watch is kept for its turn

    def _changed(self, wait: _Wait) -> set[str]:
        with self._lock:
            wait.event.clear()
            found, wait.changed = wait.changed, set()
        return found

    def _moved(self, wait: _Wait, names: Iterable[str]) -> list[MovedEnd]:
        return [moved for name in names if (moved := self._state(name, wait.names[name])) is not None]

    def _state(self, name: str, known: KnownEnd) -> MovedEnd | None:
        """Return the state of a ledger, or its error. Return None if it has not moved."""
        try:
            if known.partitions:
                count = self._store.partitions.count(name)
                return MovedEnd(known.name, partitions=count) if count != known.partitions else None
            snapshot = self._store.snapshot(name)
        except LedgerError as error:
            return MovedEnd(known.name, error=WireError.of(error))
        return known.moved(snapshot.incarnation, snapshot.end, terminated=snapshot.terminated)
