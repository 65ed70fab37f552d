"""Background tasks of the broker: roll over old segments, apply retention, and start due offloads.

A *segment* is one file of a ledger. To *roll over* is to seal the open segment and to begin the next one. *Retention*
deletes old segments, which is also called to *trim* the ledger.

A timer starts each round. A round rolls over each open segment that is too old. Then it checks the record of each
ledger whose policy allows a deletion or an offload. It opens a ledger only to delete a segment. Between two rounds, a
ledger that has sealed a segment is checked at once.

Invariants
- No segment is deleted without a policy.
- A failure at one ledger is logged, and the round continues with the other ledgers.
- If another broker has taken the store over, the round changes nothing.
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
    """Rounds of background work on one store. `start` runs them on a thread."""

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
        self.failures = 0
        """Number of failures since the start. The next round repeats the failed work."""

    def start(self) -> None:
        """Run a round every `retentionCheckIntervalInSeconds`, and check a ledger at once after it sealed a segment."""
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()

    def sealed(self, name: str) -> None:
        """Record that a managed ledger has sealed a segment, so that the ledger is checked at once.

        Never blocks, because the thread that writes the log calls this method.
        """
        with self._arrival:
            self._sealed.add(name)
            self._arrival.notify()

    def stop(self) -> None:
        """Wait for the end of a running round, and start no further round."""
        with self._arrival:
            self._stopped = True
            self._arrival.notify()
        if self._thread is not None:
            self._thread.join()

    def round(self) -> None:
        """Roll over old segments, apply retention and queue due offloads."""
        for ledger in list(self._opened()):
            self._guarded(ledger.name, ledger.roll_over_if_due)
        self._guarded("the list of deleted files", self._forget_deleted)
        with self._arrival:
            self._sealed.clear()
        stated = self._metadata.policies.scopes()
        if self._default_keeps and not stated:
            return
        for name in self._metadata.names():
            if not self._default_keeps or not stated.keys().isdisjoint((namespace_of(name), *scopes_of(name))):
                self._guarded(name, lambda name=name: self._maintain(name))  # type: ignore[misc]

    @property
    def _default_keeps(self) -> bool:
        """Whether the default policies never delete a segment, offload a segment or delete a local copy."""
        settings = self._settings
        return (
            settings.defaultRetentionTimeInMinutes < 0
            and settings.defaultRetentionSizeInMB < 0
            and not settings.deleteAfterPublish
            and not self._offloading()
        )

    def _maintain(self, name: str) -> None:
        self._trim(name)
        self._offload_due(name)

    def _maintain_open(self, name: str) -> None:
        """Trim an open ledger after it has sealed a segment, and queue its due offloads."""
        ledger = self._ledger(name)
        if ledger.may_trim():
            ledger.trim()
        self._offload_due(name)

    def _trim(self, name: str) -> None:
        """Open and trim one ledger if its record shows a segment or a local copy to delete."""
        info = self._metadata.ledger(name).info
        policy = LedgerPolicy.of(info, *self._metadata.policies.of_ledger(name), self._settings)
        segments = [
            RetainedSegment(part.ledgerId, part.entries, part.size, part.timestamp, OffloadAttempt.of(part))
            for part in (row.listed() for row in self._metadata.segments.of(name))
        ]
        now = self._clock()
        size, slowest = sum(segment.size_bytes for segment in segments), self._metadata.cursors.slowest(name)
        if expendable(segments, size, slowest, policy, now) or local_expendable(segments, policy, now):
            self._ledger(name).trim()

    def _run(self) -> None:
        interval_ms = self._settings.retentionCheckIntervalInSeconds * 1000
        # A sealed segment wakes the thread early and does not move the due time. So a busy store has rounds too.
        due_ms = monotonic_ms() + interval_ms
        while True:
            with self._arrival:
                left = max(due_ms - monotonic_ms(), 0)
                self._arrival.wait_for(lambda: self._stopped or self._sealed, left / 1000)
                if self._stopped:
                    return
                names, self._sealed = self._sealed, set()
            if monotonic_ms() >= due_ms:
                self._guarded("the store", self.round)
                due_ms = monotonic_ms() + interval_ms
            for name in names:
                self._guarded(name, lambda name=name: self._maintain_open(name))  # type: ignore[misc]

    def _guarded(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Fenced:
            _log.info("%s: another broker has taken over the store and its background tasks", what)
        except NotFound as gone:
            _log.info("%s: %s", what, gone)
        except (LedgerError, OSError) as error:
            self.failures += 1
            _log.warning("the background tasks of %s failed; the next round repeats them: %s", what, error)
        except Exception:  # noqa: BLE001 — logged, and the round continues with the other ledgers
            self.failures += 1
            _log.exception("the background tasks of %s failed with an unexpected error", what)
