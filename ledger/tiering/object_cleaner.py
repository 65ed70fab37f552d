"""Cleaning of buckets: a thread of its own deletes the objects that no segment needs.

*Unwanted* objects are listed in the metadata: those of removed segments and of replaced attempts. An *attempt* is one
upload of a segment, named by a UUID. A *left* attempt was interrupted by a crash, so its record is incomplete.

Rules
- No offload and no caller waits for this thread. `stop` does not wait for a bucket that does not answer.
- The offloader gives the requests of a deletion short time limits. A round spends at most a minute on each bucket.
- After a failure, the bucket rests: one minute, then twice as long each time, at most an hour. Others go on.
- The objects of a running attempt are never deleted.
- After `stop`, the thread does not touch the metadata, which may be closed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.errors import Fenced, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.metadata.offload_records import Driver
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metadata.segment_records import attempts_of
from pyspark_ledger.ledger.metadata.unwanted_files import UnwantedObjects
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader

ROUND_MS = 60_000
"""Time that a round spends on one bucket before it turns to the next bucket."""
ROUND_SECONDS = 120
"""Interval at which a store looks for work in the background."""
_REST_MS, _REST_MS_MAX = 60_000, 3_600_000
_STOP_SECONDS = 2.0
# Properties of a driver that name its bucket or directory.
_PLACE = ("bucket", "prefix", "serviceEndpoint", "address")
_log = logging.getLogger(__name__)


class _Rest(NamedTuple):
    """Rest of a bucket after `failures` failures in a row, until `until_ms`."""

    failures: int
    until_ms: int


class ObjectCleaner:
    """Cleaner of one store's objects in all buckets. Any thread may call any method."""

    def __init__(
        self,
        metadata: Metadata,
        offloader: Callable[[], LedgerOffloader],
        *,
        running: Callable[[], Collection[uuid.UUID]],
        order: AbstractContextManager[object],
        monotonic: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Create the cleaner.

        `running` returns the attempts that are being uploaded. `order` is held during a deletion in the current bucket,
        so that no index object of a removed segment is put after it.
        """
        self._metadata = metadata
        self._offloader = offloader
        self._running = running
        self._order = order
        self._monotonic = monotonic
        self._rests: dict[tuple[str, ...], _Rest] = {}
        self._arrival = threading.Condition()
        self._metadata_open = threading.Lock()
        self._stopped = self._woken = False
        self._thread: threading.Thread | None = None

    def start(self, before_round: Callable[[], None]) -> None:
        """Start the thread. It first deletes the objects of left attempts. It calls `before_round` in each round."""

        def work() -> None:
            self._guarded(self.sweep_left)
            while not self._stopped:
                self._guarded(before_round)
                self._guarded(self.sweep)
                with self._arrival:
                    self._arrival.wait_for(lambda: self._stopped or self._woken, ROUND_SECONDS)
                    self._woken = False

        self._thread = threading.Thread(target=work, name="cleaner", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Begin the next round soon, because objects have become unwanted. Never blocks."""
        with self._arrival:
            self._woken = True
            self._arrival.notify_all()

    def stop(self) -> None:
        """Begin no further deletion. Does not wait for the end of a request that is not answered."""
        with self._metadata_open, self._arrival:
            self._stopped = True
            self._arrival.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def sweep(self, *, rested: bool = True) -> int:
        """Delete the objects that the metadata list as unwanted. Return the number of their attempts.

        With `rested`, leaves out buckets that rest after a failure.
        """
        with self._metadata_open:
            unwanted = [] if self._stopped else self._metadata.unwanted.all()
        return self._delete(unwanted, lambda _: True, self._metadata.unwanted.remove, rested=rested)

    def sweep_left(self) -> None:
        """Delete the objects of left attempts.

        Such an attempt stays in the segment's record until the next attempt for this segment is recorded.
        """
        with self._metadata_open:
            attempts = [] if self._stopped else self._metadata.segments.attempts()
        left = [
            UnwantedObjects(name, at, found.attempt, found.driver) for name, at, found in attempts if not found.complete
        ]
        self._delete(left, self._is_left, lambda _: None, rested=True)

    def _is_left(self, objects: UnwantedObjects) -> bool:
        """Read the record of an attempt that is not running again: it may have been completed since the first read."""
        row = self._metadata.segments.get(objects.ledger, objects.ledger_id)
        found = [] if row is None else attempts_of([row])
        return any(attempt.attempt == objects.attempt and not attempt.complete for _, attempt in found)

    def _delete(
        self,
        unwanted: Iterable[UnwantedObjects],
        still: Callable[[UnwantedObjects], bool],
        deleted: Callable[[uuid.UUID], None],
        *,
        rested: bool,
    ) -> int:
        by_bucket: dict[tuple[str, ...], list[UnwantedObjects]] = {}
        for objects in unwanted:
            by_bucket.setdefault(_bucket_of(objects.driver), []).append(objects)
        count = 0
        for bucket, found in by_bucket.items():
            until = self._monotonic() + ROUND_MS
            for objects in found:
                rests = rested and self._monotonic() < self._rests.get(bucket, _Rest(0, 0)).until_ms
                if rests or self._monotonic() >= until:
                    break
                if objects.attempt in self._running():
                    continue
                with self._metadata_open:
                    if self._stopped:
                        return count
                    if not still(objects):
                        continue
                if not self._deleted(bucket, objects):
                    continue
                with self._metadata_open:
                    if self._stopped:
                        return count
                    deleted(objects.attempt)
                count += 1
        return count

    def _deleted(self, bucket: tuple[str, ...], objects: UnwantedObjects) -> bool:
        """Delete the objects of one attempt. Return False after an error, which is logged."""
        what = f"objects of segment {objects.ledger_id} of {objects.ledger}"
        try:
            offloader = self._offloader()
            with self._order if self._is_current(offloader, bucket) else nullcontext():
                offloader.delete_offloaded(objects.ledger_id, objects.attempt, objects.driver)
        except (Refused, NotFound) as error:  # of this attempt, and not of the bucket
            _log.warning("%s cannot be deleted yet: %s", what, error)
            return False
        except (LedgerError, OSError) as error:
            failures = self._rests.get(bucket, _Rest(0, 0)).failures
            rest_ms = min(_REST_MS << min(failures, 10), _REST_MS_MAX)
            self._rests[bucket] = _Rest(failures + 1, self._monotonic() + rest_ms)
            _log.warning("%s cannot be deleted yet, the bucket rests for %d s: %s", what, rest_ms // 1000, error)
            return False
        self._rests.pop(bucket, None)
        return True

    def _is_current(self, offloader: LedgerOffloader, bucket: tuple[str, ...]) -> bool:
        try:
            return _bucket_of(offloader.driver) == bucket
        except LedgerError:  # no bucket is configured
            return False

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Fenced:
            _log.info("objects are not deleted: the store was taken over")
        except (LedgerError, OSError) as error:
            _log.warning("objects cannot be deleted yet: %s", error)
        except Exception:  # noqa: BLE001 — logged, and the next round tries again
            if not self._stopped:
                _log.exception("objects cannot be deleted yet: unexpected error")


def _bucket_of(driver: Driver) -> tuple[str, ...]:
    """Return what names the bucket or directory of a driver. The region may differ for one bucket."""
    return (driver.name, *(driver.properties.get(name, "") for name in _PLACE))
