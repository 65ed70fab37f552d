"""What a broker does by itself: seal ledgers that have come of age, trim what retention lets go, offload what is due.

A round looks at every ledger that is open for its age, and at the record of every ledger whose policy lets anything go;
only one that has something to trim is opened for it. Rounds come by a timer, and at once after a ledger was sealed.

Invariants: nothing is trimmed where no policy is set; one ledger that fails is reported and the others go on; a store
that was taken over is left alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from pyspark_ledger.ledger.clock import Clock, monotonic_ms
from pyspark_ledger.ledger.errors import Fenced, LedgerError, NotFound
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.policy import LedgerPolicy
from pyspark_ledger.ledger.log.retention import RetainedSegment, expendable, local_expendable
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.policy_records import scopes_of
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.names import namespace_of
from pyspark_ledger.ledger.settings.broker import Settings

_log = logging.getLogger(__name__)


class BackgroundTasks:
    """The rounds of one store; `start` gives them a thread."""

    def __init__(
        self,
        metadata: Metadata,
        settings: Settings,
        clock: Clock,
        *,
        opened: Callable[[], Iterable[ManagedLedger]],
        ledger: Callable[[str], ManagedLedger],
        offload_due: Callable[[str], None],
        offloading: Callable[[], bool],
        forget_deleted: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._clock = clock
        self._opened = opened
        self._ledger = ledger
        self._offload_due = offload_due
        self._offloading = offloading
        self._forget_deleted = forget_deleted
        self._arrival = threading.Condition()
        self._sealed: set[str] = set()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Make a round every `retentionCheckIntervalInSeconds`, and look at a ledger that sealed one at once."""
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()

    def sealed(self, name: str) -> None:
        """A managed ledger has sealed a ledger. Waits for nothing: called by the thread that drains its queue."""
        with self._arrival:
            self._sealed.add(name)
            self._arrival.notify()

    def stop(self) -> None:
        """Let a round that runs come to its end, and make no other."""
        with self._arrival:
            self._stopped = True
            self._arrival.notify()
        if self._thread is not None:
            self._thread.join()

    def round(self) -> None:
        """Seal what is due, trim what may go."""
        for ledger in list(self._opened()):
            _guarded(ledger.name, ledger.roll_over_if_due)
        _guarded("what was deleted", self._forget_deleted)
        with self._arrival:
            self._sealed.clear()
        stated = self._metadata.policies.scopes()
        if self._default_keeps and not stated:
            return
        for name in self._metadata.names():
            if not self._default_keeps or not stated.keys().isdisjoint((namespace_of(name), *scopes_of(name))):
                _guarded(name, lambda name=name: self._look_after(name))  # type: ignore[misc]

    @property
    def _default_keeps(self) -> bool:
        """Whether nothing is to be done where nothing is stated: no trim, no offload, no local copy to be deleted."""
        settings = self._settings
        return (
            settings.defaultRetentionTimeInMinutes < 0
            and settings.defaultRetentionSizeInMB < 0
            and not settings.deleteAfterPublish
            and not self._offloading()
        )

    def _look_after(self, name: str) -> None:
        self._trim(name)
        self._offload_due(name)

    def _look_after_open(self, name: str) -> None:
        """The same of a ledger that has just sealed one, and knows by its sums what may go."""
        ledger = self._ledger(name)
        if ledger.may_trim():
            ledger.trim()
        self._offload_due(name)

    def _trim(self, name: str) -> None:
        """Trim one ledger if its record says that there is something to trim: it need not be open to know."""
        info = self._metadata.ledger(name).info
        policy = LedgerPolicy.of(info, *self._metadata.policies.of_ledger(name), self._settings)
        held = [
            RetainedSegment(part.ledgerId, part.entries, part.size, part.timestamp, OffloadAttempt.of(part))
            for part in (row.listed() for row in self._metadata.segments.of(name))
        ]
        now = self._clock()
        size, slowest = sum(ledger.size_bytes for ledger in held), self._metadata.cursors.slowest(name)
        if expendable(held, size, slowest, policy, now) or local_expendable(held, policy, now):
            self._ledger(name).trim()

    def _run(self) -> None:
        interval_ms = self._settings.retentionCheckIntervalInSeconds * 1000
        # A store in which ledgers are sealed all the time has its rounds, too.
        due_ms = monotonic_ms() + interval_ms
        while True:
            with self._arrival:
                left = max(due_ms - monotonic_ms(), 0)
                self._arrival.wait_for(lambda: self._stopped or self._sealed, left / 1000)
                if self._stopped:
                    return
                names, self._sealed = self._sealed, set()
            if monotonic_ms() >= due_ms:
                _guarded("the store", self.round)
                due_ms = monotonic_ms() + interval_ms
            for name in names:
                _guarded(name, lambda name=name: self._look_after_open(name))  # type: ignore[misc]


def _guarded(what: str, work: Callable[[], object]) -> None:
    try:
        work()
    except Fenced:
        _log.info("%s: the store was taken over, its upkeep is the taker's", what)
    except NotFound as gone:
        _log.info("%s: %s", what, gone)
    except (LedgerError, OSError) as error:
        _log.warning("the upkeep of %s failed and is tried again in the next round: %s", what, error)
    except Exception:  # noqa: BLE001 — the others go on, and a person reads of this one
        _log.exception("the upkeep of %s failed in a way that nobody foresaw", what)
