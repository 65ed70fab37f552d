"""Live chart of one streaming query, in a notebook, a terminal or a log.

Rules
- A thread takes a sample every `every_ms` until the query ends or `stop()` is called. An error in the thread does not
  affect the query.
- A notebook shows a picture, which each sample replaces. A terminal shows a live view. Otherwise, each batch is printed
  as a line.
- Some notebooks cannot replace a picture. There the user displays the `QueryWatch` in another cell to see the present
  chart.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from pyspark_ledger.connector.display.chart import chart_html, chart_text
from pyspark_ledger.connector.display.samples import (
    Batches,
    LiveLag,
    QuerySample,
    batch_rows,
    hit_rate,
    query_title,
    reported_lag,
)
from pyspark_ledger.connector.session.metrics import ledgers_of, print_line
from pyspark_ledger.ledger.clock import Clock, monotonic_ms
from pyspark_ledger.ledger.display.notebook import NotebookDisplay, kernel

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
SAMPLES_MAX = 300
_STOP_SECONDS = 10.0


class _Screen(Protocol):
    def draw(self, watch: QueryWatch, batches: list[dict[str, Any]]) -> None:
        """Draw the present chart. `batches` has the batches that finished since the last call."""

    def close(self) -> None:
        """Leave the last drawing on the screen."""


class QueryWatch:
    """Watch of one query. `samples` are the newest measurements. `state` is running, ended, failed or stopped."""

    def __init__(self, query: StreamingQuery, *, every_ms: int = 1000, clock: Clock = monotonic_ms) -> None:
        self.title = query_title(query)
        self.state = "running"
        self.samples: deque[QuerySample] = deque(maxlen=SAMPLES_MAX)
        self._query = query
        self._every_ms = every_ms
        self._clock = clock
        self._batches = Batches(query)
        self._last: Mapping[str, Any] | None = None
        self._lag = LiveLag()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        shell = kernel()
        self._shown_in = None if shell is None else shell.execution_count
        self._screens: list[_Screen] = [_screen(self)]
        self._thread = threading.Thread(target=self._run, name="ledger-watch", daemon=True)

    def start(self) -> QueryWatch:
        """Start the watch. Call this method only once."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the watch. The query continues."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_SECONDS)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the watch has ended. Return False after the time-out."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def __repr__(self) -> str:
        return chart_text(self.title, self.state, list(self.samples))

    def _repr_html_(self) -> str:
        return chart_html(self.title, self.state, list(self.samples))

    def _ipython_display_(self) -> None:
        """Display the chart in this cell. Does nothing in the cell that started the watch, which shows it already."""
        shell = kernel()
        if shell is None:
            print(repr(self))  # noqa: T201 — in a terminal, IPython shows printed text
        elif shell.execution_count != self._shown_in:
            with self._lock:
                self._screens.append(_NotebookScreen(self))

    def _run(self) -> None:
        try:
            while self.state == "running":
                is_active = self._query.isActive and not self._stopped.is_set()
                batches = self._take_sample()
                if not is_active:
                    self.state = self._end()
                with self._lock:
                    for screen in self._screens:
                        screen.draw(self, batches)
                self._stopped.wait(self._every_ms / 1000 if self.state == "running" else 0)
        except Exception as error:  # noqa: BLE001 — a watch never disturbs a query, and a session may end first
            self.state = "lost"
            _log.info("the watch of %s ends: %s", self.title, error)
        finally:
            self._lag.close()
            for screen in self._screens:
                with suppress(Exception):
                    screen.close()

    def _end(self) -> str:
        if self._stopped.is_set():
            return "stopped"
        return "ended" if self._query.exception() is None else "failed"

    def _take_sample(self) -> list[dict[str, Any]]:
        """Measure the query. Return the batches that finished since the last measurement."""
        batches, now_ms = self._batches.new(), self._clock()
        if batches:
            self._last = batches[-1]
        rate = 0.0
        if self.samples:  # the chart begins with the first sample, so earlier batches are left out
            rate = batch_rows(batches) * 1000 / max(now_ms - self.samples[-1].at_ms, 1)
        if self._last is None:
            self.samples.append(QuerySample(now_ms, rows_per_s=rate))
            return batches
        lag = self._lag.of(self._last) or reported_lag(self._last)
        rates = hit_rate(batches[-1]) if batches else None
        self.samples.append(QuerySample(now_ms, int(self._last["batchId"]), rate, lag, rates))
        return batches


def _screen(watch: QueryWatch) -> _Screen:
    if kernel() is not None:
        return _NotebookScreen(watch)
    return _TerminalScreen() if sys.stdout.isatty() else _LineScreen()


class _NotebookScreen:
    def __init__(self, watch: QueryWatch) -> None:
        self._display = NotebookDisplay(watch._repr_html_(), repr(watch))

    def draw(self, watch: QueryWatch, batches: list[dict[str, Any]]) -> None:  # noqa: ARG002 — others use `batches`
        self._display.replace(watch._repr_html_(), repr(watch))

    def close(self) -> None:
        """Do nothing: a notebook keeps the picture."""


class _TerminalScreen:
    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(auto_refresh=False)
        self._live.start()

    def draw(self, watch: QueryWatch, batches: list[dict[str, Any]]) -> None:  # noqa: ARG002 — others use `batches`
        from rich.text import Text

        self._live.update(Text(repr(watch)), refresh=True)

    def close(self) -> None:
        self._live.stop()


class _LineScreen:
    def draw(self, watch: QueryWatch, batches: list[dict[str, Any]]) -> None:  # noqa: ARG002 — others use `watch`
        for batch in batches:
            for ledger in ledgers_of(batch):
                print_line(ledger)

    def close(self) -> None:
        """Do nothing: lines stay."""
