"""All cached spans of a broker in the order in which they came, and one loop that lets them go.

The loop is mechanism, the predicate is policy. It looks at the head and asks:

    REMOVE    let it go
    REQUEUE   to the tail, as if it had come now: its life begins anew, and it is noted how often it did
    STASH     to the stash, which the next pass walks first; what is in the stash already stays there
    STOP      this pass is over; from the stash the loop goes on with the queue
    MISSING   somebody else removed it: drop it

Rules: a requeued span is looked at again in the same pass, so a pass ends when the predicate stops it or nothing is
left; a predicate must not requeue the same span for ever. One pass at a time: the owner's lock sees to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto

from ledger.cache.cached_span import CachedSpan


class Verdict(Enum):
    """What becomes of a span."""

    REMOVE = auto()
    REQUEUE = auto()
    STASH = auto()
    STOP = auto()
    MISSING = auto()


Predicate = Callable[[CachedSpan, int], Verdict]
"""Decides about a span, given the bytes that the pass has freed so far."""
Remove = Callable[[CachedSpan], int]
"""Removes a span from its cache; the bytes of memory that became free."""


class RemovalQueue:
    """First in, first looked at."""

    def __init__(self) -> None:
        self._queue: deque[CachedSpan] = deque()
        self._stash: list[CachedSpan] = []
        self.requeues = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self._stash)

    def __iter__(self) -> Iterator[CachedSpan]:
        yield from self._stash
        yield from self._queue

    def add(self, span: CachedSpan) -> None:
        """A span that was cached just now."""
        self._queue.append(span)

    def evict(self, decide: Predicate, now_ms: int, remove: Remove) -> int:
        """One pass; the bytes of memory that became free."""
        freed = self._walk_stash(decide, remove) if self._stash else 0
        queue = self._queue
        while queue:
            span = queue[0]
            verdict = Verdict.MISSING if span.cache is None else decide(span, freed)
            if verdict is Verdict.STOP:
                break
            queue.popleft()
            if verdict is Verdict.REMOVE:
                freed += remove(span)
            elif verdict is Verdict.REQUEUE:
                span.timestamp_ms, span.accessed = now_ms, False
                span.requeues += 1
                self.requeues += 1
                queue.append(span)
            elif verdict is Verdict.STASH:
                self._stash.append(span)
        return freed

    def _walk_stash(self, decide: Predicate, remove: Remove) -> int:
        freed, kept = 0, list[CachedSpan]()
        for number, span in enumerate(self._stash):
            verdict = Verdict.MISSING if span.cache is None else decide(span, freed)
            if verdict is Verdict.STOP:
                kept += self._stash[number:]
                break
            if verdict is Verdict.REMOVE:
                freed += remove(span)
            elif verdict is not Verdict.MISSING:
                kept.append(span)
        self._stash = kept
        return freed
