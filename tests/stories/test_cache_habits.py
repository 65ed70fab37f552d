"""Goal: no behaviour of Spark in one query changes the expected reads of another query in the broker's cache.

Method: one test per behaviour, with Spark's calls over a real broker. Two subscriptions read one ledger, the first one
in an unusual way. The expected reads of the second one are counted, and then it reads without storage.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import ChangeSetting
from pyspark_ledger.ledger.protocol.cache import AskCache, CacheMetrics
from tests.rigs.broker_thread import store

__all__ = ["store"]

Offset = dict[str, Any]
ALL = ReadAllAvailable()
ROOT = Path(__file__).resolve().parents[2]
ROWS = 10


class Query:
    """Query with a subscription, and its batch over the whole ledger."""

    def __init__(self, store: Path, name: str) -> None:
        source = LedgerSource({"path": "orders", "store": str(store), "subscription": name}, "0")
        self.stream: LedgerStreamReader = source.stream_reader(source.schema())
        self.start = self._text(self.stream.initialOffset())
        self.end = self.planned(self.start)

    def planned(self, start: Offset) -> Offset:
        """Return the end of the next batch, as at a trigger. `start` is in Spark's commit log."""
        return self._text(self.stream.latestOffset(start, ALL))

    def task(self) -> list[int]:
        """Run one attempt of a task on a pickled copy, as in another process."""
        copy = pickle.loads(pickle.dumps(self.stream))  # our own bytes  # noqa: S301
        parts = [pickle.loads(pickle.dumps(part)) for part in self.stream.partitions(self.start, self.end)]  # noqa: S301
        return [n for batch in copy.read(parts[0]) for n in batch.column("n").to_pylist()]

    @staticmethod
    def _text(offset: object) -> Offset:
        found: Offset = json.loads(json.dumps(offset))
        return found


@pytest.fixture
def orders(store: Path) -> Ledger:
    ledger = connect(store).ledger("orders")
    ledger.append(pa.table({"n": pa.array([0], pa.int64())}))
    for name in ("odd", "other", "dead"):
        ledger.cursor(name, start=EARLIEST)
    for number in range(1, ROWS):
        ledger.append(pa.table({"n": pa.array([number], pa.int64())}))
    # Nothing expires during a test.
    ledger.client.ask(ChangeSetting("managedLedgerCacheEvictionTimeThresholdMillis", 10_000_000))
    return ledger


@pytest.fixture
def odd(store: Path, orders: Ledger) -> Query:
    return Query(store, "odd")


@pytest.fixture
def other(store: Path, odd: Query) -> Query:
    return Query(store, "other")


@pytest.fixture
def counted(orders: Ledger) -> Callable[[], CacheMetrics]:
    return lambda: orders.client.ask(AskCache())


Counted = Callable[[], CacheMetrics]


def finish(odd: Query, other: Query, counted: Counted, *, expected: int = 0) -> None:
    """Read with the other query without storage; then `expected` reads must remain."""
    before = counted().misses
    assert other.task() == list(range(ROWS))
    assert counted().misses == before == ROWS
    assert counted().expected_reads == expected
    odd.stream.stop()
    other.stream.stop()


def test_a_task_that_is_retried(odd: Query, other: Query, counted: Counted) -> None:
    for _ in range(4):
        assert odd.task() == list(range(ROWS))
        assert counted().expected_reads == ROWS
    finish(odd, other, counted)


def test_an_attempt_that_dies_in_the_middle_and_its_successor(odd: Query, other: Query, counted: Counted) -> None:
    batches = odd.stream.read(odd.stream.partitions(odd.start, odd.end)[0])
    next(iter(batches))
    del batches
    assert odd.task() == list(range(ROWS))
    assert counted().expected_reads == ROWS
    finish(odd, other, counted)


def test_a_speculative_copy_of_a_task(odd: Query, other: Query, counted: Counted) -> None:
    with ThreadPoolExecutor(4) as attempts:
        for found in [attempts.submit(odd.task) for _ in range(4)]:
            assert found.result(60) == list(range(ROWS))
    assert counted().expected_reads == ROWS
    finish(odd, other, counted)


def test_a_second_job_over_the_same_batch_before_and_after_it_is_committed(
    odd: Query, other: Query, counted: Counted
) -> None:
    for _ in range(2):  # as `foreachBatch` with two actions: the batch is planned and read once for each
        assert odd.task() == list(range(ROWS))
    assert odd.planned(odd.end) == odd.end  # this commits the batch
    assert counted().expected_reads == ROWS
    assert odd.task() == list(range(ROWS))
    assert counted().expected_reads == ROWS
    finish(odd, other, counted)


def test_batch_that_reads_part_of_its_range_settles_all_at_its_commit(
    odd: Query, other: Query, counted: Counted
) -> None:
    assert other.task() == list(range(ROWS))
    assert counted().expected_reads == ROWS
    assert odd.planned(odd.end) == odd.end  # an operator LIMIT or the optimiser skipped the batch
    assert counted().expected_reads == 0
    odd.stream.stop()
    other.stream.stop()


def test_a_cursor_that_is_reset(odd: Query, other: Query, counted: Counted, store: Path, orders: Ledger) -> None:
    assert odd.task() == list(range(ROWS))
    assert odd.planned(odd.end) == odd.end
    assert counted().expected_reads == ROWS
    odd.stream.stop()
    orders.cursor("odd").reset(EARLIEST)
    again = Query(store, "odd")
    assert counted().expected_reads == 2 * ROWS
    finish(again, other, counted, expected=ROWS)


@pytest.mark.thorough
def test_a_query_that_is_dead(other: Query, odd: Query, counted: Counted, store: Path) -> None:
    """An ended query is expected until its lease expires. A late read of its task does not register it again."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import pyspark_ledger.connector.read.ledger.subscription\n"
        "pyspark_ledger.connector.read.ledger.subscription.LEASE_MS = 1500\n"
        "from tests.stories.test_cache_habits import Query\n"
        "Query(Path(sys.argv[1]), 'dead')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert odd.task() == list(range(ROWS))
    died = subprocess.run([sys.executable, "-c", code, str(store)], check=False, timeout=60, cwd=ROOT)
    assert died.returncode == -9
    assert [reader.reader for reader in counted().ledgers[0].readers] == ["dead", "odd", "other"]
    assert counted().expected_reads == 2 * ROWS
    until = time.monotonic() + 60
    while len(counted().ledgers[0].readers) > 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert counted().expected_reads == ROWS
    finish(odd, other, counted)
