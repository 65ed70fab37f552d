"""Goal: a bar says how far work is and how long it takes, and is silent where nobody looks. Method: a clock moved by
hand, a terminal made of a text buffer.
"""

from __future__ import annotations

import io
import sys

import pytest

from pyspark_ledger.ledger.display.progress_bar import SILENT, ProgressBar, bar_html, progress_bar, remaining_ms
from tests.rigs.pictures import bars, drawings, parsed, texts


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Lines:
    """Screen that keeps what is drawn."""

    def __init__(self) -> None:
        self.drawn: list[tuple[float | None, str]] = []

    def draw(self, title: str, fraction: float | None, words: str) -> None:
        assert title == "offload"
        self.drawn.append((fraction, words))


class Hands:
    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Hands:
    return Hands()


def test_the_time_left_follows_the_share_that_is_done() -> None:
    assert remaining_ms(1_000, 0.25) == 3_000
    assert [remaining_ms(1_000, fraction) for fraction in (None, 0.0, 1.0)] == [None] * 3


def test_an_update_has_words_and_the_time_left(clock: Hands) -> None:
    screen = Lines()
    bar = ProgressBar("offload", screen, clock)
    for seconds, fraction in ((0, 0.0), (30, 0.25), (60, 0.5)):
        clock.now = seconds * 1000
        bar.update(fraction, f"{fraction:.0%}")
    assert screen.drawn == [(0.0, "0%"), (0.25, "25%, about 1 min 30 s left"), (0.5, "50%, about 1 min 0 s left")]


def test_many_updates_are_drawn_rarely_and_the_last_one_always(clock: Hands) -> None:
    screen = Lines()
    bar = ProgressBar("offload", screen, clock)
    for number in range(1000):
        clock.now = number
        bar.update(number / 1000, str(number))
    bar.close()
    bar.close()
    assert len(screen.drawn) == 6
    assert screen.drawn[-1][1].startswith("999,")


def test_a_share_stays_between_nothing_and_all(clock: Hands) -> None:
    screen = Lines()
    bar = ProgressBar("offload", screen, clock)
    for number, fraction in enumerate((-1.0, 7.0, None)):
        clock.now = number * 1000
        bar.update(fraction, "words")
    assert screen.drawn == [(0.0, "words"), (1.0, "words"), (None, "words")]


@pytest.mark.parametrize("shown", [True, False])
def test_nothing_is_printed_without_a_terminal(shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("offload", shown=shown) as bar:
        assert not bar.shown
        bar.update(0.5, "half")
    SILENT.update(0.5, "half")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_the_bar_also_of_odd_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar("offload [red]a[/red]", shown=True) as bar:
        assert bar.shown
        bar.update(0.5, "1 of 2 [bold]")
        bar.update(1.0, "2 of 2 [bold]")
    assert "offload [red]a[/red]" in terminal.getvalue()
    assert "2 of 2 [bold]" in terminal.getvalue()


def test_only_a_shown_bar_is_drawn_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress_bar("offload", shown=False) as bar:
        bar.update(0.5, "half")
    assert terminal.getvalue() == ""


def test_the_picture_is_as_long_as_the_share() -> None:
    picture = bar_html("offload <a>", 0.25, "1 of 4, about 3.0 s left")
    (_, full, _), (_, done, _) = bars(drawings(picture)[0])
    assert done == full / 4
    assert "offload <a>" in texts(picture)
    assert drawings(picture)[0].get("aria-label") == "offload <a>: 25%"
    assert parsed(bar_html("a", None, "first batch")) is not None
