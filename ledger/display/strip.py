"""Segments of a ledger as a strip of bounded length, and the coordinates of positions on it. Pure.

    | table table | bucket | both | local | open |        parts, in the order of the log
    0                                      x(position)    coordinates from 0 to the width

The *place* of a segment says where its data is: in a published table, in the bucket, local, or both in the bucket and
local.

Rules
- If the ledger has at most `PARTS_MAX` segments, each part is one segment. Otherwise a part is a group of consecutive
  segments of the same place. If there are more than `PARTS_MAX` such groups, each part has an equal number of segments.
  Its place is then the place of most of its entries.
- The width of a part grows with its number of entries. Every part has a minimum width, so that each part is visible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from pyspark_ledger.ledger.display.amounts import counted, size_words
from pyspark_ledger.ledger.display.markup import COLOURS, WIDTH, Element, bar, element
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.bitset import Integers
from pyspark_ledger.ledger.positions.position_set import LedgerRuns
from pyspark_ledger.ledger.protocol.actions import LedgerDescription, SegmentDescription
from pyspark_ledger.ledger.protocol.ledgers import published_everywhere

Place = Literal["table", "bucket", "both", "local", "open"]
PLACES: dict[Place, str] = {
    "table": "published",
    "bucket": "in the bucket",
    "both": "in the bucket and local",
    "local": "local",
    "open": "open",
}
_LETTERS: dict[Place, str] = {"table": "P", "bucket": "B", "both": "b", "local": "l", "open": "o"}
PARTS_MAX = 60
_LEAST = 4.0
_GAP = 2.0


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """Consecutive segments from `first` to `last`.

    `place` is the place of most of their entries. `counts` has the number of segments for each place.
    """

    place: Place
    first: int
    last: int
    counts: Counter[Place]
    entries: int
    size_bytes: int

    @property
    def segments(self) -> int:
        return self.counts.total()

    def title(self) -> str:
        """Return the tooltip of the part."""
        ids = f"segment {self.first}" if self.first == self.last else f"segments {self.first} to {self.last}"
        place = ", ".join(f"{count} {PLACES[place]}" for place, count in self.counts.items())
        place = PLACES[self.place] if len(self.counts) == 1 else place
        return f"{ids}: {place}; {counted(self.entries, 'entry', 'entries')}, {size_words(self.size_bytes)}"


class Strip:
    """Strip of the segments of a ledger's description.

    The strip has no parts if the ledger is partitioned, or if the description was requested without its lists.
    """

    def __init__(self, described: LedgerDescription) -> None:
        published = published_everywhere(described.properties)
        places = [(segment, _place(segment, published)) for segment in described.segments]
        self.counts: Counter[Place] = Counter(place for _, place in places)
        self._ids = [segment.ledger_id for segment in described.segments]
        self._segment_entries = [segment.entries for segment in described.segments]
        self._before = list(accumulate(self._segment_entries, initial=0))
        self.parts = [_part(group) for group in _groups(places, PARTS_MAX)]
        self._ends = list(accumulate((part.entries for part in self.parts), initial=0))
        self._edges = _edges([part.entries for part in self.parts])

    def x(self, position: Position) -> float:
        """Return the coordinate of a position: 0 before the first entry, `WIDTH` after the last."""
        return float(self._xs(position.ledger_id, np.array([position.entry_id]))[0])

    def covered(self, runs: Iterable[LedgerRuns]) -> list[tuple[int, int]]:
        """Return the coordinates of ranges of entries. A range is at least 1 wide, and touching ranges are joined."""
        changes = np.zeros(WIDTH + 2, np.int64)
        for run in runs:
            starts = np.floor(self._xs(run.ledger_id, run.starts)).astype(np.int64)
            ends = np.maximum(np.ceil(self._xs(run.ledger_id, run.ends)).astype(np.int64), starts + 1)
            np.add.at(changes, starts, 1)
            np.add.at(changes, ends, -1)
        edges = np.flatnonzero(np.diff(np.cumsum(changes) > 0, prepend=False))
        return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))

    def _xs(self, ledger_id: int, entries: Integers) -> npt.NDArray[np.float64]:
        """Return the coordinates of entries of one segment.

        For a deleted segment, return the start of the next segment.
        """
        if not self.parts:
            return np.zeros(len(entries))
        at = bisect_left(self._ids, ledger_id)
        listed = at < len(self._ids) and self._ids[at] == ledger_id
        before = self._before[at] + np.clip(entries, 0, self._segment_entries[at] if listed else 0)
        return np.interp(before, self._ends, [*(start for start, _ in self._edges), float(WIDTH)])

    def drawn(self, y: float, height: float) -> list[Element]:
        """Return the parts as rectangles, or an empty frame if there is no part."""
        if not self.parts:
            dashed = {"fill": "none", "stroke": "currentColor", "stroke_opacity": ".35", "stroke_dasharray": "4 4"}
            return [bar(0.5, y + 0.5, WIDTH - 1, height - 1, rx=3, **dashed)]
        return [
            bar(start, y, end - start, height, part.title(), rx=2, fill=COLOURS[part.place])
            for part, (start, end) in zip(self.parts, self._edges, strict=True)
        ]

    def legend(self) -> Element:
        """Return the places that occur, with their colour and their number of segments."""
        items = []
        for place, words in PLACES.items():
            if self.counts[place]:
                square = f"display:inline-block;width:10px;height:10px;border-radius:2px;background:{COLOURS[place]}"
                label = element("span", f" {self.counts[place]:,} {words}")
                items.append(element("span", element("span", style=square), label, style="margin-right:14px"))
        return element("div", *items, style="font-size:12px;opacity:.85")

    def text(self) -> str:
        """Return the strip as letters, one for each part: `[PPBBllo]`; empty if there is no part."""
        return f"[{''.join(_LETTERS[part.place] for part in self.parts)}]" if self.parts else ""

    def legend_text(self) -> str:
        """Return the meaning of the letters, with the number of segments."""
        found = [
            f"{_LETTERS[place]} {words} {self.counts[place]:,}" for place, words in PLACES.items() if self.counts[place]
        ]
        return ", ".join(found)


def _place(segment: SegmentDescription, published: int) -> Place:
    if not segment.close_ms:
        return "open"
    if segment.ledger_id <= published:
        return "table"
    if not segment.offloaded:
        return "local"
    return "both" if segment.local else "bucket"


_Placed = tuple[SegmentDescription, Place]


def _groups(placed: Sequence[_Placed], parts_max: int) -> list[list[_Placed]]:
    if len(placed) <= parts_max:
        return [[segment] for segment in placed]
    groups = [list(group) for _, group in groupby(placed, lambda segment: segment[1])]
    if len(groups) <= parts_max:
        return groups
    cuts = [len(placed) * part // parts_max for part in range(parts_max + 1)]
    return [list(placed[start:end]) for start, end in pairwise(cuts)]


def _part(group: Sequence[_Placed]) -> DrawnPart:
    entries: Counter[Place] = Counter()
    for segment, place in group:
        entries[place] += segment.entries
    return DrawnPart(
        place=entries.most_common(1)[0][0],
        first=group[0][0].ledger_id,
        last=group[-1][0].ledger_id,
        counts=Counter(place for _, place in group),
        entries=entries.total(),
        size_bytes=sum(segment.size_bytes for segment, _ in group),
    )


def _edges(entries: Sequence[int]) -> list[tuple[float, float]]:
    """Return the start and the end of each part."""
    free = WIDTH - _LEAST * len(entries) - _GAP * max(len(entries) - 1, 0)
    total, edges, x = max(sum(entries), 1), [], 0.0
    for count in entries:
        width = _LEAST + free * (count / total if sum(entries) else 1 / len(entries))
        edges.append((x, x + width))
        x += width + _GAP
    return edges
