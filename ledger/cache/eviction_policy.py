"""What decides which cached spans go: the interface of a policy, and the numbers that policies go by.

A policy keeps an order of its own over all spans of the broker. It is told of each span that is added, read or removed
by others, and asked for two passes: `expire`, time's, and `free`, which frees at least so many bytes of memory as far
as there are any. It lets a span go by the `remove` it is given, and must have forgotten it then. Called under one lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from ledger.cache.cached_span import CachedSpan, Expectation
from ledger.cache.ledger_readers import LedgerReaders
from ledger.cache.removal_queue import RemovalQueue, Remove
from ledger.errors import Refused
from ledger.position import Position


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """What one pool of the cache goes by; see `ledger.settings` for each. Milliseconds and bytes."""

    size: int
    local_file_size: int = 256 * 1024 * 1024
    watermark: float = 0.9
    trigger: float = 0.98
    time_threshold_ms: int = 1000
    time_threshold_expected_ms: int = 5000
    time_threshold_offloaded_ms: int = 60_000
    extensions_max: int = 5
    extend_accessed: bool = False
    by_mark_delete: bool = False
    backlogged_threshold: int = 1000
    minimum_backlog_cursors: int = 0
    minimum_backlog_entries: int = 1000
    maximum_backlog_between: int = 1000

    def of_local_files(self) -> CacheLimits:
        """The same for accounts of local files."""
        return replace(self, size=self.local_file_size)


@dataclass(frozen=True, slots=True)
class WantedRead:
    """Entries `[first, end)` that a reader wants and that are read from storage now."""

    readers: LedgerReaders
    reader: str
    ledger_id: int
    first: int
    end: int


class EvictionPolicy(ABC):
    """Which spans stay. A policy says of each of these what it does, where that is not nothing."""

    grows = True
    """Whether a span may grow by what is appended behind it."""

    def __init__(self, limits: CacheLimits) -> None:
        self.limits = limits
        self.due: list[CachedSpan] = []
        """Spans that have to go now, because another came."""

    @abstractmethod
    def admits(self, wanted: WantedRead) -> bool:
        """Whether what is read from storage is cached."""

    @abstractmethod
    def added(self, span: CachedSpan) -> None:
        """A span was cached."""

    @abstractmethod
    def free(self, size: int, now_ms: int, remove: Remove) -> int:
        """The size pass: free `size` bytes or more; the bytes that became free."""

    def free_unneeded(self, _size: int, _remove: Remove) -> int:
        """Let go of what nobody has to read, up to `size` bytes of it; 0: the policy does not know, or has none."""
        return 0

    @property
    def requeues(self) -> int:
        """How many lives were extended."""
        return 0

    def expire(self, now_ms: int, remove: Remove) -> int:  # noqa: ARG002 — nothing goes by time
        """The time pass; the bytes that became free."""
        return 0

    def put_again(self, span: CachedSpan, reads: Expectation | None) -> None:  # noqa: B027 — see the class
        """What a span holds was put once more, with an expectation of its own or that of the ledger's readers."""

    def read(self, span: CachedSpan) -> None:  # noqa: B027 — see the class
        """Some of a span was served from the cache."""

    def removed(self, span: CachedSpan) -> None:  # noqa: B027 — see the class
        """A span was removed, by the policy itself or by somebody else; `span.cache` is None already."""

    def keeps_from(self, readers: LedgerReaders) -> Position | None:  # noqa: ARG002 — nothing goes by that
        """The first position of a ledger that is kept now that a reader has moved; None: whatever there is."""
        return None


class QueuePolicy(EvictionPolicy):
    """A policy that goes by the removal queue. What others removed is found missing when the queue comes to it."""

    def __init__(self, limits: CacheLimits) -> None:
        super().__init__(limits)
        self.queue = RemovalQueue()

    def added(self, span: CachedSpan) -> None:
        """To the tail."""
        self.queue.add(span)

    @property
    def requeues(self) -> int:
        """Lives that were extended."""
        return self.queue.requeues


def expects_others(wanted: WantedRead) -> bool:
    """Whether another reader than the one that asks has still to read any of it."""
    return wanted.readers.expected(wanted.ledger_id, wanted.first, wanted.end, but=wanted.reader) > 0


def require_positive(size: int) -> None:
    """Refuse to free nothing."""
    if size <= 0:
        raise Refused(f"{size} bytes cannot be freed", hint="Ask for at least 1")
