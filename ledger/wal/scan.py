"""State of a reader of the log: skips void objects, and joins the parts of batches. No input or output.

    number   10        11          12          13 (claim)   14        15
    epoch    3         3           3           4            3         4
             apply     begins a    the batch   the batch    void      apply
                       batch       goes on     is dropped

The objects of a broker have the broker's *epoch*. Each new broker has a higher epoch. A *claim* is the empty first
object of a broker that takes the store over. An object is *void* if an object with a lower number has a higher epoch.
Reason: the broker that wrote the object was already replaced. A *batch* is a group of changes that becomes visible in
one step. It consists of parts in one or more objects.

Invariants
- The caller feeds each object once, in the order of the numbers.
- A batch is returned once, after its last part was fed, with all of its parts in order.
- If the epoch rises, a batch without its last part is dropped. Reason: its broker was replaced, and never acknowledged
  the batch.
- A batch can be larger than the memory. So an incomplete batch keeps at most the first `held_max` bytes of its payloads
  in memory. For its other payloads, the batch keeps only their places in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.wal.fence import is_void
from pyspark_ledger.ledger.wal.log_object import LogObject, WalPart, WalRange

HELD_BYTES_MAX = 64 * 1024 * 1024


class PayloadPlace(NamedTuple):
    """Place of a payload in the log: the number of its object, and the offset in the object."""

    number: int
    offset: int


Part = tuple[WalPart, memoryview]


class ScannedBatch(NamedTuple):
    """Complete batch: the range of its objects, and its parts, each with its payload or the payload's place."""

    place: WalRange
    parts: list[tuple[WalPart, memoryview | PayloadPlace]]
    places: list[PayloadPlace]
    """The place of each payload."""


class LogScan:
    """State of one reader: the next number, the highest epoch so far, and the parts of an incomplete batch.

    A scan can start at the first live number, the number of the oldest object that is still needed. Earlier epochs
    need not be known, because the object with this number is never void.
    """

    def __init__(self, first: int, epoch: int = 0, held_max: int = HELD_BYTES_MAX) -> None:
        self.next = first
        self.epoch = epoch
        self._held_max = held_max
        self._held = 0
        self._parts: list[tuple[WalPart, memoryview | PayloadPlace]] = []
        self._places: list[PayloadPlace] = []
        self._began = first

    def feed(self, found: LogObject, where: str) -> Iterator[ScannedBatch]:
        """Yield the batches that this object completes. The object must have the next number."""
        header = found.header
        if header.number != self.next:
            raise Corrupt(f"{where} states number {header.number}, expected {self.next}")
        self.next += 1
        if is_void(header.epoch, self.epoch):
            return
        if header.epoch > self.epoch:
            self.epoch, self._parts, self._places = header.epoch, [], []
        at = found.start
        for part, payload in found.parts:
            if not self._parts:
                self._began, self._held = header.number, 0
            self._held += part.length
            place = PayloadPlace(header.number, at)
            self._parts.append((part, payload if self._held <= self._held_max else place))
            self._places.append(place)
            at += part.length
            if part.last:
                parts, self._parts = self._parts, []
                places, self._places = self._places, []
                yield ScannedBatch(WalRange(self._began, header.number), parts, places)
