"""The command `ledger top`: a live view of a broker's metrics, redrawn at each interval until the user presses q.

Rules
- Without a terminal, or with `--once`, one view is printed without colours and keys. Its rates cover one interval.
- If the broker does not answer, the view shows the error. It continues when a broker answers again.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import Annotated, NoReturn

import typer
from rich.live import Live

from pyspark_ledger.connector.cli.ledgers import (
    Output,
    OutputOption,
    StoreOption,
    literal_console,
    opened,
    reporting,
    show,
)
from pyspark_ledger.connector.cli.top.keyboard import Keyboard, keyboard
from pyspark_ledger.connector.cli.top.screen import KEYS, PLAIN_WIDTH, drawn
from pyspark_ledger.connector.cli.top.view import Choice, View, view_of
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unavailable, Unsupported
from pyspark_ledger.ledger.protocol.metrics import AskMetrics, BrokerMetrics

_INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_ANSWER_MS = 5_000


@reporting
def top(
    store: StoreOption = None,
    interval: Annotated[float, typer.Option(help="Seconds between two samples.", min=0.1, max=3600)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one view and exit.")] = False,
    ledgers: Annotated[int, typer.Option(help="Maximum number of ledgers to watch.", min=1, max=100_000)] = 1_000,
    output: OutputOption = Output.text,
) -> None:
    """Watch ledgers, rates, backlogs, cache and offloads of a broker, live."""
    if output is Output.json and not once:
        raise Refused("--output json needs --once: a live view is no JSON document", hint="Add --once")
    client = opened(store).client
    if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        before = _sample(client, ledgers)
        pause(int(interval * 1000))
        view = view_of(before, _sample(client, ledgers))
        show(output, view, lambda console: console.print(drawn(view, Choice()), width=PLAIN_WIDTH))
        return
    with _ended_by_sigterm(), keyboard(sys.stdin.fileno()) as keys:
        _LiveView(client, keys, interval, ledgers).run()


def _sample(client: Client, ledgers: int) -> BrokerMetrics:
    try:
        metrics = client.ask(AskMetrics(ledgers), deadline_ms=_ANSWER_MS)
    except Unsupported as old:
        hint = "Upgrade the broker, or use `ledger lag` and `ledger describe --cache`"
        raise Unsupported("the broker's release has no metrics", hint=hint) from old
    return metrics


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the `with` block as Ctrl-C does, so that the terminal is restored."""

    def end(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


class _LiveView:
    """View of one broker until q is pressed."""

    def __init__(self, client: Client, keys: Keyboard, interval: float, ledgers: int) -> None:
        self._client = client
        self._keys = keys
        self._interval = interval
        self._ledgers = ledgers
        self._choice = Choice()
        self._typing = False
        self._help = False
        self._before: BrokerMetrics | None = None
        self._view: View | None = None
        self._problem = ""

    def run(self) -> None:
        """Draw until q is pressed."""
        console = literal_console()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            due = 0.0
            while True:
                if monotonic() >= due:
                    self._take_sample()
                    due = monotonic() + self._interval
                if self._view is not None:
                    size = {"lines": console.height, "width": console.width}
                    live.update(drawn(self._view, self._choice, self._note(), **size), refresh=True)
                for key in self._keys.keys(due - monotonic()):
                    if not self._typing and key == "q":
                        return
                    self._press(key)

    def _take_sample(self) -> None:
        try:
            now = _sample(self._client, self._ledgers)
        except Unavailable as error:
            self._problem = f"reconnecting: {error}"
            return
        except LedgerError:
            if self._view is None:
                raise
            self._problem = "the broker refused the request for metrics; trying again"
            return
        self._view, self._before, self._problem = view_of(self._before, now), now, ""

    def _note(self) -> str:
        if self._typing:
            return f"filter: {self._choice.text}_"
        return self._problem or (KEYS if self._help else f"every {self._interval:g} s · ? keys")

    def _press(self, key: str) -> None:
        if self._typing:
            self._type(key)
        elif key == "/":
            self._typing = True
        elif key == "?":
            self._help = not self._help
        elif key == "escape":
            self._choice = replace(self._choice, text="")
        elif key in "+-":
            others = [
                seconds
                for seconds in _INTERVALS
                if (seconds > self._interval) == (key == "+") and seconds != self._interval
            ]
            self._interval = (min if key == "+" else max)(others, default=self._interval)
        else:
            self._choice = self._choice.pressed(key)

    def _type(self, key: str) -> None:
        if key in ("\n", "\r", "escape"):
            self._typing = False
        elif key in ("\x7f", "\b"):
            self._choice = replace(self._choice, text=self._choice.text[:-1], selected=0)
        elif len(key) == 1 and key.isprintable():
            self._choice = replace(self._choice, text=self._choice.text + key, selected=0)
