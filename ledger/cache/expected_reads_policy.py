"""`expected-reads`: PIP-430 as Pulsar has it. Oldest first; what is still going to be read is put off, so often.

    a span is put off when   it was read since it was last looked at, and that extends lives, or
                             reads are expected, and it was put off fewer than `extensions_max` times
    time pass                stops at the first that is not older than the threshold; puts off or lets go
    size pass                stops when enough is free; puts off or lets go, and so comes to what is put off at the end

Both passes spend the same budget of extensions, whatever the reason for them was.
"""

from __future__ import annotations

from ledger.cache.cached_span import CachedSpan
from ledger.cache.eviction_policy import QueuePolicy, WantedRead, expects_others, require_positive
from ledger.cache.removal_queue import Remove, Verdict


class ExpectedReadsPolicy(QueuePolicy):
    """PIP-430, final."""

    def admits(self, wanted: WantedRead) -> bool:
        """When somebody else is going to read it."""
        return expects_others(wanted)

    def expire(self, now_ms: int, remove: Remove) -> int:
        """Oldest first, up to the first that is young enough."""
        cutoff = now_ms - self.limits.time_threshold_ms

        def decide(span: CachedSpan, _freed: int) -> Verdict:
            if span.timestamp_ms >= cutoff:
                return Verdict.STOP
            return Verdict.REQUEUE if self._puts_off(span) else Verdict.REMOVE

        return self.queue.evict(decide, now_ms, remove)

    def free(self, size: int, now_ms: int, remove: Remove) -> int:
        """Oldest first, until enough is free."""
        require_positive(size)

        def decide(span: CachedSpan, freed: int) -> Verdict:
            if freed >= size:
                return Verdict.STOP
            return Verdict.REQUEUE if self._puts_off(span) else Verdict.REMOVE

        return self.queue.evict(decide, now_ms, remove)

    def _puts_off(self, span: CachedSpan) -> bool:
        limits = self.limits
        if limits.extend_accessed and span.accessed:
            return True
        return span.requeues < limits.extensions_max and span.expected_reads() > 0
