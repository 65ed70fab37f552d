"""Goal: `ledger top` shows a broker live. Method: views of samples; the command in a terminal, with a broker."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.connector.cli.top.view import Choice, chosen_cursors, chosen_ledgers, view_of
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.protocol.cache import CacheReads
from pyspark_ledger.ledger.protocol.metrics import (
    AppendCounts,
    BrokerMetrics,
    CursorMetrics,
    LatencyHistogram,
    LedgerMetrics,
    OffloadMetrics,
)
from tests.rigs.broker_process import kill_all
from tests.rigs.broker_thread import served_store as store

__all__ = ["store"]
NONE = LatencyHistogram([0.001], [0, 0], 0.0)


def ledger(name: str, rows: int, *cursors: CursorMetrics) -> LedgerMetrics:
    return LedgerMetrics(name=name, rows=rows, appended=AppendCounts(1, 1, rows, rows * 10), cursors=list(cursors))


def cursor(name: str, rows: int, oldest_ms: int = 0, holes: int = 0) -> CursorMetrics:
    return CursorMetrics(name, rows, rows, rows * 10, oldest_ms, holes, leased=False)


def sample(now_ms: int, *ledgers: LedgerMetrics, started_ms: int = 0) -> BrokerMetrics:
    return BrokerMetrics(
        now_ms=now_ms, started_ms=started_ms, version="1", store_id="s", store_path="/s", epoch=1,
        ledger_count=len(ledgers), open_ledgers=len(ledgers), ledgers=list(ledgers), others=LedgerMetrics(name=""),
        unreadable={}, append_latency=NONE, sync_latency=NONE, requests={}, errors={}, recent_errors=[], given_up={},
        cache=CacheReads(), offload=OffloadMetrics(),
    )  # fmt: skip


def test_a_rate_is_the_difference_of_two_samples() -> None:
    view = view_of(sample(1000, ledger("a", 10)), sample(3000, ledger("a", 30), ledger("b", 4)))
    first, second = view.ledgers
    assert first.rates is not None
    assert (first.rates.in_rows, first.rates.in_bytes) == (10.0, 100.0)
    assert second.rates is None  # not in the earlier sample
    assert view.rates is not None
    assert view.rates.in_rows == 12.0


def test_a_broker_that_started_again_has_no_rate() -> None:
    before = sample(1000, ledger("a", 500))
    assert view_of(before, sample(3000, ledger("a", 2), started_ms=2000)).rates is None
    assert view_of(before, sample(3000, ledger("a", 2))).ledgers[0].rates is None
    assert view_of(None, before).rates is None


def test_keys_choose_table_order_and_line() -> None:
    now = sample(9000, ledger("a", 1, cursor("x", 5, 8000)), ledger("b", 2, cursor("y", 9, 1000), cursor("z", 0)))
    view, choice = view_of(None, now), Choice()
    by_backlog = choice.pressed("s")
    assert by_backlog.order_name == "backlog"
    assert [line.name for line in chosen_ledgers(view, by_backlog)] == ["b", "a"]
    assert [line.name for line in chosen_ledgers(view, by_backlog.pressed("r"))] == ["a", "b"]
    cursors = choice.pressed("\t")
    assert [line.cursor.name for line in chosen_cursors(view, cursors)] == ["y", "x", "z"]
    assert [line.oldest_ms for line in chosen_cursors(view, cursors)] == [8000, 1000, 0]
    assert choice.pressed("j").pressed("down").pressed("up").pressed("k").pressed("k").selected == 0
    assert choice.pressed("Z") == choice
    names = {Choice(order=number).order_name for number in range(50)}
    assert names == {"rows/s", "backlog", "age", "size", "name"}


def test_a_filter_finds_a_part_of_a_name_in_any_case() -> None:
    view = view_of(None, sample(1, ledger("Orders", 1, cursor("x", 1)), ledger("clicks", 1, cursor("orders", 1))))
    assert [line.name for line in chosen_ledgers(view, Choice(text="ORD"))] == ["Orders"]
    assert len(chosen_cursors(view, Choice(table="cursors", text="ord"))) == 2


def rows(count: int) -> list[dict[str, int]]:
    return [{"id": number} for number in range(count)]


def ledger_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyspark_ledger.connector.cli.app", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.thorough
def test_one_view_without_a_terminal_is_plain(store: LedgerStore, store_path: Path) -> None:
    store.create("orders").append(rows(7))
    store.ledger("orders").cursor("billing")
    done = ledger_command("top", "--store", str(store_path), "--interval", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert re.search(r"^orders +7 ", done.stdout, re.MULTILINE)
    once = ledger_command("top", "--store", str(store_path), "--interval", "0.1", "--once", "--output", "json")
    found = json.loads(once.stdout)
    assert found["ledgers"][0]["rows"] == 7
    assert found["rates"]["in_rows"] == 0.0
    assert msgspec.json.decode(once.stdout)["cursors"][0]["cursor"]["backlog_rows"] == 7


@pytest.mark.thorough
def test_json_of_a_live_view_is_refused(store: LedgerStore, store_path: Path) -> None:
    done = ledger_command("top", "--store", str(store_path), "--output", "json")
    assert (done.returncode, "--once" in done.stderr) == (1, True)


class Terminal:
    """Command in a pseudo-terminal of 100 by 24 characters."""

    def __init__(self, *arguments: str) -> None:
        self._controller, self.terminal = pty.openpty()
        termios.tcsetwinsize(self.terminal, (24, 100))
        self.modes = termios.tcgetattr(self.terminal)
        command = [sys.executable, "-m", "pyspark_ledger.connector.cli.app", "top", *arguments]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
        # A shell ignores SIGINT for what runs in its background, and children inherit that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(
                command, stdin=self.terminal, stdout=self.terminal, stderr=self.terminal, env=environment
            )
        finally:
            signal.signal(signal.SIGINT, before)
        self._text = ""

    def press(self, keys: str) -> None:
        self._text = ""
        os.write(self._controller, keys.encode())

    def wait(self, pattern: str) -> None:
        """Wait until the screen has shown a text since the last key."""
        until = time.monotonic() + 60
        while not re.search(pattern, self._text):
            assert time.monotonic() < until, f"{pattern!r} is not in {self._text!r}"
            if select.select([self._controller], [], [], 0.2)[0]:
                read = os.read(self._controller, 65536).decode(errors="replace")
                self._text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._text + read)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._controller)
        os.close(self.terminal)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    opened = Terminal(*arguments)
    try:
        yield opened
    finally:
        opened.close()


@pytest.mark.thorough
def test_keys_change_the_view_and_the_terminal_is_restored(store: LedgerStore, store_path: Path) -> None:
    store.create("orders").append(rows(7))
    store.create("clicks").append(rows(2))
    store.ledger("orders").cursor("billing")
    with terminal("--store", str(store_path), "--interval", "0.5") as shown:
        shown.wait(r"2 ledgers by rows/s")
        shown.press("s")
        shown.wait(r"by backlog")
        shown.press("\t")
        shown.wait(r"orders / billing +7")
        shown.press("\t/click")
        shown.wait(r"filter: click")
        shown.press("\n")
        shown.wait(r"1 ledger by rows/s, filter 'click'")
        shown.press("\x1b")
        shown.wait(r"2 ledgers")
        shown.press("?")
        shown.wait(r"q quit")
        shown.press("q")
        assert shown.process.wait(30) == 0
        assert termios.tcgetattr(shown.terminal) == shown.modes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.thorough
def test_a_signal_restores_the_terminal(store: LedgerStore, store_path: Path, number: int) -> None:
    store.create("orders")
    with terminal("--store", str(store_path)) as shown:
        shown.wait(r"1 ledger by")
        shown.process.send_signal(number)
        assert shown.process.wait(30) == 0
        assert termios.tcgetattr(shown.terminal) == shown.modes


@pytest.mark.broker_process
@pytest.mark.thorough
def test_the_view_goes_on_after_a_killed_broker(store: LedgerStore, store_path: Path) -> None:
    store.create("orders").append(rows(3))
    address = store.client.address
    with terminal("--store", address, "--interval", "0.5") as shown:
        shown.wait(r"orders +3")
        kill_all(store_path)
        shown.wait(r"reconnecting")
        store.ledger("orders").append(rows(1))
        shown.press("r")
        shown.wait(r"orders +4")
