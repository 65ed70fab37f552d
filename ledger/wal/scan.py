"""Order in which a reader applies log objects: void objects, the end of the log, batches over several objects. Pure.

    number   10        11          12          13 (claim)   14        15
    epoch    3         3           3           4            3         4
             apply     begins a    missing     batch of 11  void      apply
                       batch       would be    is dropped
                                   the end

Invariants
- Objects are fed in the order of their numbers, each once.
- A batch is returned once, when its last part is there, with all of its parts in order.
- A batch that has no last part when the epoch rises is dropped. Its broker was fenced and never acknowledged the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.wal.fence import is_void
from pyspark_ledger.ledger.wal.log_object import LogObject, WalPart, WalRange


class Batch(NamedTuple):
    """Whole batch: the objects that have its parts, and the parts with their payloads."""

    place: WalRange
    parts: list[tuple[WalPart, memoryview]]


class LogScan:
    """Reader's state: the next number, the highest epoch, the parts of a batch that is not whole yet.

    The first live object is never void: a void object lies in a claimed window, and first live numbers do not.
    """

    def __init__(self, first: int, epoch: int = 0) -> None:
        self.next = first
        self.epoch = epoch
        self._parts: list[tuple[WalPart, memoryview]] = []
        self._began = first

    def feed(self, found: LogObject, where: str) -> Iterator[Batch]:
        """Yield the batches that this object completes. The object must have the next number."""
        header = found.header
        if header.number != self.next:
            raise Corrupt(f"{where} states number {header.number}, expected {self.next}")
        self.next += 1
        if is_void(header.epoch, self.epoch):
            return
        if header.epoch > self.epoch:
            self.epoch, self._parts = header.epoch, []
        for part, payload in found.parts:
            if not self._parts:
                self._began = header.number
            self._parts.append((part, payload))
            if part.last:
                parts, self._parts = self._parts, []
                yield Batch(WalRange(self._began, header.number), parts)
