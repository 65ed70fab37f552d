"""`lru`: the least recently read goes first, whoever waits for it. A yardstick.

Invariant: the order holds each cached span once, the one longest untouched first.
"""

from __future__ import annotations

from collections import OrderedDict

from pyspark_ledger.ledger.cache.eviction.policy import (
    CacheLimits,
    EvictionPolicy,
    Remove,
    WantedRead,
    require_positive,
)
from pyspark_ledger.ledger.cache.range_cache import CachedSpan


class LruPolicy(EvictionPolicy):
    """Least recently used, without a time limit."""

    def __init__(self, limits: CacheLimits) -> None:
        super().__init__(limits)
        self._order: OrderedDict[CachedSpan, None] = OrderedDict()

    def admits(self, _wanted: WantedRead) -> bool:
        """Always."""
        return True

    def added(self, span: CachedSpan) -> None:
        """Used just now."""
        self._order[span] = None

    def read(self, span: CachedSpan) -> None:
        """Used just now."""
        self._order.move_to_end(span)

    def removed(self, span: CachedSpan) -> None:
        """Forget it."""
        self._order.pop(span, None)

    def free(self, size: int, _now_ms: int, remove: Remove) -> int:
        """The longest untouched first."""
        require_positive(size)
        freed = 0
        while freed < size and self._order:
            freed += remove(self._order.popitem(last=False)[0])
        return freed
