"""Interface of the eviction policies, their limits, and the removal queue.

A cached range is a series of consecutive cached entries (`ledger.cache.range_cache`). A policy decides which ranges are
evicted. It keeps all ranges of its pool in an order of its own. The cache reports each range that is added, read or
removed to the policy. A policy has two passes. The time pass (`expire`) evicts old ranges. The size pass (`free`)
evicts ranges until the requested number of bytes is free.

`RemovalQueue` has the cached ranges in the order of their arrival. Its loop takes the first range of the queue, and
asks a function of the policy, the *predicate*, for a decision:

    REMOVE    evict the range
    REQUEUE   move the range to the end of the queue, as if it were new
    STASH     move the range to a second list, the stash; each pass checks the stash before the queue
    STOP      end the pass; while the pass checks the stash, continue with the queue instead
    MISSING   the range was already removed from the cache: remove it from the queue

Rules
- A policy calls `remove` to evict a range.
- The caller of every method holds the cache's lock. So only one pass runs at a time.
- A requeued range is checked again in the same pass. A pass ends when the predicate returns STOP or the queue is empty.
  So a predicate must not requeue the same range for ever.
- A size pass requeues a range at most once. It evicts a range that is older than the threshold, as PIP-430 states.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.range_cache import CachedRange, RangeCache
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.settings.cache import EvictionSettings

UNLIMITED = sys.maxsize
_TRIGGER_PERCENT = 99


class EvictionDecision(Enum):
    """Decision about a range. The module's head explains each decision."""

    REMOVE = auto()
    REQUEUE = auto()
    STASH = auto()
    STOP = auto()
    MISSING = auto()


Predicate = Callable[[CachedRange, int], EvictionDecision]
"""Decides about a range. The second argument is the number of bytes that the pass has freed."""
Remove = Callable[[CachedRange], int]
"""Removes a range from its cache. Returns the bytes of memory that became free."""


class RemovalQueue:
    """Queue of ranges in the order of their arrival, and the stash."""

    def __init__(self) -> None:
        self._queue: deque[CachedRange] = deque()
        self._stash: list[CachedRange] = []
        self.requeues = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self._stash)

    def __iter__(self) -> Iterator[CachedRange]:
        yield from self._stash
        yield from self._queue

    def add(self, span: CachedRange) -> None:
        self._queue.append(span)

    def is_older(self, cutoff_ms: int) -> bool:
        """Return whether the first range of the queue is older."""
        return bool(self._queue) and self._queue[0].timestamp_ms < cutoff_ms

    def evict(self, decide: Predicate, now_ms: int, remove: Remove, most: int = UNLIMITED, at_least: int = 0) -> int:
        """Run one pass. Return the bytes of memory that became free.

        The pass ends after `most` ranges of the queue, but not before `at_least` bytes are free.
        """
        freed = self._walk_stash(decide, remove) if self._stash else 0
        queue, checked = self._queue, 0
        while queue and (checked < most or freed < at_least):
            checked += 1
            span = queue[0]
            verdict = EvictionDecision.MISSING if span.cache is None else decide(span, freed)
            if verdict is EvictionDecision.STOP:
                break
            queue.popleft()
            if verdict is EvictionDecision.REMOVE:
                freed += remove(span)
            elif verdict is EvictionDecision.REQUEUE:
                span.timestamp_ms, span.accessed = now_ms, False
                span.requeues += 1
                self.requeues += 1
                queue.append(span)
            elif verdict is EvictionDecision.STASH:
                self._stash.append(span)
        return freed

    def _walk_stash(self, decide: Predicate, remove: Remove) -> int:
        freed, kept = 0, list[CachedRange]()
        for number, span in enumerate(self._stash):
            verdict = EvictionDecision.MISSING if span.cache is None else decide(span, freed)
            if verdict is EvictionDecision.STOP:
                kept += self._stash[number:]
                break
            if verdict is EvictionDecision.REMOVE:
                freed += remove(span)
            elif verdict is not EvictionDecision.MISSING:
                kept.append(span)
        self._stash = kept
        return freed


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Limits of one pool of the cache, in bytes.

    `size` is the limit of this pool. `local_file_size` is the limit of the pool of local files.
    """

    size: int
    local_file_size: int
    settings: EvictionSettings

    @property
    def trigger(self) -> float:
        """The bytes in use above which the size pass starts."""
        return self.size * _TRIGGER_PERCENT / 100

    @property
    def watermark(self) -> float:
        """The bytes in use at which the size pass stops."""
        return self.size * self.settings.managedLedgerCacheEvictionWatermark / 100

    def of_local_files(self) -> CacheLimits:
        """Return the limits of the pool of local files."""
        return replace(self, size=self.local_file_size)


@dataclass(frozen=True, slots=True)
class WantedRead:
    """Read of storage: a reader has requested the entries `[first, end)`, which were not cached."""

    readers: LedgerReaders
    reader: str
    ledger_id: int
    first: int
    end: int


class EvictionPolicy(ABC):
    """Policy that decides which ranges are evicted. A policy overrides the methods that it needs."""

    grows = True
    """Whether a range may be extended by the entries appended after it."""
    keeps_read = False
    """Whether a range from object storage stays for a while after the last reader that needs it."""

    def __init__(self, limits: CacheLimits) -> None:
        self.limits = limits
        self.settings = limits.settings
        self.due: list[CachedRange] = []
        """Ranges that must be evicted now, because the policy needs their room for a new range."""

    @abstractmethod
    def admits(self, wanted: WantedRead) -> bool:
        """Return whether entries that were read from storage are cached."""

    @abstractmethod
    def added(self, span: CachedRange) -> None:
        """Record that a range was cached."""

    @abstractmethod
    def free(self, size: int, now_ms: int, remove: Remove, most: int = UNLIMITED, at_least: int = 0) -> int:
        """Evict ranges until `size` bytes are free, or no range is left. Return the bytes that became free.

        A step of a longer eviction ends after `most` ranges, but not before `at_least` bytes are free.
        """

    def free_unneeded(self, _size: int, _remove: Remove) -> int:
        """Evict ranges that no reader needs, until `size` bytes are free. Return the bytes that became free.

        A policy without knowledge of readers returns 0.
        """
        return 0

    @property
    def requeues(self) -> int:
        """The number of requeued ranges since the start."""
        return 0

    def expire(self, now_ms: int, remove: Remove, most: int = UNLIMITED) -> bool:  # noqa: ARG002 — nothing by default
        """Evict old ranges. The step ends after `most` ranges. Return whether more ranges may be old."""
        return False

    def read(self, span: CachedRange) -> None:  # noqa: B027 — see the class
        """Record that a part of a range was served from the cache."""

    def removed(self, span: CachedRange) -> None:  # noqa: B027 — see the class
        """Record that a range was removed, by the policy or another caller. `span.cache` is already None."""

    def changed(self, cache: RangeCache) -> None:  # noqa: B027 — see the class
        """Record that the readers of a ledger have moved, or that one of its ranges has grown."""

    def keeps_from(self, readers: LedgerReaders) -> Position | None:  # noqa: ARG002 — by default all ranges stay
        """Return the position before which entries are evicted after a reader has moved. None evicts no entries."""
        return None


class QueuePolicy(EvictionPolicy):
    """Policy with a removal queue. A range that another caller has removed stays queued until a pass reaches it."""

    def __init__(self, limits: CacheLimits) -> None:
        super().__init__(limits)
        self.queue = RemovalQueue()

    @abstractmethod
    def verdict(self, span: CachedRange, now_ms: int) -> EvictionDecision:
        """Decide about a range that is older than the threshold, or whose memory is needed."""

    def admits(self, wanted: WantedRead) -> bool:
        return expects_others(wanted)

    def added(self, span: CachedRange) -> None:
        self.queue.add(span)

    def expire(self, now_ms: int, remove: Remove, most: int = UNLIMITED) -> bool:
        """Check the ranges that are older than the threshold, the oldest first."""
        cutoff = now_ms - self.settings.managedLedgerCacheEvictionTimeThresholdMillis

        def decide(span: CachedRange, _freed: int) -> EvictionDecision:
            return EvictionDecision.STOP if span.timestamp_ms >= cutoff else self.verdict(span, now_ms)

        self.queue.evict(decide, now_ms, remove, most)
        return self.queue.is_older(cutoff)

    def free(self, size: int, now_ms: int, remove: Remove, most: int = UNLIMITED, at_least: int = 0) -> int:
        """Check ranges, the oldest first, until enough is free.

        A range is requeued at most once in a pass, and only if it is not older than the threshold.
        """
        require_positive(size)
        cutoff = now_ms - self.settings.managedLedgerCacheEvictionTimeThresholdMillis
        spared = set[CachedRange]()

        def decide(span: CachedRange, freed: int) -> EvictionDecision:
            if freed >= size:
                return EvictionDecision.STOP
            verdict = self.verdict(span, now_ms)
            if verdict is not EvictionDecision.REQUEUE:
                return verdict
            if span.timestamp_ms < cutoff or span in spared:
                return EvictionDecision.REMOVE
            spared.add(span)
            return verdict

        return self.queue.evict(decide, now_ms, remove, most, at_least)

    @property
    def requeues(self) -> int:
        return self.queue.requeues


def expects_others(wanted: WantedRead) -> bool:
    """Return whether a reader, except the requesting reader, still has to read one of the requested entries."""
    return wanted.readers.expected(wanted.ledger_id, wanted.first, wanted.end, except_for=wanted.reader) > 0


def require_positive(size: int) -> None:
    if size <= 0:
        raise Refused(f"{size} bytes cannot be freed", hint="Request at least 1 byte")
