"""Scheduler of offloads: copies due or requested segments to object storage, one managed ledger after another.

To *offload* a segment, a sealed file of a ledger, is to copy it to object storage. The id of a segment is `ledger_id`
in the code, as in Pulsar. An *attempt* is one upload of a segment, named by a UUID. A *run* is the offload of several
segments of one ledger. A *sweep* (`ledger.tiering.object_cleaner`) deletes *unwanted* objects: objects of incomplete
attempts, and objects that no record names. No run waits for a sweep. A *direct segment* is a segment whose data object
(its bytes) a Spark task put into the bucket itself. An *index object* states where its entries are in the data object.

    prepare       record a new attempt; list the objects of an earlier attempt as unwanted; a sweep deletes them
    offload       write the objects, the index object last
    complete      mark the attempt as complete in the segment's record, unless the record names another attempt by now
    trim          delete the local data after the delay that the policy states (ledger.log.managed_ledger)

After a crash before the end of "complete", the record has an incomplete attempt. The next sweep deletes its objects.

Invariants
- A segment counts as offloaded only when its record in the metadata says so. Its objects alone do not count.
- If it is unknown whether a change of the record succeeded, the objects stay. The next attempt for the segment reads
  the record. If the earlier attempt is incomplete there, its objects become unwanted.
- A managed ledger has at most one run, waiting or running. A request for a second run is refused.
- If a segment fails, the run continues with the next segment. The status has the first failure. A segment that was
  deleted before its offload does not count as a failure.
- An offload of a segment waits for the index objects of earlier direct segments (`ledger.store.direct_indexes`).
- A sweep never deletes the objects of a running attempt.
- A copied store never deletes an object that its original wrote (`ledger.metadata.owner`), until `adopt` is requested.
- Before a sweep deletes objects that no record names, it records them as unwanted. A broker that lost the store cannot
  change the records. So it deletes no object of the next broker.
- A large message is stored as several entries, its *chunks*. If a segment has the first chunk of a message whose last
  chunk has not arrived, this segment and later segments are not offloaded yet. Reason: a new broker finds incomplete
  messages by a scan of local files. An offloaded segment of a store in a bucket has no local file.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import Fenced, LedgerError, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.policy import LedgerPolicy
from pyspark_ledger.ledger.log.unfinished_chunks import ChunkTable
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metadata.segment_records import attempts_of
from pyspark_ledger.ledger.metadata.unwanted_files import UnwantedObjects
from pyspark_ledger.ledger.metrics.latencies import LONG_BOUNDS, Latencies
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix, OffloadStatus
from pyspark_ledger.ledger.protocol.metrics import OffloadMetrics
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.direct_indexes import DirectIndexes
from pyspark_ledger.ledger.tiering.object_cleaner import ROUND_SECONDS, ObjectCleaner
from pyspark_ledger.ledger.tiering.offloaded_schemas import schemas_to_offload
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader, LocalSegment, OffloadCallbacks
from pyspark_ledger.ledger.tiering.policy import OffloadCandidate, before, due, first_left
from pyspark_ledger.ledger.tiering.recorded_segment import extra_metadata

_DAY_MS = 24 * 3600 * 1000
_STOP_SECONDS = 10
_log = logging.getLogger(__name__)


class _Cancelled(Refused):
    """A user or the end of the broker has cancelled the run."""


@dataclass
class _Run:
    """Offload of segments of one managed ledger."""

    name: str
    sizes: dict[int, int]
    """Size of each segment in bytes: first the size of its entries, from the start of its offload the size of its file.
    """
    state: str = "waiting"
    done: list[int] = field(default_factory=list)
    bytes_done: int = 0
    failure: LedgerError | None = None
    cancelled: bool = False
    swept: int = 0

    @property
    def bytes_total(self) -> int:
        return sum(self.sizes.values())

    @property
    def active(self) -> bool:
        return self.state in ("waiting", "running")


class OffloadScheduler:
    """All offloads of a store. Any thread may call any method."""

    def __init__(
        self,
        metadata: Metadata,
        settings: Settings,
        clock: Clock,
        *,
        store_id: str,
        offloader: Callable[[], LedgerOffloader],
        ledger: Callable[[str], ManagedLedger],
        new_id: Callable[[], str],
        chunks: ChunkTable,
        batch_objects: Callable[[], set[uuid.UUID]],
        list_unneeded: Callable[[Callable[[], set[uuid.UUID]]], None],
    ) -> None:
        """Create the scheduler.

        `batch_objects` returns the attempts of data objects that unfinished batches need. `list_unneeded` records old
        data objects of tasks as unwanted. Its argument is a function that returns the attempts to keep.
        """
        self._batch_objects = batch_objects
        self._list_unneeded = list_unneeded
        self._listed_ms = 0
        self._metadata = metadata
        self._chunks = chunks
        self._settings = settings
        self._clock = clock
        self._store_id = store_id
        self._offloader = offloader
        self._ledger = ledger
        self._new_id = new_id
        self._arrival = threading.Condition()
        self._waiting: OrderedDict[str, _Run] = OrderedDict()
        self._runs: dict[str, _Run] = {}
        self._running: set[uuid.UUID] = set()
        self._offloaded_segments = self._offloaded_bytes = self._failures = 0
        self._latencies = Latencies(LONG_BOUNDS)
        self.direct = DirectIndexes(metadata, ledger, offloader)
        self.cleaner = ObjectCleaner(metadata, offloader, running=lambda: set(self._running), order=self.direct.order)
        self._indexes_due = self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread of the offloads and the thread that deletes objects."""
        self.cleaner.start(self._list_old)
        self._thread = threading.Thread(target=self._work, name="offload", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel all runs, and accept no further run.

        An upload to a bucket that does not answer is left behind: the process ends, and the next broker repeats it.
        """
        self.cleaner.stop()
        with self._arrival:
            self._stopped = True
            for run in self._runs.values():
                run.cancelled = True
            self._arrival.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
            if self._thread.is_alive():
                _log.warning("an upload has not ended after %d s; the next broker repeats it", _STOP_SECONDS)
        with self._arrival:
            for run in self._waiting.values():
                run.state = "cancelled"
            self._waiting.clear()
            self._arrival.notify_all()

    def consider(self, name: str) -> bool:
        """Queue a run for the segments that are due by the ledger's policy, unless the ledger has a run.

        Return whether a segment is due.
        """
        ids = self._due(name)
        with self._arrival:
            earlier = self._runs.get(name)
            if ids and not self._stopped and (earlier is None or not earlier.active):
                self._put(_Run(name, self._sizes(name, ids)))
        return bool(ids)

    def offload(self, request: OffloadPrefix) -> OffloadStatus:
        """Start a run, cancel it, or sweep, as requested. Return the status."""
        name = self._ledger(request.name).name
        if request.cancel:
            with self._arrival:
                run = self._runs.get(name)
                if run is not None and run.active:
                    run.cancelled = True
            return self.status(name)
        if request.sweep:
            return self._swept(name)
        if request.adopt:
            _log.info("%s: %d segments of the store's original are adopted", name, self._metadata.adopt_objects(name))
            return self.status(name)
        _ = self._offloader().driver  # this raises Refused if the broker has no offloader
        if request.seal:
            self._ledger(name).roll_over()
        found = self._candidates(name)
        end = self._ledger(name).snapshot.end
        ids = before(found, request.until or Position(end.ledger_id + 1, 0), name) if found else []
        ids = self._without_chunks(name, ids)
        with self._arrival:
            earlier = self._runs.get(name)
            if earlier is not None and earlier.active:
                raise Refused(
                    f"{name!r} is being offloaded already, segments {[*earlier.sizes]}",
                    hint="Wait for the offload, or cancel it",
                )
            if self._stopped:
                raise Unavailable("the broker is shutting down", hint="Connect again")
            run = _Run(name, self._sizes(name, ids))
            if ids:
                self._put(run)
            else:
                run.state, self._runs[name] = "done", run
        return self.status(name)

    def status(self, name: str) -> OffloadStatus:
        """Return the state of a ledger's newest run, and how many of the ledger's segments are in object storage."""
        ledger = self._ledger(name)
        found, run = self._candidates(ledger.name), self._runs.get(ledger.name)
        run = run or _Run(ledger.name, {}, "idle")
        attempts = dict(attempts_of(self._metadata.segments.of(ledger.name)))
        complete = [attempt for attempt in attempts.values() if attempt.complete]
        return OffloadStatus(
            ledger.name,
            run.state,
            first_left(found, ledger.snapshot.end),
            list(run.done),
            [ledger_id for ledger_id in run.sizes if ledger_id not in run.done],
            run.bytes_done,
            run.bytes_total,
            "" if run.failure is None else str(run.failure),
            run.swept,
            len(complete),
            sum(not attempt.local_deleted for attempt in complete),
            sum(bool(attempt.owner) for attempt in complete),
        )

    def metrics(self) -> OffloadMetrics:
        """Return the length of the queue, the running offload, and the counters since the start."""
        with self._arrival:
            running = next((run for run in self._runs.values() if run.state == "running"), _Run("", {}))
            return OffloadMetrics(
                len(self._waiting),
                running.name,
                running.bytes_done,
                running.bytes_total,
                self._offloaded_segments,
                self._offloaded_bytes,
                self._failures,
                self._latencies.state(),
            )

    def put_indexes(self, name: str) -> None:
        """Tell the background thread to put the index objects of a ledger's direct segments.

        Called after each commit that listed a direct segment, also after a repeated commit.
        """
        self.direct.add(self._ledger(name).name)
        with self._arrival:
            self._indexes_due = True
            self._arrival.notify_all()

    def round(self) -> None:
        """Put waiting index objects and perform all queued runs, on the calling thread."""
        self._put_waiting()
        while (run := self._next()) is not None:
            self._do(run)
            self._put_waiting()

    def _recorded(self) -> set[uuid.UUID]:
        """Return every attempt in a record, every running attempt, and the attempts that an unfinished batch needs.

        The records are read after the running attempts. So an attempt that completes during the call is not missed.
        """
        running = set(self._running) | self._batch_objects()
        return running | {attempt.attempt for *_, attempt in self._metadata.segments.attempts()}

    def _swept(self, name: str) -> OffloadStatus:
        """Delete all objects of this store that no record names.

        Return the status, with the number of attempts whose objects were deleted.
        """
        run, offloader = _Run(name, {}, "done"), self._offloader()
        until_ms = self._clock() - self._settings.stagingRetentionSeconds * 1000
        orphans, driver = offloader.orphans(self._store_id, self._recorded, until_ms), offloader.driver
        unneeded = (UnwantedObjects("", *orphan, driver) for orphan in orphans)
        self._metadata.unwanted.put_unneeded(unneeded, self._recorded)
        run.swept = self.cleaner.sweep(rested=False)
        self.cleaner.sweep_left()
        with self._arrival:
            earlier = self._runs.get(name)
            if earlier is None or not earlier.active:
                self._runs[name] = run
        return self.status(name)

    def _put(self, run: _Run) -> None:
        self._waiting[run.name] = self._runs[run.name] = run
        self._arrival.notify_all()

    def _next(self) -> _Run | None:
        with self._arrival:
            if not self._waiting:
                return None
            _, run = self._waiting.popitem(last=False)
            run.state = "running"
            return run

    def _work(self) -> None:
        _guarded("index objects of direct segments cannot be put yet", self.direct.add_marked)
        self._put_waiting()
        while True:
            with self._arrival:
                self._arrival.wait_for(lambda: self._stopped or self._waiting or self._indexes_due, ROUND_SECONDS)
                if self._stopped:
                    return
            self.round()

    def _list_old(self) -> None:
        """List old data objects of tasks as unwanted, once a day. Called by the thread of the cleaner."""
        if self._clock() - self._listed_ms >= _DAY_MS:
            self._listed_ms = self._clock()
            self._list_unneeded(self._recorded)

    def _put_waiting(self) -> None:
        """Put the index objects of the queued ledgers. Never raises."""
        self._indexes_due = False
        _guarded("index objects of direct segments cannot be put yet", self.direct.put_waiting)

    def _do(self, run: _Run) -> None:
        """Offload each segment of a run. Never raises: the status has the first error."""
        try:
            for ledger_id in run.sizes:
                try:
                    self._offload_segment(run, ledger_id)
                except LedgerError as error:
                    self._failed(run, ledger_id, error)
                except Exception as error:  # noqa: BLE001 — reported in the status; the run continues
                    _log.exception("%s: the offload of segment %d failed with an unexpected error", run.name, ledger_id)
                    self._failed(run, ledger_id, LedgerError(f"segment {ledger_id} of {run.name!r}: {error!r}"))
        finally:
            with self._arrival:
                run.state = "cancelled" if run.cancelled else "failed" if run.failure is not None else "done"
                self._arrival.notify_all()

    def _offload_segment(self, run: _Run, ledger_id: int) -> None:
        """Offload one segment and count it. Does nothing after a cancellation."""
        if run.cancelled:
            return
        try:
            if self._offloaded(run, ledger_id):
                run.done.append(ledger_id)
                self._offloaded_segments += 1
                self._offloaded_bytes += run.sizes[ledger_id]
            else:
                run.sizes[ledger_id] = 0  # offloaded earlier: there are no bytes to copy
        except (_Cancelled, Fenced) as stopped:
            run.cancelled = True
            _log.info("%s: the offload of segment %d stops: %s", run.name, ledger_id, stopped)
        except NotFound as gone:
            if self._is_listed(run.name, ledger_id):
                self._failed(run, ledger_id, gone)
            else:
                _log.info("%s: segment %d was deleted before its offload", run.name, ledger_id)

    def _failed(self, run: _Run, ledger_id: int, error: LedgerError) -> None:
        _log.warning("%s: the offload of segment %d failed: %s", run.name, ledger_id, error)
        run.failure = run.failure or error
        self._failures += 1

    def _offloaded(self, run: _Run, ledger_id: int) -> bool:
        """Record an attempt and upload the segment. Return False if the segment was offloaded already."""
        self._put_waiting()
        log, offloader = self._ledger(run.name), self._offloader()
        self.direct.put(run.name)  # index objects are put in the order of the segments
        log.require_indexes(ledger_id)
        attempt = uuid.UUID(self._new_id())
        self._running.add(attempt)
        try:
            local = log.prepare_offload(ledger_id, OffloadAttempt(attempt, offloader.driver))
            self.cleaner.wake()  # the objects of an earlier attempt are unwanted now
            if local is None:
                return False
            with self._latencies.timed():
                self._copy(run, log, offloader, attempt, local)
        finally:
            self._running.discard(attempt)
        return True

    def _copy(
        self, run: _Run, log: ManagedLedger, offloader: LedgerOffloader, attempt: uuid.UUID, local: LocalSegment
    ) -> None:
        run.sizes[local.ledger_id], done_before = local.file_bytes, run.bytes_done

        def progress(done: int) -> None:
            run.bytes_done = done_before + done

        try:
            extra = extra_metadata(self._metadata, run.name)
            with_schemas = replace(local, schemas=schemas_to_offload(self._metadata, run.name))
            offloader.offload(with_schemas, attempt, extra, OffloadCallbacks(progress, lambda: run.cancelled))
        except (LedgerError, OSError) as error:
            self._clean(offloader, local.ledger_id, attempt)
            if run.cancelled:
                raise _Cancelled(f"the offload of {run.name!r} was cancelled") from error
            if isinstance(error, OSError):
                raise Unavailable(f"segment {local.ledger_id} of {run.name!r}: {error}") from error
            raise
        try:
            log.complete_offload(local.ledger_id, attempt)
        except (Refused, NotFound):
            # The record names another attempt, or the segment was deleted. So no record needs these objects.
            self._clean(offloader, local.ledger_id, attempt)
            raise

    def _clean(self, offloader: LedgerOffloader, ledger_id: int, attempt: uuid.UUID) -> None:
        try:
            offloader.delete_offloaded(ledger_id, attempt, offloader.driver)
        except LedgerError as error:
            _log.warning("objects of attempt %s at segment %d cannot be deleted yet: %s", attempt, ledger_id, error)

    def _due(self, name: str) -> list[int]:
        info = self._metadata.ledger(name).info
        policy = LedgerPolicy.of(info, *self._metadata.policies.of_ledger(name), self._settings)
        if not policy.offloads:
            return []
        ids = due(self._candidates(name), policy.offload_bytes, policy.offload_ms, self._clock())
        return self._without_chunks(name, ids)

    def _without_chunks(self, name: str, ids: list[int]) -> list[int]:
        """Return the segments before the first chunk of an unfinished message."""
        if not ids:
            return []
        snapshot = self._ledger(name).snapshot
        floor = self._chunks.floor(snapshot, snapshot.end, self._clock())
        return ids if floor == snapshot.end else [ledger_id for ledger_id in ids if ledger_id < floor.ledger_id]

    def _candidates(self, name: str) -> list[OffloadCandidate]:
        rows = self._metadata.segments.of(name)
        complete = {ledger_id for ledger_id, attempt in attempts_of(rows) if attempt.complete}
        listed = (row.listed() for row in rows)
        return [
            OffloadCandidate(
                segment.ledgerId, segment.entries, segment.size, segment.timestamp, segment.ledgerId in complete
            )
            for segment in listed
        ]

    def _sizes(self, name: str, ids: Sequence[int]) -> dict[int, int]:
        sizes = {candidate.ledger_id: candidate.size_bytes for candidate in self._candidates(name)}
        return {ledger_id: sizes.get(ledger_id, 0) for ledger_id in ids}

    def _is_listed(self, name: str, ledger_id: int) -> bool:
        return self._metadata.segments.get(name, ledger_id) is not None


def _guarded(what: str, work: Callable[[], object]) -> None:
    try:
        work()
    except Fenced:
        _log.info("%s: the store was taken over", what)
    except (LedgerError, OSError) as error:
        _log.warning("%s: %s", what, error)
    except Exception:  # noqa: BLE001 — logged, and the next round tries again
        _log.exception("%s: unexpected error", what)
