"""Goal: the chart shows rows, lag and cache of the samples. Method: samples made by hand, pictures parsed as XML."""

from __future__ import annotations

import re

from pyspark_ledger.connector.display.chart import chart_html, chart_text
from pyspark_ledger.connector.display.query_watch import SAMPLES_MAX
from pyspark_ledger.connector.display.samples import QueryLag, QuerySample
from pyspark_ledger.ledger.display.markup import WIDTH
from tests.rigs.pictures import SVG, drawings, texts

RISING = [QuerySample(1000 * at, at, at * 100.0, QueryLag(1000 - at * 100, 500), at / 10) for at in range(11)]


def lines(picture: str) -> list[list[tuple[float, float]]]:
    """The points of each line, in the order of the panels."""
    paths = [path for path in drawings(picture)[0].iter(f"{SVG}path") if path.get("fill") == "none"]
    return [[(float(x), float(y)) for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path.get("d", ""))] for path in paths]


def test_each_panel_draws_its_values() -> None:
    rows, lag, cache = lines(chart_html("bills", "running", RISING))
    assert [len(line) for line in (rows, lag, cache)] == [11, 11, 11]
    assert rows[0][0] == 0
    assert cache[-1][0] == WIDTH
    for line in (rows, cache):
        heights = [y for _, y in line]
        assert heights == sorted(heights, reverse=True), "a rising value rises"
    assert lag[0][1] < lag[-1][1], "a falling value falls"
    found = texts(chart_html("bills", "running", RISING))
    for words in ("bills", "running, batch 10, last 10.0 s", "1,000/s", "0 rows", "100%"):
        assert words in found


def test_an_unknown_value_divides_the_line() -> None:
    samples = [*RISING[:4], QuerySample(4000, 4), *RISING[5:]]
    rows, *others = lines(chart_html("bills", "running", samples))
    assert len(rows) == 11
    assert [len(line) for line in others] == [4, 6, 4, 6]


def test_a_query_without_a_batch_or_a_ledger_has_a_chart() -> None:
    assert "no sample yet" in texts(chart_html("bills", "running", []))
    picture = chart_html("bills", "ended", [QuerySample(5)])
    assert "no batch yet" in texts(picture)
    assert "unknown" in texts(picture)
    assert len(lines(picture)) == 1


def test_names_are_escaped() -> None:
    assert "<i>\\u202e&" in texts(chart_html("<i>\u202e&", "running", RISING))
    assert "\u202e" not in chart_text("<i>\u202e&", "running", RISING)


def test_the_text_has_the_newest_values() -> None:
    head, rows, lag, cache = chart_text("bills", "failed", RISING).splitlines()
    assert head == "bills failed, batch 10, last 10.0 s"
    assert rows.startswith("rows in  ▁")
    assert rows.endswith("1,000/s")
    assert "█" in rows
    assert lag.endswith("0 rows")
    assert cache.endswith("100%")
    assert "300 rows, 0.5 s" in chart_text("bills", "running", RISING[:8])


def test_a_long_watch_is_a_small_picture() -> None:
    samples = [QuerySample(1000 * at, at, 1e9 + at, QueryLag(10**12, 5), 0.5) for at in range(SAMPLES_MAX)]
    assert len(chart_html("bills", "running", samples)) < 40_000
    assert max(map(len, chart_text("bills", "running", samples).splitlines())) < 100
