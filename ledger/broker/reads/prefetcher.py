"""Prefetcher of the blocks that readers will read next. It has a few threads, and uses a limited part of the cache.

    plan     sets the blocks that a reader reads next, in order; replaces the reader's earlier plan
    passed   records the position up to which the reader has read

Rules
- A block is fetched into the cache once for all readers. A block that is cached or being fetched is skipped.
- A prefetch starts only if all prefetched blocks that are not read yet take less than `room` bytes. So these blocks
  take at most `room` bytes of the cache, plus one block.
- A block in a local file is not fetched. Instead, the operating system is asked to read the block into its page cache.
- An error of a prefetch is only logged. The reader then reads the block itself, and gets the error.
- The time to set a plan depends only on the blocks of this plan, not on other plans. Reason: a query over a thousand
  ledgers makes a thousand plans. So the sums over all plans are kept up to date, and never computed again. Readers
  without pending blocks are not in the queue.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from sortedcontainers import SortedDict

from pyspark_ledger.ledger.broker.reads.offloaded_reads import OffloadedReads, ReaderId
from pyspark_ledger.ledger.disk import opened
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.segment.reader import SegmentBlock

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Plan:
    """Plan of one reader. `pending` are the blocks to prefetch.

    `started` are the blocks whose prefetch has started and that the reader has not read yet. `queue_number` is the
    place of the reader in the queue. When a prefetch for the reader starts, the reader gets the highest number. So the
    reader with the lowest number has waited longest.
    """

    pending: deque[SegmentBlock]
    started: list[SegmentBlock]
    queue_number: int

    @property
    def prefetched_bytes(self) -> int:
        return sum(block.length for block in self.started)

    def passed(self, at: Position) -> None:
        while self.pending and _end(self.pending[0]) <= at:
            self.pending.popleft()
        self.started = [block for block in self.started if _end(block) > at]


class BrokerPrefetcher:
    """Plans of all readers, and the threads that carry them out. Any thread may call any method."""

    def __init__(self, reads: OffloadedReads, room: Callable[[], int], threads: int) -> None:
        self._reads = reads
        self._room = room
        self._threads_max = threads
        self._plans: dict[ReaderId, _Plan] = {}
        self._queue: SortedDict = SortedDict()
        """Readers with pending blocks, by `queue_number`."""
        self._numbers = count()
        self._pending_count = self._prefetched_bytes = 0
        self._threads = 0
        self._lock = threading.Lock()

    def plan(self, reading: ReaderId, blocks: Sequence[SegmentBlock]) -> None:
        with self._lock:
            before = self._pop(reading)
            wanted = dict.fromkeys(blocks)
            started = [block for block in before.started if block in wanted] if before else []
            for block in started:
                del wanted[block]
            queue_number = before.queue_number if before else next(self._numbers)
            self._put(reading, _Plan(deque(wanted), started, queue_number))
        self._start()

    def covers(self, reading: ReaderId, blocks: Sequence[SegmentBlock]) -> bool:
        """Return whether the plan of a reader already contains the last of `blocks`."""
        with self._lock:
            plan = self._plans.get(reading)
            last = max([*plan.pending, *plan.started], default=None, key=_end) if plan is not None else None
            return last is not None and bool(blocks) and _end(blocks[-1]) <= _end(last)

    def passed(self, reading: ReaderId, at: Position) -> None:
        """Record that a reader has read every entry before `at`."""
        with self._lock:
            plan = self._pop(reading)
            if plan is None:
                return
            plan.passed(at)
            if plan.pending or plan.started:
                self._put(reading, plan)
        self._start()

    def readings(self) -> list[ReaderId]:
        with self._lock:
            return list(self._plans)

    def forget(self, reading: ReaderId) -> None:
        with self._lock:
            self._pop(reading)

    def _put(self, reading: ReaderId, plan: _Plan) -> None:
        self._plans[reading] = plan
        self._pending_count += len(plan.pending)
        self._prefetched_bytes += plan.prefetched_bytes
        if plan.pending:
            self._queue[plan.queue_number] = reading

    def _pop(self, reading: ReaderId) -> _Plan | None:
        plan = self._plans.pop(reading, None)
        if plan is not None:
            self._pending_count -= len(plan.pending)
            self._prefetched_bytes -= plan.prefetched_bytes
            self._queue.pop(plan.queue_number, None)
        return plan

    def _start(self) -> None:
        """Start one thread for each pending block, up to the maximum. Each thread ends when no block is pending."""
        with self._lock:
            new = min(self._threads_max, self._pending_count) - self._threads if self._has_room() else 0
            self._threads += max(new, 0)
        for started in range(new):
            try:
                threading.Thread(target=self._work, name="prefetch", daemon=True).start()
            except RuntimeError as error:
                _log.info("could not start %d prefetch threads: %s", new - started, error)
                with self._lock:
                    self._threads -= new - started
                return

    def _has_room(self) -> bool:
        return self._prefetched_bytes < self._room()

    def _work(self) -> None:
        try:
            while (job := self._claim()) is not None:
                reading, block = job
                try:
                    self._fetch(reading, block)
                except (LedgerError, OSError) as error:
                    _log.info("ledger %s: cannot prefetch at entry %d: %s", reading.ledger, block.first_entry, error)
        except Exception:  # noqa: BLE001 — readers do not need the thread, and the next plan starts another
            _log.exception("a prefetch thread ended with an unexpected error")
            with self._lock:
                self._threads -= 1

    def _claim(self) -> tuple[ReaderId, SegmentBlock] | None:
        """Return the next block to fetch. If there is none, count the calling thread as ended and return None."""
        with self._lock:
            job = self._next()
            if job is None:
                self._threads -= 1
            return job

    def _next(self) -> tuple[ReaderId, SegmentBlock] | None:
        """Return the next block of the reader that has waited longest."""
        while self._queue and self._has_room():
            _, reading = self._queue.popitem(0)
            plan = self._plans[reading]
            plan.queue_number = next(self._numbers)
            block = self._start_next(reading, plan)
            if plan.pending:
                self._queue[plan.queue_number] = reading
            if block is not None:
                return reading, block
        return None

    def _start_next(self, reading: ReaderId, plan: _Plan) -> SegmentBlock | None:
        """Return the first block of a plan that must be fetched. Skips cached blocks."""
        while plan.pending:
            block = plan.pending.popleft()
            self._pending_count -= 1
            if block.source is None or block.source.mappable:
                return block
            if self._reads.is_missing(block, reading.ledger):
                plan.started.append(block)
                self._prefetched_bytes += block.length
                return block
        return None

    def _fetch(self, reading: ReaderId, block: SegmentBlock) -> None:
        if block.source is None or block.source.mappable:
            with opened(block.path) as fd:
                os.posix_fadvise(fd, block.offset, block.length, os.POSIX_FADV_WILLNEED)
        else:
            self._reads.prefetch(block, block.source, reading.ledger)


def _end(block: SegmentBlock) -> Position:
    return Position(block.ledger_id, block.first_entry + block.entries)
