"""Order in which a reader applies log objects: void objects, the end of the log, batches over several objects. Pure.

    number   10        11          12          13 (claim)   14        15
    epoch    3         3           3           4            3         4
             apply     begins a    missing     batch of 11  void      apply
                       batch       would be    is dropped
                                   the end

A *claim* is an empty object of a broker that takes the store over. An object is *void* if an object with a lower number
has a higher epoch: a broker that was replaced wrote it.

Invariants
- Objects are fed in the order of their numbers, each once.
- A batch is returned once, when its last part is there, with all of its parts in order.
- A batch that has no last part when the epoch rises is dropped. Its broker was fenced and never acknowledged the batch.
- Of an incomplete batch, payloads of at most `held_max` bytes are kept in memory. Of the other payloads only the places
  are kept. So a batch may be larger than the memory.
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
    """Whole batch: the objects that have its parts, and the parts with their payloads or the places of these."""

    place: WalRange
    parts: list[tuple[WalPart, memoryview | PayloadPlace]]
    places: list[PayloadPlace]
    """The place of each payload."""


class LogScan:
    """Reader's state: the next number, the highest epoch, the parts of a batch that is not whole yet.

    The first live object is never void: a void object lies in a claimed window, and first live numbers do not.
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
