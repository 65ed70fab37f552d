"""Background tasks of the broker: roll over old segments, apply retention, and start due offloads.

A *segment* is one file of a ledger. To *roll over* is to seal the open segment and to begin the next one. *Retention*
deletes old segments, which is also called to *trim* the ledger.

A timer starts each round. A round checks the records of the ledgers that are due, whether they are open or not, by an
index of due times (`DueTimes`). It opens a ledger only to change it. The first round, and the round after
a change of policies, settings or the clock, checks all ledgers. Between two rounds, a ledger that has sealed a segment
is checked at once.

Invariants
- No segment is deleted without a policy.
- A failure at one ledger is logged, and the round continues with the other ledgers.
- If another broker has taken the store over, the round changes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from pyspark_ledger.ledger.clock import Clock, DueTimes, monotonic_ms
from pyspark_ledger.ledger.errors import Fenced, LedgerError, NotFound
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.policy import LedgerPolicy, effective
from pyspark_ledger.ledger.log.retention import RetainedSegment, expendable, local_expendable
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.object_cleaner import ROUND_SECONDS

_log = logging.getLogger(__name__)


class BackgroundTasks:
    """Rounds of background work on one store. `start` runs them on a thread."""

    def __init__(
        self,
        metadata: Metadata,
        settings: Settings,
        clock: Clock,
        *,
        opened: Callable[[str], ManagedLedger | None],
        ledger: Callable[[str], ManagedLedger],
        offload_due: Callable[[str], bool],
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
        self._again: set[str] = set()
        """Ledgers whose work failed or waits for a cursor or an offload. The next round checks them again."""
        self._checked: tuple[tuple[object, ...], int] | None = None
        """Settings and time of the last round. None if the next round must check every ledger."""
        self.due = DueTimes()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.failures = 0
        """Number of failures since the start. The next round repeats the failed work."""

    def start(self) -> None:
        """Run a round every two minutes, and check a ledger at once after it sealed a segment."""
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

    def recheck(self) -> None:
        """Check every ledger in the next round, because policies have changed."""
        with self._arrival:
            self._checked = None

    def round(self) -> None:
        """Roll over old segments, apply retention and queue offloads, of the ledgers that are due."""
        self._guarded("the list of deleted files", self._forget_deleted)
        now = self._clock()
        with self._arrival:
            basis = self._basis()
            # After a clock was set back, every due time is too late.
            if self._checked is None or self._checked[0] != basis or now < self._checked[1]:
                self._again.update(self._metadata.names())
            self._checked = basis, now
        names = self._taken(now)
        while names:
            for name in names:
                self._guarded(name, lambda name=name: self._maintain(name), again=name)  # type: ignore[misc]
            with self._arrival:
                # A ledger of `_again` waits for the next round.
                names, self._sealed = sorted({*self._sealed, *self.due.take(now)}), set()

    def _taken(self, now: int) -> list[str]:
        with self._arrival:
            names = sorted({*self._again, *self._sealed, *self.due.take(now)})
            self._again, self._sealed = set(), set()
        return names

    def _basis(self) -> tuple[object, ...]:
        """Return the settings on which due times depend."""
        return (*effective({}, {}, self._settings).values(), self._offloading())

    def _maintain(self, name: str) -> None:
        """Do the due work of a ledger, and compute the time of its next work. Open the ledger only to change it."""
        policy, rows = self._policy(name), self._metadata.segments.of(name)
        if self._roll_over(name, policy, rows):
            rows = self._metadata.segments.of(name)
        if self._trim(name, policy, _retained(rows)):
            rows = self._metadata.segments.of(name)
        is_waiting = self._offload_due(name)
        now, segments = self._clock(), _retained(rows)
        times = next_times(segments, policy)
        if segments and not segments[-1].close_ms:
            times += policy.due_times(segments[-1].ledger_id, min(rows[-1].created_ms, now))
        # A cursor, an offload or an unfinished message keeps the segments that are due.
        is_waiting = is_waiting or bool(expendable(segments, _size(segments), None, policy, now))
        self._wait(name, times, now, is_waiting=is_waiting)

    def _wait(self, name: str, times: list[int], now: int, *, is_waiting: bool) -> None:
        if is_waiting or any(due_ms <= now for due_ms in times):
            with self._arrival:
                self._again.add(name)
        for due_ms in times:
            if due_ms > now:
                self.due.put(name, due_ms)

    def _maintain_open(self, name: str) -> None:
        """Trim an open ledger after it has sealed a segment, and queue its due offloads."""
        ledger = self._ledger(name)
        if ledger.may_trim():
            ledger.trim()
        is_waiting = self._offload_due(name)
        now, policy = self._clock(), self._policy(name)
        # The earlier segments have their due times already.
        sealed = RetainedSegment(0, 1, 0, max(now, 1))
        self._wait(name, next_times([sealed], policy), now, is_waiting=is_waiting or ledger.is_overdue())

    def _policy(self, name: str) -> LedgerPolicy:
        info = self._metadata.ledger(name).info
        return LedgerPolicy.of(info, *self._metadata.policies.of_ledger(name), self._settings)

    def _roll_over(self, name: str, policy: LedgerPolicy, rows: Sequence[SegmentRecord]) -> bool:
        """Seal the open segment of a ledger if it is too old. Open the ledger for this if necessary.

        Return whether the ledger's segments may have changed.
        """
        ledger = self._opened(name)
        if ledger is not None:
            return ledger.roll_over_if_due()
        last = rows[-1] if rows and not rows[-1].listed().timestamp else None
        if last is None or not policy.is_due(last.ledger_id, self._clock() - last.created_ms):
            return False
        # In a local store the first use of a ledger seals the segment that an earlier broker left open.
        self._ledger(name).roll_over_if_due()
        return True

    def _trim(self, name: str, policy: LedgerPolicy, segments: Sequence[RetainedSegment]) -> bool:
        """Open and trim one ledger if its record shows a segment or a local copy to delete. Return whether it does."""
        slowest, now = self._metadata.cursors.slowest(name), self._clock()
        found = expendable(segments, _size(segments), slowest, policy, now) or local_expendable(segments, policy, now)
        if found:
            self._ledger(name).trim()
        return bool(found)

    def _run(self) -> None:
        interval_ms = ROUND_SECONDS * 1000
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
                self._guarded(name, lambda name=name: self._maintain_open(name), again=name)  # type: ignore[misc]

    def _guarded(self, what: str, work: Callable[[], object], again: str = "") -> None:
        """Do the work, and log its failure. The next round repeats the failed work of the ledger `again`."""
        try:
            work()
        except Fenced:
            _log.info("%s: another broker has taken over the store and its background tasks", what)
        except NotFound as gone:
            _log.info("%s: %s", what, gone)
        except (LedgerError, OSError) as error:
            self._fail(again)
            _log.warning("the background tasks of %s failed; the next round repeats them: %s", what, error)
        except Exception:  # noqa: BLE001 — logged, and the round continues with the other ledgers
            self._fail(again)
            _log.exception("the background tasks of %s failed with an unexpected error", what)

    def _fail(self, again: str) -> None:
        self.failures += 1
        if again:
            with self._arrival:
                self._again.add(again)


def next_times(segments: Sequence[RetainedSegment], policy: LedgerPolicy) -> list[int]:
    """Return the times at which sealed segments expire, are offloaded, or lose their local copies."""
    sealed = [segment for segment in segments if segment.close_ms]
    times = [sealed[0].close_ms + policy.retention_ms + 1] if sealed and policy.retention_ms >= 0 else []
    if policy.offload_ms >= 0:
        times += [segment.close_ms + policy.offload_ms for segment in sealed if not segment.offloaded][:1]
    if policy.offload_lag_ms >= 0:
        attempts = (segment.attempt for segment in sealed if segment.attempt is not None and segment.offloaded)
        copies = [attempt.completed_ms for attempt in attempts if not attempt.local_deleted]
        times += [min(copies) + policy.offload_lag_ms] if copies else []
    return times


def _retained(rows: Iterable[SegmentRecord]) -> list[RetainedSegment]:
    listed = (row.listed() for row in rows)
    return [
        RetainedSegment(part.ledgerId, part.entries, part.size, part.timestamp, OffloadAttempt.of(part))
        for part in listed
    ]


def _size(segments: Iterable[RetainedSegment]) -> int:
    return sum(segment.size_bytes for segment in segments)
