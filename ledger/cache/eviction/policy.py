"""Base of the eviction policies: their interface and limits, and the removal queue.

A policy decides which cached ranges are evicted. It keeps its own order of all ranges of the broker. It is called for
each range that is added, read or removed. It runs two passes: `expire` evicts by time, `free` frees the requested bytes
of memory, or all evictable ones.

`RemovalQueue` has all cached ranges of a broker in order of arrival, and one loop that evicts. The loop is mechanism,
the predicate is policy. The loop takes the head of the queue, and the predicate decides:

    REMOVE    evict the range
    REQUEUE   move it to the tail, as if it had just arrived, and count that
    STASH     move it to the stash, which the next pass walks first; a stashed range stays there
    STOP      end this pass; from the stash the loop continues with the queue
    MISSING   drop it: the range was removed elsewhere

Rules
- A policy evicts a range by calling the given `remove`, after it has forgotten the range itself.
- Policies are called under one lock. The owner's lock also allows one pass at a time.
- A requeued range is checked again in the same pass. A pass ends when the predicate stops it or nothing is left, so a
  predicate must not requeue the same range for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.range_cache import CachedRange
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.settings.cache import EvictionSettings


class EvictionDecision(Enum):
    """Decision about a range."""

    REMOVE = auto()
    REQUEUE = auto()
    STASH = auto()
    STOP = auto()
    MISSING = auto()


Predicate = Callable[[CachedRange, int], EvictionDecision]
"""Decides about a span, given the bytes that the pass has freed so far."""
Remove = Callable[[CachedRange], int]
"""Removes a span from its cache; the bytes of memory that became free."""


class RemovalQueue:
    """Queue of ranges: first in, first checked."""

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

    def evict(self, decide: Predicate, now_ms: int, remove: Remove) -> int:
        """Run one pass. Return the bytes of memory that became free."""
        freed = self._walk_stash(decide, remove) if self._stash else 0
        queue = self._queue
        while queue:
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
    """Limits of one pool of the cache: its bytes, those of the pool of local files, and the settings of eviction."""

    size: int
    local_file_size: int
    settings: EvictionSettings

    @property
    def trigger(self) -> float:
        """Bytes above which eviction by size starts."""
        return self.size * self.settings.managedLedgerCacheEvictionTriggerThresholdPercent / 100

    @property
    def watermark(self) -> float:
        """Bytes at which eviction by size stops."""
        return self.size * self.settings.managedLedgerCacheEvictionWatermark / 100

    def of_local_files(self) -> CacheLimits:
        return replace(self, size=self.local_file_size)


@dataclass(frozen=True, slots=True)
class WantedRead:
    """Entries `[first, end)` that a reader requests and that are read from storage now."""

    readers: LedgerReaders
    reader: str
    ledger_id: int
    first: int
    end: int


class EvictionPolicy(ABC):
    """Policy that decides which ranges stay. A policy overrides the methods that it needs."""

    grows = True
    """Whether a range may be extended by the entries appended after it."""

    def __init__(self, limits: CacheLimits) -> None:
        self.limits = limits
        self.settings = limits.settings
        self.due: list[CachedRange] = []
        """Spans that have to go now, because another came."""

    @abstractmethod
    def admits(self, wanted: WantedRead) -> bool:
        """Return whether entries read from storage are cached."""

    @abstractmethod
    def added(self, span: CachedRange) -> None:
        """Record that a range was cached."""

    @abstractmethod
    def free(self, size: int, now_ms: int, remove: Remove) -> int:
        """Run the size pass: free `size` bytes or more. Return the bytes that became free."""

    def free_unneeded(self, _size: int, _remove: Remove) -> int:
        """Evict up to `size` bytes without expected reads; 0: the policy does not know, or has none."""
        return 0

    @property
    def requeues(self) -> int:
        return 0

    def expire(self, now_ms: int, remove: Remove) -> int:  # noqa: ARG002 — nothing goes by time
        """Run the time pass. Return the bytes that became free."""
        return 0

    def read(self, span: CachedRange) -> None:  # noqa: B027 — see the class
        """Record that a part of a range was served from the cache."""

    def removed(self, span: CachedRange) -> None:  # noqa: B027 — see the class
        """Record that a range was removed, by the policy or another caller; `span.cache` is None already."""

    def keeps_from(self, readers: LedgerReaders) -> Position | None:  # noqa: ARG002 — nothing goes by that
        """Return the first position of a ledger that is kept after a reader has moved; None: everything."""
        return None


class QueuePolicy(EvictionPolicy):
    """Policy over the removal queue. Ranges that others removed are detected when the queue reaches them."""

    def __init__(self, limits: CacheLimits) -> None:
        super().__init__(limits)
        self.queue = RemovalQueue()

    @abstractmethod
    def verdict(self, span: CachedRange, now_ms: int) -> EvictionDecision:
        """Decide about a span that is older than the threshold, or whose room is needed."""

    def admits(self, wanted: WantedRead) -> bool:
        return expects_others(wanted)

    def added(self, span: CachedRange) -> None:
        self.queue.add(span)

    def expire(self, now_ms: int, remove: Remove) -> int:
        """Evict oldest first, up to the first range that is young enough."""
        cutoff = now_ms - self.settings.managedLedgerCacheEvictionTimeThresholdMillis

        def decide(span: CachedRange, _freed: int) -> EvictionDecision:
            return EvictionDecision.STOP if span.timestamp_ms >= cutoff else self.verdict(span, now_ms)

        return self.queue.evict(decide, now_ms, remove)

    def free(self, size: int, now_ms: int, remove: Remove) -> int:
        """Evict oldest first, until enough is free."""
        require_positive(size)

        def decide(span: CachedRange, freed: int) -> EvictionDecision:
            return EvictionDecision.STOP if freed >= size else self.verdict(span, now_ms)

        return self.queue.evict(decide, now_ms, remove)

    @property
    def requeues(self) -> int:
        return self.queue.requeues


def expects_others(wanted: WantedRead) -> bool:
    """Return whether a reader other than the requesting one still needs any of it."""
    return wanted.readers.expected(wanted.ledger_id, wanted.first, wanted.end, but=wanted.reader) > 0


def require_positive(size: int) -> None:
    if size <= 0:
        raise Refused(f"{size} bytes cannot be freed", hint="Ask for at least 1")
