"""Goal: a subscription's backlog reaches zero, and a batch that was acknowledged early can be repeated.

Method: stories over a real session; a kill ends all processes of Spark at once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_ledger
from pyspark_ledger.connector.session.commit_listener import is_installed, settle
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from tests.rigs.available_now import RUN_ALL, run_all
from tests.rigs.deadline import wait_until
from tests.rigs.stream import append

pytestmark = pytest.mark.feature("acknowledgement of batches")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def acknowledging(spark_session: SparkSession) -> Iterator[SparkSession]:
    """Session after `configure()`. The listener is removed when the test ends."""
    from pyspark_ledger.connector.session import commit_listener as acknowledging

    yield pyspark_ledger.configure(spark_session)
    name = spark_session.conf.get(acknowledging.CONF)
    spark_session.streams.removeListener(acknowledging._listeners[name])
    spark_session.conf.unset(acknowledging.CONF)


@pytest.mark.thorough
def test_backlog_reaches_zero_also_after_the_last_batch(
    acknowledging: SparkSession, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the listener the last batch stays unacknowledged: Spark commits a batch when it plans the next."""
    spark = acknowledging
    assert pyspark_ledger.configure(spark) is spark, "twice is once"
    orders, lines = connect(store).ledger("orders"), []
    append(orders, 0, 25)
    watching = pyspark_ledger.watch(spark, lines.append)
    stream = spark.readStream.format("ledger").option("store", str(store)).option("subscription", "billing")
    stream = stream.option("startingPosition", "earliest").option("maxRowsPerTrigger", "10").load("orders")
    sink = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    for end in (25, 30):
        append(orders, 25, end)
        run_all(sink.trigger(availableNow=True).start)
        assert settle(spark, 30)
        state = orders.cursor("billing").state()
        assert (state.backlog_rows, state.backlog_entries, state.next_position) == (0, 0, orders.end().end)
        assert state.replay_floor == orders.end().end
    spark.streams.removeListener(watching)
    assert [line.rows for line in lines if line.rows] == [10, 10, 5, 5]
    assert [line.lag_rows for line in lines if line.rows] == [15, 5, 0, 0]
    assert lines[0].ended_by == "maxRowsPerTrigger"


@pytest.mark.thorough
def test_catch_up_acknowledges_the_last_batch_without_a_listener(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    spark, orders = spark_session.newSession(), connect(store).ledger("orders")
    append(orders, 0, 25)
    stream = spark.readStream.format("ledger").option("store", str(store)).option("subscription", "billing")
    stream = stream.option("startingPosition", "earliest").load("orders")
    sink = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = sink.trigger(processingTime="1 hour").start()
    wait_until(lambda: query.lastProgress is not None, "the first batch")
    query.stop()
    assert orders.cursor("billing").state().backlog_rows == 25, "no next batch was planned"
    assert pyspark_ledger.catch_up(query, 120)
    assert not is_installed(spark), "the query itself shows what is committed"
    assert orders.cursor("billing").state().backlog_rows == 0


@pytest.mark.thorough
def test_acknowledged_in_the_batch_trimmed_and_failed_it_comes_again(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    api = connect(store)
    api.client.ask(CreateLedger("orders", max_entries_per_ledger=2))
    orders, seen = api.ledger("orders"), []
    append(orders, 0, 9)
    orders.set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)

    def sink(frame: DataFrame, _: int) -> None:
        seen.append(sorted(row.n for row in frame.collect()))
        orders.cursor("billing").acknowledge(orders.end().end)
        orders.trim()
        if len(seen) == 1:
            message = "after everything was acknowledged"
            raise ValueError(message)

    stream = spark_session.readStream.format("ledger").option("store", str(store)).option("subscription", "billing")
    write = stream.option("startingPosition", "earliest").load("orders").writeStream.foreachBatch(sink)
    write = write.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    with pytest.raises(Exception, match="after everything was acknowledged"):
        write.start().awaitTermination(120)
    assert write.start().awaitTermination(120)
    assert seen == [list(range(9)), list(range(9))]


SCRIPT = """
import os, signal, sys
from pyspark_ledger import connect, session
store, checkpoint, mode = sys.argv[1:]
spark, orders = session("killed"), connect(store).ledger("orders")
def sink(frame, batch):
    rows = sorted(row.n for row in frame.collect())
    if batch == 1:
        orders.cursor("billing").acknowledge(orders.end().end)
        orders.trim()
    print("batch", batch, len(rows), sum(rows), flush=True)
    if mode == "kill" and batch == 1:
        os.killpg(0, signal.SIGKILL)
read = spark.readStream.format("ledger").option("store", store).option("subscription", "billing")
rows = read.option("startingPosition", "earliest").option("maxRowsPerTrigger", "10").load("orders")
write, names = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint), ()
RUN_ALL
# Nothing is waited for here: the process does it when it ends.
""".replace("RUN_ALL", RUN_ALL)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.spark
def test_killed_after_everything_was_acknowledged(store: Path, tmp_path: Path) -> None:
    api = connect(store)
    api.client.ask(CreateLedger("orders", max_entries_per_ledger=2))
    orders = api.ledger("orders")
    append(orders, 0, 40)
    orders.set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    script = tmp_path / "acknowledge_early.py"
    script.write_text(SCRIPT, encoding="utf-8")

    def run(mode: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, str(script), str(store), str(tmp_path / "c"), mode],
            cwd=tmp_path, start_new_session=True, capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        return done.returncode, [line for line in done.stdout.splitlines() if line.startswith("batch")]

    status, killed = run("kill")
    assert status == -signal.SIGKILL
    status, restarted = run("go on")
    assert status == 0
    assert killed == ["batch 0 10 45", "batch 1 10 145"]
    assert restarted == ["batch 1 10 145"], "the same rows; what was acknowledged before it was read is passed over"
    state = orders.cursor("billing").state()
    assert (state.backlog_rows, state.next_position) == (0, orders.end().end)
    assert state.replay_floor is not None
    assert state.replay_floor < state.next_position, "the end of the last batch that was delivered"
