"""Goal: a watch follows a query, never disturbs it and ends with it; `catch_up` waits with a bar.

Method: a query driven by hand, with reports as the stream writes them, and a real broker for the lag between batches.
`tests/stories/test_spark_watch.py` has queries of a real Spark.
"""

from __future__ import annotations

import io
import sys
import threading
from itertools import pairwise
from typing import Any

import pytest

import pyspark_ledger
from pyspark_ledger.connector.display.query_watch import QueryWatch
from pyspark_ledger.connector.display.samples import QueryLag
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.position import Position
from tests.rigs.deadline import wait_until
from tests.rigs.pictures import drawings, texts

NAME = "public/default/persistent/orders"


class DrivenQuery:
    """Streaming query whose batches and end a test decides."""

    def __init__(self, store: LedgerStore | None = None) -> None:
        self.name, self.id, self.runId = "bills <b>", "id", "run"
        self.recentProgress: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self.ended = threading.Event()
        self.lost: Exception | None = None
        self._store = store

    @property
    def isActive(self) -> bool:  # noqa: N802 — Spark's name
        if self.lost is not None:
            raise self.lost
        return not self.ended.is_set()

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 — Spark's name
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        return self.failure

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 — Spark's name
        ended = self.ended.wait(timeout)
        if ended and self.failure is not None:
            raise self.failure
        return ended

    def batch(self, rows: int, lag_rows: int, end: Position = Position(0, 0)) -> None:  # noqa: B008 — immutable
        number = len(self.recentProgress)
        store = ("/nowhere", "none") if self._store is None else (self._store.location, self._store.client.store_id)
        lag = {"lagEntries": 1, "lagRows": lag_rows, "lagBytes": 9, "lagMs": 400, "lastPublishMs": 1}
        incarnation = "i" if self._store is None else self._store.ledger("orders").describe().incarnation
        at = {"ledger": end.ledger_id, "entry": end.entry_id, "id": incarnation}
        report = {
            "v": 1, "store": store[0], "storeId": store[1], "subscription": "", "credentials": {},
            "batch": {"endedBy": "maxRowsPerTrigger"}, "ledgers": {NAME: {**at, **lag}},
            "reads": {"mappedBytes": 1, "sentBytes": 0, "cacheHitRate": 0.5},
        }  # fmt: skip
        source = {"numInputRows": rows, "latestOffset": report, "endOffset": {"v": 1, "ledgers": {NAME: at}}}
        progress = {"name": self.name, "batchId": number, "timestamp": f"{number:03}", "sources": [source]}
        self.recentProgress.append(progress)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watching(query: DrivenQuery) -> QueryWatch:
    return pyspark_ledger.watch(query, every_s=0.1)


def test_each_batch_counts_once_and_the_watch_ends_with_the_query(capsys: pytest.CaptureFixture[str]) -> None:
    query = DrivenQuery()
    query.batch(1000, 900)  # before the watch: in no interval of the chart
    watch = watching(query)
    wait_until(lambda: watch.samples, "the first sample")
    for rows in (10, 20, 30):
        query.batch(rows, 40)
    wait_until(lambda: watch.samples[-1].batch == 3, "the third batch")
    query.ended.set()
    assert watch.wait(30)
    assert watch.state == "ended"
    samples = list(watch.samples)
    seconds = [(after.at_ms - before.at_ms) / 1000 for before, after in pairwise(samples)]
    counted = [sample.rows_per_s * passed for sample, passed in zip(samples[1:], seconds, strict=True)]
    assert sum(counted) == pytest.approx(60)
    assert samples[-1].lag == QueryLag(40, 400), "the broker is away: the lag of the last batch"
    assert "bills <b>" in texts(watch._repr_html_())
    assert len(drawings(watch._repr_html_())) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.split(":")[0] for line in printed.err.splitlines()] == [f"bills <b> batch {at}" for at in range(4)]


def test_the_lag_between_batches_is_the_brokers(api: LedgerStore) -> None:
    orders = api.ledger("orders")
    end = orders.append([{"id": at} for at in range(5)])
    query = DrivenQuery(api)
    query.batch(5, 0, end)
    watch = watching(query)
    wait_until(lambda: watch.samples and watch.samples[-1].lag is not None, "a lag")
    assert watch.samples[-1].lag.rows == 0
    orders.append([{"id": 1}] * 7)
    wait_until(lambda: watch.samples[-1].lag.rows == 7, "the new rows, without a batch")
    watch.stop()
    assert watch.state == "stopped"
    assert not query.ended.is_set()


@pytest.mark.parametrize("how", ["failed", "lost"])
def test_a_query_that_fails_ends_the_watch(how: str) -> None:
    query = DrivenQuery()
    watch = watching(query)
    wait_until(lambda: watch.samples, "the first sample")
    if how == "failed":
        query.failure = RuntimeError("a secret row")
        query.ended.set()
    else:
        query.lost = ConnectionError("the session is gone")
    assert watch.wait(30)
    assert watch.state == how
    assert how in texts(watch._repr_html_())
    assert "secret" not in repr(watch) + watch._repr_html_()


def test_a_screen_that_fails_does_not_reach_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("pyspark_ledger.connector.display.query_watch.print_line", fails)
    query = DrivenQuery()
    query.batch(1, 0)
    watch = watching(query)
    assert watch.wait(30)
    assert watch.state == "lost"
    assert not query.ended.is_set()


def test_a_terminal_gets_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    query = DrivenQuery()
    query.batch(100, 300)
    watch = watching(query)
    wait_until(lambda: "300 rows, 0.4 s" in terminal.getvalue(), "the lag")
    query.ended.set()
    assert watch.wait(30)
    assert "bills <b> ended, batch 0" in terminal.getvalue()
    assert "rows in" in terminal.getvalue()


def test_options_of_a_session_are_refused_for_a_query() -> None:
    with pytest.raises(TypeError, match=r"for watch\(spark\)"):
        pyspark_ledger.watch(DrivenQuery(), print)


def test_catch_up_counts_rows_and_waits_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    query, caught = DrivenQuery(), []
    thread = threading.Thread(target=lambda: caught.append(pyspark_ledger.catch_up(query)))
    thread.start()
    query.batch(100, 300)
    wait_until(lambda: "100 of 400 rows" in terminal.getvalue(), "a quarter")
    query.batch(300, 0)
    query.ended.set()
    thread.join(30)
    assert [(bool(result), result.rows, result.rows_left) for result in caught] == [(True, 400, 0)]
    assert "400 rows" in terminal.getvalue().split("100 of 400 rows")[-1]


def test_catch_up_raises_the_querys_error_and_knows_a_time_out(capsys: pytest.CaptureFixture[str]) -> None:
    query = DrivenQuery()
    result = pyspark_ledger.catch_up(query, 0.01)
    assert (bool(result), result.reason) == (False, "the time-out came first")
    query.failure = RuntimeError("no")
    query.ended.set()
    with pytest.raises(RuntimeError, match="no"):
        pyspark_ledger.catch_up(query)
    assert capsys.readouterr() == ("", ""), "silent without a terminal"
