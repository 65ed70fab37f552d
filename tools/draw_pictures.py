"""Draw the pictures of docs/notebooks.md: a ledger, a plan and a query, by the functions that draw them in notebooks.

    python -m tools.draw_pictures            writes docs/notebook-*.svg

In a notebook, a picture is HTML around SVG drawings. A page cannot include the HTML of another file, so this module
puts the drawings and the lines of text into one SVG. Its background is white, because the SVG cannot know the colours
of the page. A test compares the committed files.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np

from pyspark_ledger.connector.display.chart import chart_html
from pyspark_ledger.connector.display.read_plan import PlannedPart, ReadPlan
from pyspark_ledger.connector.display.samples import QueryLag, QuerySample
from pyspark_ledger.ledger.display.ledger_picture import ledger_html
from pyspark_ledger.ledger.display.views import CursorView, LedgerView
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_set import LedgerRuns
from pyspark_ledger.ledger.protocol.actions import LedgerDescription, SegmentDescription
from pyspark_ledger.ledger.protocol.cursors import CursorState
from pyspark_ledger.ledger.protocol.ledgers import PublishedNote

ROOT = Path(__file__).resolve().parent.parent
NAME = "public/default/persistent/orders"
SVG = "http://www.w3.org/2000/svg"
_WIDTH, _MARGIN, _LINE = 720, 14, 19


def ledger() -> LedgerDescription:
    """Return a ledger with segments on the disk, in the bucket, and in both."""
    entries = (420, 510, 480, 530, 390, 460, 500, 220)
    segments = [
        SegmentDescription(at + 3, count, count * 9_000, count * 120, 0 if at == 7 else 1, at < 5, local=at >= 3)
        for at, count in enumerate(entries)
    ]
    return LedgerDescription(
        NAME, "i", Position(3, 0), Position(10, 220), sum(entries), sum(entries) * 9_000, sum(entries) * 120, 1, 0,
        segments, ["billing", "fraud"], PublishedNote("t", 4).properties("table"), segment_count=len(segments),
    )  # fmt: skip


def cursors() -> tuple[CursorView, ...]:
    """Return two cursors: the first near the end of the ledger, the second earlier, with acknowledged ranges."""
    starts = np.array([60, 150, 300])
    ranges = (LedgerRuns(8, starts, starts + np.array([40, 90, 25])), LedgerRuns(9, starts[:1], starts[:1] + 200))
    billing = CursorState(NAME, "billing", Position(10, 160), False, 60, 7_200, 540_000)
    fraud = CursorState(NAME, "fraud", Position(7, 240), False, 875, 105_000, 7_000_000, acknowledged_ranges=4)
    return CursorView(billing, leased=True), CursorView(fraud, ranges)


def pictures() -> dict[str, str]:
    """Return each picture by the name of its file."""
    plan = [((4, 100), (6, 130)), ((6, 130), (8, 40)), ((8, 40), (10, 220))]
    parts = [
        PlannedPart(number, NAME, "log", PositionRange(Position(*start), Position(*end)))
        for number, (start, end) in enumerate(plan)
    ]
    samples = [
        QuerySample(
            1000 * at,
            at,
            4_000 + 3_000 * math.sin(at / 9) + 900 * (at % 3),
            QueryLag(max(60_000 - 1_000 * at, 0) + 3_000 * (at % 4), 1_200 + 100 * (at % 4)),
            min(0.35 + at / 110, 0.97),
        )
        for at in range(90)
    ]
    return {
        "notebook-ledger.svg": one_drawing(ledger_html(LedgerView(NAME, ledger(), cursors()))),
        "notebook-plan.svg": one_drawing(ReadPlan(("id", "item", "price"), 3, tuple(parts), (ledger(),))._repr_html_()),
        "notebook-query.svg": one_drawing(chart_html("bills", "running", samples)),
    }


def one_drawing(picture: str) -> str:
    """Return a picture of HTML and drawings as one drawing on a white background."""
    parts, y = [], float(_MARGIN)
    for child in ET.fromstring(picture):  # noqa: S314 — the project's own
        if child.tag == f"{{{SVG}}}svg":
            height = float(child.get("height", "0"))
            child.set("x", str(_MARGIN))
            child.set("y", str(y))
            parts.append(child)
            y += height + 6
        else:
            parts += _line(child, y + 13)
            y += _LINE
    size = {"width": str(_WIDTH + 2 * _MARGIN), "height": str(round(y + _MARGIN - 6))}
    root = ET.Element(f"{{{SVG}}}svg", {**size, "viewBox": f"0 0 {size['width']} {size['height']}"})
    root.append(ET.Element(f"{{{SVG}}}rect", {**size, "fill": "#fff", "rx": "8"}))
    root.extend(parts)
    ET.register_namespace("", SVG)
    text = re.sub(r" (style|xmlns)=\"display:block[^\"]*\"", "", ET.tostring(root, encoding="unicode"))
    return f"{text}\n"


def _line(line: ET.Element, y: float) -> list[ET.Element]:
    """Return a line of HTML as text, with a square for each colour of a legend."""
    drawn, x = [], float(_MARGIN)
    for span in line.iter():
        found = re.search(r"background:(#\w+)", span.get("style", ""))
        if found:
            square = {"x": f"{x:g}", "y": f"{y - 9:g}", "width": "10", "height": "10", "rx": "2", "fill": found[1]}
            drawn.append(ET.Element(f"{{{SVG}}}rect", square))
            x += 14
        words = (span.text or "").strip()
        if words:
            weight = "600" if span.tag == "b" else "400"
            place = {"x": f"{x:g}", "y": f"{y:g}", "style": f"font:{weight} 12.5px system-ui,sans-serif"}
            text = ET.Element(f"{{{SVG}}}text", {**place, "fill": "#1d2422" if span.tag == "b" else "#5d6966"})
            text.text = words
            drawn.append(text)
            x += 6.6 * len(words) + 12
    return drawn


def main() -> int:
    """Write the pictures."""
    for name, text in pictures().items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
