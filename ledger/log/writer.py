"""Writer of one log: writes, syncs and acknowledges groups, as the append queue tells it (`ledger.log.append_queue`).

The write stage puts a stamp before each entry of a group of appends, and writes the group. The sync stage syncs the
file and checks that this broker still owns the store. Then it moves the acknowledged end, publishes a new snapshot to
readers and completes the futures, in this order.

- *stamp*: the time at which the broker wrote an entry, and the number of rows up to its end.
- *acknowledged end*: the end of the entries that were acknowledged to their producers.
- *epoch*: a number that rises with each start of a broker of the store. A broker that finds a higher epoch has lost the
  store.
- *run*: the output of one batch of a Spark query. *Rollover*: the open segment is sealed, and a new one is opened.

Invariants
- An entry is acknowledged after its sync, and after a check that this broker still owns the store. Exception: a
  ledger with the durability "os" acknowledges without a sync.
- A rollover takes effect when the metadata are changed. The metadata list a new segment before its first entry is
  written. Exception: if a staged part (the file of a Spark task) becomes a segment, it is listed when it is complete
  (`ledger.log.staging.promotion`).
- A recovered segment is sealed, so no entry is added to it.
- After a write or sync error, the segment is sealed at its last acknowledged entry before anything else is written.
  Its unacknowledged entries are written once more, in order, to a new segment.
- A failed sync is never repeated on the same file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from time import perf_counter

import msgspec

from pyspark_ledger.ledger.errors import Fenced, LedgerError, Terminated, Unavailable
from pyspark_ledger.ledger.log.context import LogContext
from pyspark_ledger.ledger.log.deduplication import invalidated_error
from pyspark_ledger.ledger.log.pending import CheckedEntry, PendingAppend, PendingChange, PendingRun, Room, Written
from pyspark_ledger.ledger.log.segments.repeated_batches import DeletedRun, judge_queued, unwritten
from pyspark_ledger.ledger.log.segments.segment_list import SegmentList
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.staging.direct_run import DirectRun, ObjectsBehind
from pyspark_ledger.ledger.log.staging.promotion import (
    PromotedSegment,
    SegmentPlace,
    acknowledge_segments,
    direct_segments,
    link_segments,
)
from pyspark_ledger.ledger.logs.batch import BatchId, in_batch
from pyspark_ledger.ledger.logs.steps import log_step
from pyspark_ledger.ledger.message.entry import BrokerStamp
from pyspark_ledger.ledger.message.run_marker import CommittedBatch, RunId, RunOrigin, RunSummary, encode_marker
from pyspark_ledger.ledger.metrics.append_counter import AppendCounter
from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.commits import CommittedRun
from pyspark_ledger.ledger.segment.writer import SegmentWriter, StampedEntry

Settled = Callable[[bool], list[PendingAppend]]
"""Function that waits until all written groups are synced, and returns the appends to write again, in order.

If its argument is true, because the segment is broken, the groups whose sync has not started are among them.
"""
_GROUP_BYTES_MAX = 64 * 1024 * 1024
_RUN_SLICE_ENTRIES = 256
_log = logging.getLogger(__name__)


class LogWriter:
    """Writer of one log. It calls `publish` with every new snapshot that readers may see."""

    def __init__(self, name: str, context: LogContext, publish: Callable[[LogSnapshot], None]) -> None:
        self.list, self._open = SegmentList.open(name, context)
        self.name = name
        self.given_up: LedgerError | None = None
        """Unexpected error that closed the log for writes, or None while the log accepts appends."""
        self._context = context
        self._publish = publish
        # A change of sealed segments may publish a snapshot during a sync. No older snapshot may follow a newer one.
        self._publishing = threading.Lock()
        snapshot = self.list.snapshot(self._open)
        self._stamp = BrokerStamp(snapshot.last_timestamp_ms(), snapshot.rows)
        self.appended = AppendCounter(snapshot.rows)
        self.append_latencies, self.sync_latencies = Latencies(), Latencies()
        self._failure: LedgerError | None = None
        self._unsealed = False
        # If the pool of sync threads limits the size of a sync, a group must fit into one sync.
        self._group_bytes = context.sync_pool.sync_bytes or _GROUP_BYTES_MAX
        publish(snapshot)

    @property
    def opened(self) -> SegmentWriter | None:
        """The open segment, or None."""
        return self._open

    def close(self) -> None:
        """Seal the open segment, after the queue has completed all items. May be called again. Never raises.

        If another broker has taken the store over or the disk fails, the segment stays open, and the next broker
        recovers it. In a store in a bucket the segment also stays open, and the next broker appends to it.
        """
        if self._context.durability.in_bucket:
            self._close_open()
        else:
            self._seal_acknowledged()

    def give_up(self, error: LedgerError) -> None:
        """Seal the open segment at its last acknowledged entry. No group is in flight, and no group follows.

        Never raises. In a store in a bucket the segment stays open, and the next broker appends to it. Reason: the
        caller may be the thread that acknowledges objects of the bucket's log. A seal would wait for this thread for
        ever.
        """
        self.given_up = error
        if self._open is not None:
            self._open.given_up = True
        self.close()

    def _seal_acknowledged(self) -> None:
        log, self._open = self._open, None
        if log is None:
            return
        try:
            self._require_whole()
            if log.given_up:
                log.forget_unacknowledged()
            self.list.seal(log)
            self._publish(self.list.snapshot(None))
        except (OSError, LedgerError) as error:
            _log.warning("%s is closed without a seal: %s", self.name, error)
            log.close()
        except Exception:  # noqa: BLE001 — callers that wait for the close must return
            _log.exception("%s is closed without a seal after an unexpected error", self.name)
            log.close()

    # Write stage.

    def room(self) -> Room:
        """Return the free room of the open segment, or the room of a new segment if none is open."""
        policy, log = self.list.policy, self._open
        if log is None:
            return Room(policy.entries_max, min(policy.size_max, self._group_bytes))
        entries, size = policy.left(log.ledger_id, log.entries, log.size, log.age(self._context.clock()))
        return Room(entries, min(size, self._group_bytes))

    def is_writable(self) -> bool:
        """Return whether the open segment accepts the next group."""
        log = self._open
        if log is None or self._is_broken():
            return False
        return not self.list.policy.is_full(log.ledger_id, log.entries, log.size, log.age(self._context.clock()))

    def write(self, group: list[PendingAppend], settled: Settled) -> Written | None:
        """Write a group. If the open segment has failed, all unsynced appends move to a new segment first.

        Returns None if all appends of the group failed.
        """
        while group:
            try:
                if not self.is_writable():
                    group = settled(self._is_broken()) + group
                    self._make_writable()
                group = _still_valid(group, self.name)
                return self._write_group(group) if group else None
            except Exception as error:  # noqa: BLE001 — reported to the waiting futures
                group = self._failed(self._open, group, error)
        return None

    def _failed(
        self, log: SegmentWriter | None, group: list[PendingAppend], error: Exception, unknown: str = ""
    ) -> list[PendingAppend]:
        """Complete the appends of a failed write or sync. Return, in order, the appends to write to a new segment.

        If the disk has failed, an append is tried once more. After any other error it fails at once. `unknown` is added
        to the message of an unexpected error.
        """
        if isinstance(error, OSError) or (isinstance(error, LedgerError) and log is not None and log.failed):
            self._give_up(error)
            _fail([item for item in group if item.retried], _failed_twice(self.name, error))
            retries = [item for item in group if not item.retried]
            for item in retries:
                item.retried = True
            return retries
        if not isinstance(error, LedgerError):
            _log.error("%s: an append failed with an unexpected error", self.name, exc_info=error)
            self._give_up(error)
            error = Unavailable(f"append to {self.name!r} failed: {error!r}{unknown}")
        _fail(group, error)
        return []

    def commit_run(self, run: PendingRun) -> None:
        """Append a run, unless the log contains its batch already. No other group is in flight."""
        try:
            with in_batch(run.batch or BatchId.of_write(run.request.query, run.request.batch)):
                committed = self._run_or_move_on(run)
            run.future.set_result(committed)
        except LedgerError as error:
            run.fail(error)
        except Exception as error:  # noqa: BLE001 — reported to the waiting future
            _log.exception("%s: a commit failed with an unexpected error", self.name)
            run.fail(Unavailable(f"the commit of a run to {self.name!r} failed: {error!r}"))

    def make_change(self, change: PendingChange) -> None:
        """Perform a change of the log. If the change is `settled`, no group is in flight."""
        try:
            self._require_whole()
            change.future.set_result(change.change())
        except LedgerError as error:
            change.fail(error)
        except OSError as error:
            change.fail(Unavailable(f"{self.name!r}: {error}", hint="Check the disk of the store"))
        except Exception as error:  # noqa: BLE001 — reported to the waiting future
            _log.exception("%s: a change failed with an unexpected error", self.name)
            change.fail(Unavailable(f"a change of {self.name!r} failed: {error!r}"))

    def seal(self) -> None:
        """Seal the open segment, if there is one. Called within a change."""
        if self._open is not None:
            self._seal_open()

    def publish(self, log: SegmentWriter | None) -> None:
        """Publish a new snapshot with the acknowledged entries of `log`, the open segment."""
        with self._publishing:
            self._publish(self.list.snapshot(log))

    def refuse_terminated(self) -> None:
        """Raise Terminated if the log was terminated."""
        if self.list.terminated is not None:
            raise Terminated(
                f"{self.name!r} was terminated at {self.list.terminated} and accepts no append",
                hint="Append to another ledger. A terminated ledger can still be read",
            )

    # Sync stage.

    def begin_sync(self, written: list[Written]) -> int:
        """Return the file descriptor to sync for the groups, or -1 if no sync must start.

        An entry of a ledger with the durability "os" needs no sync. If an earlier sync of the file has failed, its
        later entries are never acknowledged.
        """
        if not _follows(written):
            return -1
        last = written[-1]
        fd = last.ledger.begin_sync(last.end, last.end_offset)
        if fd < 0:
            last.ledger.end_sync(None)
        return fd

    def end_sync(self, written: list[Written], error: OSError | None, seconds: float) -> None:
        """Record the result and the duration of the sync that `begin_sync` started."""
        self._context.sync_pool.latencies.observe(seconds)
        self.sync_latencies.observe(seconds)
        written[-1].ledger.end_sync(error)

    def settle(self, written: list[Written], failed: Exception | None) -> list[PendingAppend]:
        """Acknowledge the groups and complete their futures. Return the appends to retry in a new segment.

        Called after the sync and the check of the epoch. `failed` is the error of the sync or of the check.
        """
        log, group = written[0].ledger, [item for part in written for item in part.group]
        if not _follows(written):
            return group  # earlier entries of the file were not acknowledged and never will be
        if failed is None:
            try:
                log.acknowledge(written[-1].end)
                self.publish(log)
            except Exception as error:  # noqa: BLE001 — reported to the waiting futures
                failed = error
        if failed is not None:
            log.given_up = True  # a later sync must not acknowledge the entries
            if isinstance(failed, Fenced):
                self._failure = failed
            return self._failed(log, group, failed, "; it is unknown whether the append is in the log")
        for part in written:
            for item, first in zip(part.group, part.firsts, strict=True):
                item.future.set_result(first)
        self._count(written)
        return []

    def _count(self, written: list[Written]) -> None:
        """Count acknowledged groups."""
        now_s, latencies = perf_counter(), self._context.append_latencies
        for part in written:
            waited_s = now_s - part.group[0].queued_s
            latencies.observe(waited_s)
            self.append_latencies.observe(waited_s)
            entries = part.end - part.firsts[0].entry_id
            self.appended.add(len(part.group), entries, sum(item.size for item in part.group))

    def _is_broken(self) -> bool:
        """Return whether the open segment accepts no more entries. Then its unsynced entries move to a new segment."""
        log = self._open
        return self._failure is not None or self._unsealed or (log is not None and (log.given_up or log.failed))

    def _make_writable(self) -> None:
        """Create a new open segment. No group is in flight. Raises Fenced if the store was taken over."""
        if self._failure is not None:
            self._close_open()
            raise self._failure
        if self._unsealed:
            self._recover()
        self._require_epoch()
        self.refuse_terminated()
        if self._open is not None:
            self._seal_open(rolls_over=True)
        self._open = self.list.open_next(self._stamp.row_end)

    def _require_whole(self) -> None:
        """Raise Fenced if the store was taken over. Recover a segment whose seal failed."""
        if self._failure is not None:
            raise self._failure
        if self._unsealed:
            self._recover()
        self._require_epoch()

    def _require_epoch(self) -> None:
        """Raise Fenced if the store was taken over. Every later append then fails with the same error."""
        try:
            self._context.require_ours()
        except Fenced as fenced:
            self._failure = fenced
            raise

    def _write_group(self, group: list[PendingAppend]) -> Written:
        # This check keeps a fenced broker from writing to the log of the new owner. The epoch is checked again before
        # the acknowledgement.
        self._require_epoch()
        log = self._open
        assert log is not None  # noqa: S101 — for the type checker
        firsts, at = [], log.entries
        for item in group:
            firsts.append(Position(log.ledger_id, at))
            at += len(item.entries)
        self._write_stamped(log, [entry for item in group for entry in item.entries])
        return Written(log, group, firsts, at, log.end_offset)

    def _write_stamped(self, log: SegmentWriter, entries: Sequence[CheckedEntry]) -> None:
        timestamp, rows = max(self._stamp.timestamp_ms, self._context.clock()), self._stamp.row_end
        stamped = []
        for data, size, delivered in entries:
            rows += delivered
            stamped.append(StampedEntry(BrokerStamp(timestamp, rows), size, (data,)))
        log.write(stamped)
        self._stamp = BrokerStamp(timestamp, rows)

    def _run_or_move_on(self, run: PendingRun) -> CommittedRun:
        """Return the run if it is already committed. Otherwise write it.

        After a failed write or sync, write it once more, in a new segment.
        """
        request = run.request
        if run.parts or not run.entries:
            # An earlier promotion may have listed its segments in spite of its error. So the list is read again.
            self._require_whole()
        earlier = self.list.committed.get(request.query)
        deleted = self._deleted_run(request.query) if earlier is None and run.decided is None else None
        verdict = judge_queued(request, run.decided, earlier, self.name, deleted)
        run.decided = verdict.origin
        if run.decided is None:
            return unwritten(verdict, earlier)
        return msgspec.structs.replace(self._write_new(run), warning=verdict.warning)

    def _deleted_run(self, query: str) -> DeletedRun | None:
        """Return the newest batch of a query in the deleted ledger whose name this log has now."""
        found = self._context.metadata.manifests.deleted_run(self.name, query)
        return None if found is None else DeletedRun(*found, self.list.incarnation)

    def _write_new(self, run: PendingRun) -> CommittedRun:
        """Write a run that the log lacks."""
        request = run.request
        if run.fault is not None:
            raise run.fault
        if not request.parts:
            at = self.list.snapshot(self._open).end
            return self.list.record(run.committed(at, at, 0, 0, self._context.clock()))
        if run.direct is not None:
            return self._promote_direct(run, run.direct)
        if run.parts:
            promoted = self._promote_run(run)
            if promoted is not None:
                return promoted
        try:
            return self._write_run(run)
        except OSError as error:
            self._give_up(error)  # a run is tried once more, as an append is
        try:
            return self._write_run(run)
        except OSError as error:
            self._give_up(error)
            raise _failed_twice(self.name, error) from error

    def _promote_run(self, run: PendingRun) -> CommittedRun | None:
        """Promote the staged parts of a run to segments of the log. Return None if they must be copied instead."""
        self.refuse_terminated()
        if self._open is not None:
            self._seal_open()
        now = max(self._stamp.timestamp_ms, self._context.clock())
        before = BrokerStamp(now, self._stamp.row_end)
        ledger_ids = self._context.metadata.allocate_ledger_ids(len(run.parts))
        place = SegmentPlace(self._context.directory, self._context.store_id, self.list.incarnation)
        started_s = perf_counter()
        with ExitStack() as locks:
            try:
                segments = link_segments(run, ledger_ids, place, before, locks)
                self._require_epoch()
            except BaseException as error:
                self._abandon(ledger_ids, error)
                if isinstance(error, OSError):
                    return None
                raise
            seconds = perf_counter() - started_s
            return self._list_segments(run, segments, before, seconds)

    def _promote_direct(self, run: PendingRun, direct: DirectRun) -> CommittedRun:
        """Turn the data objects of a run into segments.

        Raises ObjectsBehind if the log has a segment with a higher id. Reason: appends wait for a queued run, and must
        not wait for copies.
        """
        self.refuse_terminated()
        started_s = perf_counter()
        if not direct.follows(self.list.highest_id):
            if not direct.copies:
                raise ObjectsBehind(f"{self.name!r} has listed segment {self.list.highest_id}")
            direct = direct.copied()  # rare: the log has listed another segment since the objects were copied
        if self._open is not None:
            self._seal_open()
        before = BrokerStamp(max(self._stamp.timestamp_ms, self._context.clock()), self._stamp.row_end)
        place = SegmentPlace(self._context.directory, self._context.store_id, self.list.incarnation)
        segments = direct_segments(direct, place, before)
        self._require_epoch()
        return self._list_segments(run, segments, before, perf_counter() - started_s, direct.copies)

    def _list_segments(
        self,
        run: PendingRun,
        segments: list[PromotedSegment],
        before: BrokerStamp,
        seconds: float,
        copied: int | None = None,
    ) -> CommittedRun:
        """Add promoted segments to the list of segments, and publish a snapshot with them. This commits their run.

        `copied` is the number of data objects that were copied. It is None if the parts are local files.
        """
        last = segments[-1].index
        first, end = Position(segments[0].index.ledger_id, 0), Position(last.ledger_id, last.count)
        entries = len(run.entries) if run.direct is None else run.direct.entries
        rows = last.row_end - before.row_end
        batch = run.committed(first, end, entries, rows, before.timestamp_ms)
        try:
            self.list.add(segments, batch)
        except BaseException:
            self._unsealed = True  # it is unknown whether the metadata list the segments, so the list is read again
            raise
        self._stamp = BrokerStamp(before.timestamp_ms, last.row_end)
        try:
            if run.direct is None:
                acknowledge_segments(segments, self._context.directory)
        except OSError as error:
            _log.warning(
                "%s: the acknowledged end could not be written to the sidecars of segments from %s: %s",
                self.name,
                first.ledger_id,
                error,
            )
        self.appended.add(1, entries, run.size)
        self._publish(self.list.snapshot(None))
        places = {"first": str(first), "end": str(end)}
        figures = {"entries": entries, "rows": rows, "seconds": round(seconds, 6), "segments": len(segments)}
        log_step("sync", ledger=self.name, copied=copied, **figures, **places)
        return CommittedRun(False, first, end, entries, rows)

    def _abandon(self, ledger_ids: list[int], error: BaseException) -> None:
        """Delete the files of segments that were not listed. If this fails, the next start deletes them."""
        _log.warning("%s: a batch is not promoted: %s", self.name, error)
        with suppress(LedgerError, OSError):
            self._context.metadata.abandon_ledger_ids(ledger_ids)
            self._context.unlisted(ledger_ids)

    def _write_run(self, run: PendingRun) -> CommittedRun:
        if not self.is_writable():
            self._make_writable()
        self._require_epoch()
        log, request = self._open, run.request
        assert log is not None  # noqa: S101 — for the type checker
        first, rows_before = Position(log.ledger_id, log.entries), self._stamp.row_end
        try:
            log.preallocate(run.size)
            for at in range(0, len(run.entries), _RUN_SLICE_ENTRIES):
                self._write_stamped(log, run.entries[at : at + _RUN_SLICE_ENTRIES])
            entries, rows = log.entries - first.entry_id, self._stamp.row_end - rows_before
            summary = RunSummary(request.query, request.batch, entries, rows, run.decided or RunOrigin())
            marker = encode_marker(RunId(request.txn_most, request.txn_least), summary, self._context.clock())
            self._write_stamped(log, [CheckedEntry(marker, len(marker), 0)])
            end = Position(log.ledger_id, log.entries)
            batch = run.committed(first, end, entries, rows, self._context.clock())
            seconds = self._make_durable(log, log.entries, batch)
            self.appended.add(1, entries, run.size)
        except BaseException:
            # A later sync must not acknowledge the entries of this incomplete run.
            log.given_up = True
            raise
        places = {"first": str(first), "end": str(end)}
        log_step("sync", ledger=self.name, entries=entries, rows=rows, seconds=round(seconds, 6), **places)
        return CommittedRun(False, first, end, entries, rows)

    def _make_durable(self, log: SegmentWriter, end: int, batch: CommittedBatch | None) -> float:
        """Sync the segment and acknowledge the entries before `end`. Return the seconds of the sync."""
        started_s = perf_counter()
        log.sync()
        seconds = perf_counter() - started_s
        self._context.sync_pool.latencies.observe(seconds)
        self.sync_latencies.observe(seconds)
        self._require_epoch()
        log.acknowledge(end)
        if batch is not None:
            self.list.remember(batch)
        self._publish(self.list.snapshot(log))
        return seconds

    def _give_up(self, error: BaseException) -> None:
        if self._open is not None:
            _log.warning("%s: %s; its segment will be sealed, appends continue in a new segment", self.name, error)
            self._open.given_up = True

    def _close_open(self) -> None:
        log, self._open = self._open, None
        if log is not None:
            log.close()

    def _seal_open(self, *, rolls_over: bool = False) -> None:
        """Seal the open segment at its last acknowledged entry. With `rolls_over`, the next segment follows at once.

        Raises Unavailable if the seal fails. Then the segment is recovered before the next append. Raises Fenced if
        another broker has taken the store over.
        """
        log, self._open = self._open, None
        assert log is not None  # noqa: S101 — for the type checker
        try:
            self._context.sync_pool.drain(log)
            log.forget_unacknowledged()
            self._stamp = BrokerStamp(self._stamp.timestamp_ms, log.index.row_end)
            self.list.seal(log, rolls_over=rolls_over)
        except Exception as error:
            log.close()
            if isinstance(error, Fenced):
                self._failure = error
                raise
            if not isinstance(error, (OSError, LedgerError)):
                _log.exception("%s: a seal failed with an unexpected error", self.name)
            self._unsealed, found = True, str(error) or repr(error)
            raise Unavailable(
                f"segment {log.ledger_id} of {self.name!r} cannot be sealed: {found}",
                hint="Repair the store's disk. The next append recovers the acknowledged entries and continues",
            ) from error
        self._publish(self.list.snapshot(None))

    def _recover(self) -> None:
        """Read the segment list from the metadata, and recover and seal the segment whose seal failed.

        A new broker does the same when it opens the log. Raises Unavailable if the disk fails.
        """
        deduplication, highest = self.list.deduplication, self.list.highest_id
        try:
            self.list = SegmentList.recover(self.name, self._context, deduplication)
        except OSError as error:
            raise Unavailable(f"{self.name!r} cannot be recovered: {error}", hint="Repair the store's disk") from error
        self.list.highest_id = max(self.list.highest_id, highest)
        self._unsealed = False
        snapshot = self.list.snapshot(None)
        self._publish(snapshot)
        self._stamp = BrokerStamp(self._stamp.timestamp_ms, snapshot.rows)


def _follows(written: list[Written]) -> bool:
    """Return whether all earlier entries of the groups' segment are acknowledged."""
    return written[0].firsts[0].entry_id == written[0].ledger.index.count


def _still_valid(group: list[PendingAppend], name: str) -> list[PendingAppend]:
    """Return the appends whose sequence ids are still valid. Fail the other appends with `Unavailable`."""
    invalidated = [item for item in group if item.claim is not None and not item.claim.valid]
    if not invalidated:
        return group
    _fail(invalidated, invalidated_error(name))
    # If an append failed, the later sequence ids of its producers are invalid, too.
    return _still_valid([item for item in group if item not in invalidated], name)


def _failed_twice(name: str, error: BaseException) -> Unavailable:
    return Unavailable(f"append to {name!r} failed twice: {error}", hint="Check the disk of the store")


def _fail(group: list[PendingAppend], error: LedgerError) -> None:
    for item in group:
        item.fail(error)
