"""How often an entry is still going to be read, as PIP-430 counts it: a number that every release of a copy lowers.

It may go below 0, when more is read than was expected. `freeze` is of the proposal's draft: the count of what was
evicted takes no increment any more, so that whoever wanted to add reads puts the entry anew instead.

The broker counts otherwise, by who has read what (`ledger.cache.ledger_readers`): a task that is retried releases a
second copy, and would let an entry go that somebody waits for.
"""

from __future__ import annotations

from ledger.cache.cached_span import CachedSpan

_FROZEN = -(2**30)


class ReadCount:
    """The expected reads of one span."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count

    def of(self, _span: CachedSpan) -> int:
        """The count."""
        return self.count

    def increment(self, by: int = 1) -> bool:
        """Expect more reads; whether that still helps, or the entry was evicted."""
        if self.count == _FROZEN:
            return False
        self.count += by
        return True

    def mark_read(self) -> None:
        """A copy was released."""
        if self.count != _FROZEN:
            self.count -= 1

    def freeze(self) -> None:
        """The entry was evicted."""
        self.count = _FROZEN
