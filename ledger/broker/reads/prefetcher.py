"""What somebody is going to read, fetched before it is asked for: a few threads, a bounded part of the cache.

    plan     a reader reads these blocks next, in this order; what it had planned before is forgotten
    passed   it has read up to here

Rules
- A block is fetched into the cache, once for all; what is there or on its way is passed over.
- What is ahead of its reader and not read yet is at most `room` bytes in all: beyond that nobody reads ahead. So it
  never pushes out more than that of what others need.
- A block in a local file is not fetched: the system is told to read it.
- A failure is nobody's: who asks reads for itself, and is told.
- A plan costs what it holds, however many readers have one: who reads a thousand ledgers makes as many. What is coming
  and what is ahead are counted as plans change, and who has nothing coming waits for no turn.
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
    """One reader's: blocks that nobody has begun with, and those that were and that it has not read.

    `turn` rises whenever one of its blocks was begun with: the least has waited longest.
    """

    coming: deque[SegmentBlock]
    begun: list[SegmentBlock]
    turn: int

    @property
    def ahead_bytes(self) -> int:
        return sum(block.length for block in self.begun)

    def passed(self, at: Position) -> None:
        while self.coming and _end(self.coming[0]) <= at:
            self.coming.popleft()
        self.begun = [block for block in self.begun if _end(block) > at]


class BrokerPrefetcher:
    """Plans of all readers, and the threads that see to them. Any thread may call any method."""

    def __init__(self, reads: OffloadedReads, room: Callable[[], int], threads: Callable[[], int]) -> None:
        self._reads = reads
        self._room = room
        self._most = threads
        self._plans: dict[ReaderId, _Plan] = {}
        self._turns: SortedDict = SortedDict()
        """By turn, the readers that have blocks coming."""
        self._numbers = count()
        self._coming = self._ahead_bytes = 0
        self._threads = 0
        self._lock = threading.Lock()

    def plan(self, reading: ReaderId, blocks: Sequence[SegmentBlock]) -> None:
        with self._lock:
            before = self._taken(reading)
            wanted = dict.fromkeys(blocks)
            begun = [block for block in before.begun if block in wanted] if before else []
            for block in begun:
                del wanted[block]
            turn = before.turn if before else next(self._numbers)
            self._put(reading, _Plan(deque(wanted), begun, turn))
        self._start()

    def covers(self, reading: ReaderId, blocks: Sequence[SegmentBlock]) -> bool:
        """Whether the last of these was planned already."""
        with self._lock:
            plan = self._plans.get(reading)
            last = max([*plan.coming, *plan.begun], default=None, key=_end) if plan is not None else None
            return last is not None and bool(blocks) and _end(blocks[-1]) <= _end(last)

    def passed(self, reading: ReaderId, at: Position) -> None:
        """A reader has read everything before `at`."""
        with self._lock:
            plan = self._taken(reading)
            if plan is None:
                return
            plan.passed(at)
            if plan.coming or plan.begun:
                self._put(reading, plan)
        self._start()

    def readings(self) -> list[ReaderId]:
        with self._lock:
            return list(self._plans)

    def forget(self, reading: ReaderId) -> None:
        with self._lock:
            self._taken(reading)

    def _put(self, reading: ReaderId, plan: _Plan) -> None:
        self._plans[reading] = plan
        self._coming += len(plan.coming)
        self._ahead_bytes += plan.ahead_bytes
        if plan.coming:
            self._turns[plan.turn] = reading

    def _taken(self, reading: ReaderId) -> _Plan | None:
        plan = self._plans.pop(reading, None)
        if plan is not None:
            self._coming -= len(plan.coming)
            self._ahead_bytes -= plan.ahead_bytes
            self._turns.pop(plan.turn, None)
        return plan

    def _start(self) -> None:
        """As many threads as there is to do, up to what is allowed; each ends when there is nothing more."""
        with self._lock:
            new = min(self._most(), self._coming) - self._threads if self._has_room() else 0
            self._threads += max(new, 0)
        for started in range(new):
            try:
                threading.Thread(target=self._work, name="ahead", daemon=True).start()
            except RuntimeError as error:
                _log.info("%d threads fewer than wanted read ahead: %s", new - started, error)
                with self._lock:
                    self._threads -= new - started
                return

    def _has_room(self) -> bool:
        return self._ahead_bytes < self._room()

    def _work(self) -> None:
        try:
            while (found := self._claimed()) is not None:
                reading, block = found
                try:
                    self._fetch(reading, block)
                except (LedgerError, OSError) as error:
                    _log.info("ledger %s is not read ahead at entry %d: %s", reading.ledger, block.first_entry, error)
        except Exception:  # noqa: BLE001 — who asks reads for itself; the next plan starts a thread again
            _log.exception("a thread that reads ahead ended in a way that nobody foresaw")
            with self._lock:
                self._threads -= 1

    def _claimed(self) -> tuple[ReaderId, SegmentBlock] | None:
        """The next block to fetch. None when there is none: then the calling thread is counted no more."""
        with self._lock:
            found = self._next()
            if found is None:
                self._threads -= 1
            return found

    def _next(self) -> tuple[ReaderId, SegmentBlock] | None:
        """The next block of the reader whose turn it is: the one that has waited longest."""
        while self._turns and self._has_room():
            _, reading = self._turns.popitem(0)
            plan = self._plans[reading]
            plan.turn = next(self._numbers)
            block = self._begun(reading, plan)
            if plan.coming:
                self._turns[plan.turn] = reading
            if block is not None:
                return reading, block
        return None

    def _begun(self, reading: ReaderId, plan: _Plan) -> SegmentBlock | None:
        """The first block of a plan that is to be read; what is cached is passed over."""
        while plan.coming:
            block = plan.coming.popleft()
            self._coming -= 1
            if block.home is None or block.home.mappable:
                return block
            if self._reads.is_missing(block, reading.ledger):
                plan.begun.append(block)
                self._ahead_bytes += block.length
                return block
        return None

    def _fetch(self, reading: ReaderId, block: SegmentBlock) -> None:
        if block.home is None or block.home.mappable:
            with opened(block.path) as fd:
                os.posix_fadvise(fd, block.offset, block.length, os.POSIX_FADV_WILLNEED)
        else:
            self._reads.ahead(block, block.home, reading.ledger)


def _end(block: SegmentBlock) -> Position:
    return Position(block.ledger_id, block.first_entry + block.entries)
