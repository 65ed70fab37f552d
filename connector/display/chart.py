"""Chart of a query over time, as SVG and as text: input rows, lag (unread rows), and use of the cache. Pure functions.

rows in         1,200/s    lag        3,400 rows    cache        98 %
▁▂▃▅▇▇▅▃▂▁▁▂▃▅             ▇▇▆▅▄▃▂▁▁               ▇▇▇▇▆▇▇▇▇▇▇
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark_ledger.connector.display.samples import QuerySample
from pyspark_ledger.ledger.display.amounts import age_words, counted
from pyspark_ledger.ledger.display.markup import COLOURS, WIDTH, Element, bar, card, element, shown, svg, written

_GAP, _HEIGHT, _TOP = 24.0, 84.0, 22.0
_BLOCKS = "▁▂▃▄▅▆▇█"
_TEXT_WIDTH = 40


@dataclass(frozen=True, slots=True)
class _Panel:
    """Curve of one figure over time. `value` returns the number of a sample, `words` returns the number's text.

    `top` is the number at the upper edge. None means the largest number of the samples, at least 1.
    """

    title: str
    value: Callable[[QuerySample], float | None]
    words: Callable[[QuerySample], str]
    top: float | None = None


def _lag_words(sample: QuerySample) -> str:
    if sample.lag is None:
        return "unknown"
    return f"{counted(sample.lag.rows, 'row')}, {age_words(sample.lag.waited_ms)}" if sample.lag.rows else "0 rows"


_PANELS = (
    _Panel("rows in", lambda sample: sample.rows_per_s, lambda sample: f"{sample.rows_per_s:,.0f}/s"),
    _Panel("lag", lambda sample: None if sample.lag is None else sample.lag.rows, _lag_words),
    _Panel("cache", lambda sample: sample.hit_rate, lambda sample: f"{sample.hit_rate or 0:.0%}", 1.0),
)


def chart_html(title: str, state: str, samples: Sequence[QuerySample]) -> str:
    """Return the chart. The samples are in the order of time."""
    width = (WIDTH - 2 * _GAP) / len(_PANELS)
    panels = [
        _drawn(panel, samples, number * (width + _GAP), width, _TOP, _HEIGHT) for number, panel in enumerate(_PANELS)
    ]
    label = "; ".join(f"{panel.title} {_latest(panel, samples)}" for panel in _PANELS)
    return written(card(title, _soft(state, samples), svg(_HEIGHT, label, *panels)))


def chart_text(title: str, state: str, samples: Sequence[QuerySample]) -> str:
    """Return the chart as lines of text, with a character for each of the last samples."""
    lines = [f"{shown(title)} {_soft(state, samples)}"]
    for panel in _PANELS:
        values = [panel.value(sample) for sample in samples[-_TEXT_WIDTH:]]
        top = _top(panel, values)
        line = "".join(" " if value is None else _BLOCKS[min(int(value / top * 7.99), 7)] for value in values)
        lines.append(f"{panel.title:<8} {line:<{_TEXT_WIDTH}} {_latest(panel, samples)}")
    return "\n".join(lines)


def _soft(state: str, samples: Sequence[QuerySample]) -> str:
    if not samples:
        return f"{state}, no sample yet"
    batch = "no batch yet" if samples[-1].batch < 0 else f"batch {samples[-1].batch}"
    return f"{state}, {batch}, last {age_words(samples[-1].at_ms - samples[0].at_ms)}"


def _latest(panel: _Panel, samples: Sequence[QuerySample]) -> str:
    """Return the newest known value in words."""
    known = [sample for sample in samples if panel.value(sample) is not None]
    return panel.words(known[-1]) if known else "unknown"


def _top(panel: _Panel, values: Sequence[float | None]) -> float:
    return panel.top or max([1.0, *(value for value in values if value is not None)])


def _drawn(panel: _Panel, samples: Sequence[QuerySample], x: float, width: float, top: float, bottom: float) -> Element:
    font = "font:12px system-ui,sans-serif"
    title = element("text", panel.title, x=x, y=12, fill="currentColor", opacity=".72", style=font)
    latest = _latest(panel, samples)
    value = element(
        "text", latest, x=x + width, y=12, text_anchor="end", fill="currentColor", style=f"{font};font-weight:600"
    )
    lines = [
        line
        for part in _parts(panel, samples, x, width, top, bottom)
        for line in (_path(part, bottom, area=True), _path(part, bottom, area=False))
    ]
    base = bar(x, bottom - 1, width, 1, fill="currentColor", fill_opacity=".25")
    return element("g", title, value, base, *lines)


_Points = list[tuple[float, float]]


def _parts(
    panel: _Panel, samples: Sequence[QuerySample], x: float, width: float, top: float, bottom: float
) -> list[_Points]:
    """Return the points of the curve, in a list for each part. An unknown value ends a part."""
    values = [panel.value(sample) for sample in samples]
    highest = _top(panel, values)
    span = max(samples[-1].at_ms - samples[0].at_ms, 1) if samples else 1
    parts: list[_Points] = [[]]
    for sample, value in zip(samples, values, strict=True):
        if value is None:
            parts.append([])
            continue
        across = (sample.at_ms - samples[0].at_ms) / span
        parts[-1].append((x + width * across, bottom - (bottom - top) * min(value / highest, 1.0)))
    return [part for part in parts if part]


def _path(points: _Points, bottom: float, *, area: bool) -> Element:
    (first, _), (last, _) = points[0], points[-1]
    if len(points) == 1:
        last += 1.5
        points = [points[0], (last, points[0][1])]
    line = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    if area:
        path = f"M{first:.1f} {bottom:.1f} L{line} L{last:.1f} {bottom:.1f} Z"
        return element("path", d=path, fill=COLOURS["line"], fill_opacity=".22")
    return element("path", d=f"M{line}", fill="none", stroke=COLOURS["line"], stroke_width=1.5, stroke_linejoin="round")
