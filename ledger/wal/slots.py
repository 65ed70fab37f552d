"""Slots that one broker uses in the write-ahead log, from the put of an object to its acknowledgement.

No input or output. A *slot* is the place of one numbered object in the log. The *window* is the number of slots that
the broker may use at the same time. The *manifest* is the object that names the owner of the store. The *epoch* in the
manifest is a number that each new owner raises. Before the broker acknowledges an object, it reads the manifest. The
epoch there shows whether this broker still owns the store.

    number      lowest                                                   next
    ────────────┼────────────────────────────────────────────────────────┼──────────
    acknowledged│ in flight, or stored and not acknowledged yet          │ not used

Invariants
- `lowest <= next <= lowest + window`.
- Acknowledgements come in the order of the numbers.
- After a read of the manifest, only numbers whose objects were stored before the read began are acknowledged.
"""

from __future__ import annotations

from pyspark_ledger.ledger.wal.fence import acknowledged_to, may_put, require_epoch
from pyspark_ledger.ledger.wal.manifest import StoreManifest


class Slots:
    """Slots of the broker of `epoch`, whose first number is `first`. Not thread-safe."""

    def __init__(self, first: int, epoch: int, window: int) -> None:
        self.lowest = self.next = first
        self.epoch = epoch
        self._window = window
        self._stored: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Whether another put may begin."""
        return may_put(self.next, self.lowest, self._window)

    @property
    def in_flight(self) -> int:
        """The number of slots that are used and not acknowledged."""
        return self.next - self.lowest

    def take(self) -> int:
        """Return the number of the next put."""
        assert self.is_open, (self.lowest, self.next, self._window)  # noqa: S101 — the caller asks `is_open` first
        number, self.next = self.next, self.next + 1
        return number

    def store(self, number: int) -> None:
        """Record that the object of a number is in the bucket."""
        self._stored.add(number)

    def checkable(self) -> frozenset[int]:
        """Return the stored numbers, which can be acknowledged after a read of the manifest that begins now.

        The result is empty if the object of the lowest number is not stored yet. Reason: no number can be acknowledged
        before the lowest one.
        """
        return frozenset(self._stored) if self.lowest in self._stored else frozenset()

    def acknowledge(self, stored: frozenset[int], manifest: StoreManifest, where: str) -> range:
        """Acknowledge numbers after a read of the manifest, and return these numbers.

        `stored` is the result of `checkable`, which the caller called before it read the manifest. Raises Fenced if the
        manifest shows another epoch.
        """
        require_epoch(manifest, self.epoch, where)
        before, self.lowest = self.lowest, acknowledged_to(self.lowest, stored)
        done = range(before, self.lowest)
        self._stored.difference_update(done)
        return done
