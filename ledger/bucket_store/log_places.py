"""Places in the write-ahead log: for each byte of a file, the last log object that contains the byte.

    file      0 ........ 100 .... 180 ............... 400
    object    12 at 72   | 15 at 96 | 17 at 72               bytes 0 to 99 are in object 12, from its offset 72 on

Invariants
- The places of a file do not overlap, and are in the order of its bytes.
- If a byte is written twice, the place of the later write counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from typing import NamedTuple

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.wal.scan import PayloadPlace


class LogRange(NamedTuple):
    """Bytes `[start, start + length)` of the log object `number`."""

    number: int
    start: int
    length: int


class _Extent(NamedTuple):
    """Bytes `[start, end)` of a file. The first byte is at offset `at` of the log object `number`."""

    start: int
    end: int
    number: int
    at: int

    def cut(self, start: int, end: int) -> _Extent:
        start, end = max(self.start, start), min(self.end, end)
        return _Extent(start, end, self.number, self.at + start - self.start)


class LogPlaces:
    """Places of all files of one log. Not thread-safe."""

    def __init__(self) -> None:
        self._files: dict[str, list[_Extent]] = {}

    def write(self, name: str, offset: int, length: int, place: PayloadPlace) -> None:
        """Record that bytes `[offset, offset + length)` of a file are at `place`."""
        if not length:
            return
        extents, new = self._files.setdefault(name, []), _Extent(offset, offset + length, *place)
        last = extents[-1] if extents else None
        if last is not None and last.end == offset:
            if (last.number, last.at + last.end - last.start) == (new.number, new.at):
                extents[-1] = last._replace(end=new.end)
            else:
                extents.append(new)
            return
        first = bisect_right(extents, offset, key=lambda extent: extent.end)
        end = bisect_left(extents, new.end, key=lambda extent: extent.start)
        replaced = extents[first:end]
        before = [extent.cut(0, offset) for extent in replaced[:1] if extent.start < offset]
        after = [extent.cut(new.end, extent.end) for extent in replaced[-1:] if extent.end > new.end]
        extents[first:end] = [*before, new, *after]

    def keep(self, names: Collection[str]) -> None:
        """Forget the places of all other files."""
        self._files = {name: extents for name, extents in self._files.items() if name in names}

    def find(self, name: str, offset: int, length: int) -> list[LogRange]:
        """Return the places of bytes `[offset, offset + length)` of a file, in order.

        Raises Corrupt if the log lacks some of the bytes.
        """
        extents, end = self._files.get(name, []), offset + length
        found = []
        at = offset
        for extent in extents[bisect_right(extents, offset, key=lambda extent: extent.end) :]:
            if at >= end or extent.start > at:
                break
            part = extent.cut(at, end)
            found.append(LogRange(part.number, part.at, part.end - part.start))
            at = part.end
        if at < end:
            raise Corrupt(f"the log has no bytes of {name} at {at}, expected bytes {offset} to {end}")
        return found
