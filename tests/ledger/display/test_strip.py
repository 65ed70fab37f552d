"""Goal: a strip shows each segment's place and each position where it is, in bounded size. Method: descriptions made by
hand, of one segment to 10,000.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from pyspark_ledger.ledger.display.markup import WIDTH
from pyspark_ledger.ledger.display.strip import PARTS_MAX, Strip
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.positions.position_set import LedgerRuns
from pyspark_ledger.ledger.protocol.actions import LedgerDescription, SegmentDescription
from pyspark_ledger.ledger.protocol.ledgers import PublishedNote


def described(*segments: SegmentDescription, published: int = -1) -> LedgerDescription:
    properties = PublishedNote("id", published).properties("t") if published >= 0 else {}
    end = Position(segments[-1].ledger_id, segments[-1].entries) if segments else Position(-1, 0)
    sums = [sum(getattr(segment, name) for segment in segments) for name in ("entries", "size_bytes", "rows")]
    return LedgerDescription(
        "public/default/persistent/orders", "i", Position(0, 0), end, *sums, 1, 0, list(segments), [], properties,
        segment_count=len(segments),
    )  # fmt: skip


def segment(
    ledger_id: int, entries: int = 10, *, offloaded: bool = False, local: bool = True, is_open: bool = False
) -> SegmentDescription:
    return SegmentDescription(ledger_id, entries, entries * 100, entries * 5, 0 if is_open else 7, offloaded, local)


def runs(ledger_id: int, *ranges: tuple[int, int]) -> LedgerRuns:
    starts, ends = zip(*ranges, strict=True)
    return LedgerRuns(ledger_id, np.array(starts), np.array(ends))


def test_each_segment_has_its_place() -> None:
    strip = Strip(
        described(
            segment(1, offloaded=True, local=False),
            segment(2, offloaded=True),
            segment(4, offloaded=True, local=False),
            segment(5, offloaded=True),
            segment(7),
            segment(9, is_open=True),
            published=2,
        )
    )
    assert [part.place for part in strip.parts] == ["table", "table", "bucket", "both", "local", "open"]
    assert strip.text() == "[PPBblo]"
    assert strip.legend_text().startswith("P published 2, B in the bucket 1, b in the bucket and local 1")
    assert strip.parts[2].title() == "segment 4: in the bucket; 10 entries, 1000 B"


def test_parts_grow_with_their_entries_and_fill_the_width() -> None:
    strip = Strip(described(segment(1, 1), segment(2, 100), segment(3, 10_000), segment(4, 0, is_open=True)))
    rects = [(float(rect.get("x", "")), float(rect.get("width", ""))) for rect in strip.drawn(0, 10)]
    widths = [width for _, width in rects]
    assert widths[0] < widths[1] < widths[2]
    assert min(widths) >= 4, "each segment is visible"
    assert sum(rects[-1]) == pytest.approx(WIDTH)
    for (start, width), (following, _) in pairwise(rects):
        assert start + width < following


def test_positions_are_where_their_entries_are() -> None:
    strip = Strip(described(segment(3, 10), segment(5, 10), segment(8, 10)))
    xs = [strip.x(at) for at in (Position(3, 0), Position(3, 5), Position(5, 0), Position(8, 9), Position(8, 10))]
    assert xs == sorted(xs)
    assert xs[0] == 0
    assert xs[1] == pytest.approx(WIDTH / 6, abs=2)
    assert xs[2] == pytest.approx(WIDTH / 3, abs=2)
    assert xs[4] == WIDTH
    assert strip.x(EARLIEST) == strip.x(Position(-1, 0)) == strip.x(Position(1, 9)) == 0
    assert strip.x(LATEST) == strip.x(Position(9, 0)) == WIDTH
    assert strip.x(Position(4, 7)) == strip.x(Position(5, 0)) == strip.x(Position(3, 99)), "between two segments"


def test_an_empty_ledger_has_an_empty_strip() -> None:
    strip = Strip(described())
    assert (strip.parts, strip.text(), strip.x(Position(3, 1))) == ([], "", 0)
    assert len(strip.drawn(0, 10)) == 1
    Strip(described(segment(1, 0, is_open=True))).x(Position(1, 0))


def test_ranges_are_joined_at_the_scale_of_the_drawing() -> None:
    strip = Strip(described(segment(1, 720_000)))
    assert strip.covered([runs(1, (1000, 2000), (10_000, 20_000))]) == [(1, 2), (10, 20)]
    every_second = np.arange(0, 700_000, 2)
    assert strip.covered([LedgerRuns(1, every_second, every_second + 1)]) == [(0, 700)]
    assert strip.covered([]) == []
    assert strip.covered([runs(1, (719_999, 720_000))]) == [(719, 720)]


@pytest.mark.parametrize("period", [1, 2, 5_000])
def test_ten_thousand_segments_are_grouped(period: int) -> None:
    """Places that alternate every `period` segments."""
    segments = [segment(number, 3, offloaded=number // period % 2 == 0) for number in range(10_000)]
    strip = Strip(described(*segments))
    assert len(strip.parts) <= PARTS_MAX
    assert len(strip.text()) <= PARTS_MAX + 2
    assert sum(part.segments for part in strip.parts) == 10_000
    assert sum(part.entries for part in strip.parts) == 30_000
    assert (strip.counts["both"], strip.counts["local"]) == (5_000, 5_000)
    assert strip.parts[0].first == 0
    assert strip.parts[-1].last == 9_999
    assert len(strip.parts[0].counts) == (1 if period == 5_000 else 2), "a part of several places names them"
    assert strip.x(Position(5_000, 0)) == pytest.approx(WIDTH / 2, abs=WIDTH / PARTS_MAX)
