"""Progress bar of long work, in a terminal or a notebook, with an estimate of the time left.

    with progress_bar("offload orders", shown=True) as bar:
        bar.update(0.25, "12.0 MiB of 48.0 MiB")

    offload orders  ━━━━━━━━──────────────  12.0 MiB of 48.0 MiB, about 36 s left

Rules
- A bar is drawn in a notebook, or on standard error if that is a terminal. Otherwise nothing is printed.
- The time left assumes that the rest is as fast as the part that is done.
- If the work raises an error, the bar stays at the place where it stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from pyspark_ledger.ledger.clock import Clock, monotonic_ms
from pyspark_ledger.ledger.display.amounts import age_words
from pyspark_ledger.ledger.display.markup import COLOURS, WIDTH, bar, element, soft_line, svg, written
from pyspark_ledger.ledger.display.notebook import NotebookDisplay, kernel

if TYPE_CHECKING:
    from rich.progress import Progress

_EVERY_MS = 200


class Screen(Protocol):
    """Place where a bar is drawn."""

    def draw(self, title: str, fraction: float | None, words: str) -> None:
        """Draw the bar. The fraction is from 0 to 1, or None if the end is unknown."""
        ...


class ProgressBar:
    """Bar of one piece of work, drawn at most every 200 ms."""

    def __init__(self, title: str, screen: Screen | None = None, clock: Clock = monotonic_ms) -> None:
        self._title = title
        self._screen = screen
        self._clock = clock
        self._started_ms = clock()
        self._drawn_ms: int | None = None
        self._last: tuple[float | None, str] | None = None

    @property
    def shown(self) -> bool:
        """Whether updates are drawn. If not, the caller need not count the remaining work."""
        return self._screen is not None

    def update(self, fraction: float | None, words: str) -> None:
        """Show how much is done, and `words` about it."""
        if self._screen is None:
            return
        self._last = None if fraction is None else min(max(fraction, 0.0), 1.0), words
        if self._drawn_ms is None or self._clock() - self._drawn_ms >= _EVERY_MS:
            self._draw()

    def close(self) -> None:
        """Draw the last update."""
        if self._last is not None:
            self._draw()

    def _draw(self) -> None:
        if self._screen is None or self._last is None:
            return
        (fraction, words), now = self._last, self._clock()
        left_ms = remaining_ms(now - self._started_ms, fraction)
        self._screen.draw(
            self._title, fraction, words if left_ms is None else f"{words}, about {age_words(left_ms)} left"
        )
        self._drawn_ms, self._last = now, None


SILENT = ProgressBar("")
"""Bar that is never drawn."""


def remaining_ms(elapsed_ms: int, fraction: float | None) -> int | None:
    """Return the estimated time left. Return None at the start, at the end, and if the end is unknown."""
    if not fraction or fraction >= 1:
        return None
    return round(elapsed_ms * (1 - fraction) / fraction)


def bar_html(title: str, fraction: float | None, words: str) -> str:
    """Return the picture of a bar. Pure."""
    full = bar(0, 0, WIDTH, 8, rx=4, fill="currentColor", fill_opacity=".14")
    done = bar(0, 0, WIDTH * (fraction or 0), 8, rx=4, fill=COLOURS["line"])
    label = f"{title}: {'unknown' if fraction is None else f'{fraction:.0%}'}"
    font = "font:13px/1.45 system-ui,sans-serif"
    return written(element("div", element("b", title), svg(8, label, full, done), soft_line(words), style=font))


@contextmanager
def progress_bar(title: str, *, shown: bool, clock: Clock = monotonic_ms) -> Iterator[ProgressBar]:
    """Yield a bar. Without `shown`, or without a terminal or a notebook, it is silent."""
    with _screen(title) if shown else nullcontext() as screen:
        made = ProgressBar(title, screen, clock)
        try:
            yield made
        finally:
            made.close()


def _screen(title: str) -> AbstractContextManager[Screen | None]:
    if kernel() is not None:
        return nullcontext(_NotebookScreen(title))
    return _terminal(title) if sys.stderr.isatty() else nullcontext()


class _NotebookScreen:
    def __init__(self, title: str) -> None:
        self._display = NotebookDisplay(bar_html(title, 0, ""), title)

    def draw(self, title: str, fraction: float | None, words: str) -> None:
        self._display.replace(bar_html(title, fraction, words), f"{title}: {words}")


class _TerminalScreen:
    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, title=title, words="")

    def draw(self, title: str, fraction: float | None, words: str) -> None:
        total = None if fraction is None else 1.0
        self._progress.update(self._task, completed=fraction or 0.0, total=total, title=title, words=words)


@contextmanager
def _terminal(title: str) -> Iterator[Screen]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.fields[title]}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    # Lines that are printed meanwhile appear above the bar. Redirected output must not go to the terminal.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as progress:
        yield _TerminalScreen(progress, title)
