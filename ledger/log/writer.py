"""The writing end of a log: takes what the append queue gives it to the disk, and answers.

A group is stamped and written in the writing turn; in the syncing turn it is synced, the store's epoch is read again,
the committed end moves, a new snapshot is published, and only then the futures complete.

Invariants
- An acknowledged entry is synced, and was synced while this broker still owned the store.
- The metadata change is the commit point of every rollover; the new ledger is listed before its first entry.
- A ledger that was recovered is sealed and never written again.
- After a write or sync error the ledger is given up: sealed at its last acknowledged entry, before anything else is
  written. What it held beyond that goes to a new ledger, once and in order; a sync is never repeated on the same file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark_ledger.ledger.errors import Fenced, LedgerError, Terminated, Unavailable
from pyspark_ledger.ledger.log.append_queue import (
    AppendQueue,
    CheckedEntry,
    Item,
    PendingAppend,
    PendingChange,
    PendingRun,
    Room,
)
from pyspark_ledger.ledger.log.deduplication import fallen
from pyspark_ledger.ledger.log.open_segment import OpenSegment
from pyspark_ledger.ledger.log.segment_list import LogContext, SegmentList
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.message.entry import BrokerStamp
from pyspark_ledger.ledger.message.run_marker import CommittedBatch, RunId, RunSummary, encode_marker
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.commits import CommittedRun
from pyspark_ledger.ledger.segment.writer import SegmentWriter, StampedEntry

_GROUP_BYTES_MAX = 64 * 1024 * 1024
_RUN_SLICE_ENTRIES = 256
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """A group in the open ledger, up to entry `end`, that waits for its sync."""

    ledger: OpenSegment
    group: list[PendingAppend]
    firsts: list[Position]
    end: int


class LogWriter:
    """Writes one log. `publish` is told of every snapshot that readers may see."""

    def __init__(self, name: str, context: LogContext, publish: Callable[[LogSnapshot], None]) -> None:
        self.list = SegmentList.recover(name, context)
        self.name = name
        self.given_up: LedgerError | None = None
        """Why the log takes nothing any more, if an error that nothing handled has ended it."""
        self._context = context
        self._publish = publish
        self._open: OpenSegment | None = None
        snapshot = self.list.snapshot(None)
        self._stamp = BrokerStamp(snapshot.last_timestamp_ms(), snapshot.rows)
        self._failure: LedgerError | None = None
        self._unsealed = False
        self._queue: AppendQueue[Written] = AppendQueue(context.executor, context.crew, self)
        publish(snapshot)

    @property
    def opened(self) -> OpenSegment | None:
        """The ledger that is being written."""
        return self._open

    def put(self, item: Item, *, here: bool = False) -> None:
        """Queue something; its future tells what became of it."""
        self._queue.put(item, here=here)

    def close(self) -> None:
        """Settle what was queued, then seal the open ledger. May be repeated; raises nothing.

        What cannot be sealed, because the store was taken over or the disk fails, is left as it is: whoever opens the
        log next recovers it.
        """
        self._queue.close(f"{self.name!r} is closed")
        self._seal_acknowledged()

    def give_up(self, error: LedgerError) -> None:
        """Seal the open ledger at its last acknowledged entry; nothing is in flight, nor will be. Raises nothing."""
        self.given_up = error
        if self._open is not None:
            self._open.given_up = True
        self._seal_acknowledged()

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
            log.let_go()
        except Exception:  # noqa: BLE001 — what waits for the end of the log must not wait for ever
            _log.exception("%s is closed without a seal, in a way that nobody foresaw", self.name)
            log.let_go()

    # In the writing turn.

    def room(self) -> Room:
        """What the open ledger still takes; that of a new one when there is none."""
        policy, log = self.list.policy, self._open
        if log is None:
            return Room(policy.entries_max, min(policy.size_max, _GROUP_BYTES_MAX))
        entries, size = log.left(policy, self._context.clock())
        return Room(entries, min(size, _GROUP_BYTES_MAX))

    def items(self, written: list[Written]) -> list[PendingAppend]:
        """The appends of what was written, in order."""
        return [item for part in written for item in part.group]

    def write(self, group: list[PendingAppend]) -> Written | None:
        """Write a group; all that is not synced moves to a new ledger when the open one fails."""
        while group:
            try:
                if not self._is_writable():
                    group = (self._queue.reclaim() if self._is_broken() else self._queue.wait_settled()) + group
                    self._make_writable()
                group = _standing(group, self.name)
                return self._write_group(group) if group else None
            except OSError as error:
                self._give_up(error)
                group = _tried_once(group, self.name, error)
            except LedgerError as error:
                if self._open is not None and self._open.file.failed:
                    self._give_up(error)
                    group = _tried_once(group, self.name, error)
                    continue
                _fail(group, error)
                break
            except Exception as error:  # noqa: BLE001 — whoever waits must hear of it, whatever it is
                _log.exception("%s: an append failed in a way that nobody foresaw", self.name)
                self._give_up(error)
                _fail(group, Unavailable(f"append to {self.name!r} failed: {error!r}"))
                break
        return None

    def commit_run(self, run: PendingRun) -> None:
        """Append a run, unless its batch is in the log already; nothing else is in flight."""
        try:
            run.future.set_result(self._run_or_move_on(run))
        except LedgerError as error:
            run.fail(error)
        except Exception as error:  # noqa: BLE001 — as above
            _log.exception("%s: a commit failed in a way that nobody foresaw", self.name)
            run.fail(Unavailable(f"the commit of a run to {self.name!r} failed: {error!r}"))

    def make_change(self, change: PendingChange) -> None:
        """Make a change of the log: see `ledger.log.changes`. Nothing is in flight."""
        try:
            self._require_whole()
            change.future.set_result(change.change())
        except LedgerError as error:
            change.fail(error)
        except OSError as error:
            change.fail(Unavailable(f"{self.name!r}: {error}", hint="Look at the disk of the store"))
        except Exception as error:  # noqa: BLE001 — as above
            _log.exception("%s: a change failed in a way that nobody foresaw", self.name)
            change.fail(Unavailable(f"a change of {self.name!r} failed: {error!r}"))

    def seal(self) -> None:
        """Within a change: seal the open ledger, if there is one."""
        if self._open is not None:
            self._seal_open()

    def publish(self) -> None:
        """Within a change: show readers what it made of the log."""
        self._publish(self.list.snapshot(self._open))

    def refuse_terminated(self) -> None:
        """Raise Terminated when nothing may be appended any more."""
        if self.list.terminated is not None:
            raise Terminated(
                f"{self.name!r} was terminated at {self.list.terminated}: nothing is appended to it any more",
                hint="Append to another ledger; this one can still be read",
            )

    # In the syncing turn.

    def file(self, written: list[Written]) -> SegmentWriter | None:
        """The file that holds what was written; None if what is before it was not acknowledged."""
        return written[0].ledger.file if _follows(written) else None

    def settle(self, written: list[Written], failed: Exception | None) -> list[PendingAppend]:
        """After the sync and a look at the epoch: acknowledge and answer; returns what has to go to a new ledger."""
        log, group = written[0].ledger, self.items(written)
        if not _follows(written):
            return group  # what is before it in the file was not acknowledged, nor may it ever be
        try:
            self._show(log, written[-1].end, failed)
        except OSError as error:
            self._give_up(error)
            return _tried_once(group, self.name, error)
        except LedgerError as error:
            log.given_up = True
            if log.file.failed:
                return _tried_once(group, self.name, error)
            if isinstance(error, Fenced):
                self._failure = error
            _fail(group, error)
        except Exception as error:  # noqa: BLE001 — as above
            _log.exception("%s: a sync failed in a way that nobody foresaw", self.name)
            log.given_up = True
            unknown = "whether it is in the log is not known"
            _fail(group, Unavailable(f"an append to {self.name!r} failed: {error!r}; {unknown}"))
        else:
            for part in written:
                for item, first in zip(part.group, part.firsts, strict=True):
                    item.future.set_result(first)
        return []

    def _show(self, log: OpenSegment, end: int, failed: Exception | None) -> None:
        """Let readers see all up to entry `end`, which is synced and ours; else raise why it is not."""
        if failed is not None:
            raise failed
        log.acknowledge(end)
        self._publish(self.list.snapshot(log))

    def _is_writable(self) -> bool:
        log = self._open
        return log is not None and not self._is_broken() and not log.is_full(self.list.policy, self._context.clock())

    def _is_broken(self) -> bool:
        """Whether what was written and not synced cannot stay where it is."""
        log = self._open
        return self._failure is not None or self._unsealed or (log is not None and (log.given_up or log.file.failed))

    def _make_writable(self) -> None:
        """An open ledger with room, where there was none; nothing is in flight. Raises Fenced after a take-over."""
        if self._failure is not None:
            self._let_go()
            raise self._failure
        if self._unsealed:
            self._recover()
        self._require_epoch()
        self.refuse_terminated()
        if self._open is not None:
            self._seal_open()
        self._open = self.list.open_next(self._stamp.row_end)

    def _require_whole(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._unsealed:
            self._recover()
        self._require_epoch()

    def _require_epoch(self) -> None:
        """Raise Fenced, now and ever after, when the store was taken over."""
        try:
            self._context.metadata.require_epoch(self._context.epoch)
        except Fenced as fenced:
            self._failure = fenced
            raise

    def _write_group(self, group: list[PendingAppend]) -> Written:
        # Asked again before the acknowledgement; here it keeps what a fenced broker is sent out of the taker's log.
        self._require_epoch()
        log = self._open
        assert log is not None  # noqa: S101 — told to the type checker
        firsts, at = [], log.written
        for item in group:
            firsts.append(Position(log.ledger_id, at))
            at += len(item.entries)
        self._write_stamped(log, [entry for item in group for entry in item.entries])
        return Written(log, group, firsts, at)

    def _write_stamped(self, log: OpenSegment, entries: Sequence[CheckedEntry]) -> None:
        timestamp, rows = max(self._stamp.timestamp_ms, self._context.clock()), self._stamp.row_end
        stamped = []
        for data, size, delivered in entries:
            rows += delivered
            stamped.append(StampedEntry(BrokerStamp(timestamp, rows), size, (data,)))
        log.write(stamped)
        self._stamp = BrokerStamp(timestamp, rows)

    def _run_or_move_on(self, run: PendingRun) -> CommittedRun:
        request = run.request
        earlier = self.list.committed.get(request.query)
        if earlier is not None and request.batch <= earlier.batch:
            return CommittedRun(True, earlier.first, earlier.end, earlier.entries, earlier.rows)
        try:
            return self._write_run(run)
        except OSError as error:
            self._give_up(error)
        try:
            return self._write_run(run)
        except OSError as error:
            self._give_up(error)
            raise _failed_twice(self.name, error) from error

    def _write_run(self, run: PendingRun) -> CommittedRun:
        if not self._is_writable():
            self._make_writable()
        self._require_epoch()
        log, request = self._open, run.request
        assert log is not None  # noqa: S101 — told to the type checker
        first, rows_before = Position(log.ledger_id, log.written), self._stamp.row_end
        try:
            log.make_room(run.size)
            for at in range(0, len(run.entries), _RUN_SLICE_ENTRIES):
                self._write_stamped(log, run.entries[at : at + _RUN_SLICE_ENTRIES])
            entries, rows = log.written - first.entry_id, self._stamp.row_end - rows_before
            summary = RunSummary(request.query, request.batch, entries, rows)
            marker = encode_marker(RunId(request.txn_most, request.txn_least), summary, self._context.clock())
            self._write_stamped(log, [CheckedEntry(marker, len(marker), 0)])
            end = Position(log.ledger_id, log.written)
            now = self._context.clock()
            batch = CommittedBatch(request.query, request.batch, first, end, entries, rows, now, request.once)
            self._make_durable(log, log.written, batch)
        except BaseException:
            # Whatever was written of this run must never be taken for acknowledged by the next sync.
            log.given_up = True
            raise
        return CommittedRun(False, first, end, entries, rows)

    def _make_durable(self, log: OpenSegment, end: int, batch: CommittedBatch | None = None) -> None:
        log.file.sync()
        self._require_epoch()
        log.acknowledge(end)
        if batch is not None:
            self.list.remember(batch)
        self._publish(self.list.snapshot(log))

    def _give_up(self, error: BaseException) -> None:
        if self._open is not None:
            _log.warning("%s: %s; its ledger is sealed and the log goes on in a new one", self.name, error)
            self._open.given_up = True

    def _let_go(self) -> None:
        log, self._open = self._open, None
        if log is not None:
            log.let_go()

    def _seal_open(self) -> None:
        """Seal the open ledger at its last acknowledged entry; if not even that is possible, it must be recovered."""
        log, self._open = self._open, None
        assert log is not None  # noqa: S101 — told to the type checker
        try:
            log.forget_unacknowledged()
            self._stamp = BrokerStamp(self._stamp.timestamp_ms, log.index.row_end)
            self.list.seal(log)
        except Exception as error:
            log.let_go()
            if isinstance(error, Fenced):
                self._failure = error
                raise
            if not isinstance(error, (OSError, LedgerError)):
                _log.exception("%s: a seal failed in a way that nobody foresaw", self.name)
            self._unsealed, found = True, str(error) or repr(error)
            raise Unavailable(
                f"ledger {log.ledger_id} of {self.name!r} can be neither written nor sealed: {found}",
                hint="Mend the store's disk: the next append recovers what was acknowledged and goes on",
            ) from error
        self._publish(self.list.snapshot(None))

    def _recover(self) -> None:
        """What a new broker would do: the list as the metadata has it, the ledger that was left open recovered."""
        deduplication = self.list.deduplication
        try:
            self.list = SegmentList.recover(self.name, self._context, deduplication)
        except OSError as error:
            raise Unavailable(f"{self.name!r} cannot be recovered: {error}", hint="Mend the store's disk") from error
        self._unsealed = False
        snapshot = self.list.snapshot(None)
        self._publish(snapshot)
        self._stamp = BrokerStamp(self._stamp.timestamp_ms, snapshot.rows)


def _follows(written: list[Written]) -> bool:
    """Whether all that is before it in its ledger is acknowledged."""
    return written[0].firsts[0].entry_id == written[0].ledger.index.count


def _tried_once(group: list[PendingAppend], name: str, error: BaseException) -> list[PendingAppend]:
    """Those that the disk has failed for the first time; the others are told that it was once too often."""
    _fail([item for item in group if item.tried], _failed_twice(name, error))
    again = [item for item in group if not item.tried]
    for item in again:
        item.tried = True
    return again


def _standing(group: list[PendingAppend], name: str) -> list[PendingAppend]:
    """Those that may be written; the others are told that one before them has failed."""
    fallen_ones = [item for item in group if item.admission is not None and not item.admission.standing]
    if not fallen_ones:
        return group
    _fail(fallen_ones, fallen(name))
    # Their failure may have felled others.
    return _standing([item for item in group if item not in fallen_ones], name)


def _failed_twice(name: str, error: BaseException) -> Unavailable:
    return Unavailable(f"append to {name!r} failed twice: {error}", hint="Look at the disk of the store")


def _fail(group: list[PendingAppend], error: LedgerError) -> None:
    for item in group:
        item.fail(error)
