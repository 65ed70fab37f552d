"""Goal: kill -9 of all processes of Spark, at any point of a batch, loses and duplicates no row.

Method: a copying process is killed repeatedly (driver, JVM and workers at once) and restarted on the same checkpoint.
The long story also routes its rows to changing ledgers and kills the broker. It takes one to five minutes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from tests.rigs import broker_process as fixtures
from tests.rigs.available_now import ONE_BATCH, RUN_ALL
from tests.rigs.deadline import wait_until
from tests.rigs.fault_points import FaultPoints

pytestmark = pytest.mark.feature("kills of Spark at any point of a batch")

ROWS = 600
ROUNDS = 3
COPY = """
import random, sys
from pyspark_ledger import session
store, checkpoint, ledgers = sys.argv[1:]
spark = session("copy")
read = spark.readStream.format("ledger").option("store", store).option("startingPosition", "earliest")
rows = read.option("maxRowsPerTrigger", "BATCH_ROWS").option("subscription", "copy").load("in").repartition(2)
if ledgers != "1":
    # Another routing in every process: a batch that is run again would go elsewhere.
    ledger = f"concat('out-', (n + {random.randrange(100)}) % {ledgers})"
    rows = rows.selectExpr("n", f"{ledger} as __ledger")
write = rows.writeStream.format("ledger").option("store", store).option("checkpointLocation", checkpoint)
write = write.option("createLedgers", "true")
names = ("out",) if ledgers == "1" else ()
RUN_ALL
""".replace("RUN_ALL", RUN_ALL).replace("BATCH_ROWS", "100" if ONE_BATCH else "20")


def copying(store: Path, tmp_path: Path, ledgers: int = 1) -> subprocess.Popen[bytes]:
    script = tmp_path / "copy_ledger.py"
    script.write_text(COPY, encoding="utf-8")
    with (tmp_path / "copy.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(script), str(store), str(tmp_path / "c"), str(ledgers)],
            cwd=tmp_path,
            start_new_session=True,
            stdout=log,
            stderr=log,
        )


@pytest.mark.fault
@pytest.mark.spark
def test_the_copy_is_exact_whenever_spark_is_killed(store: Path, tmp_path: Path) -> None:
    api, dice = connect(store), random.Random(11)
    source, sink = api.ledger("in"), api.ledger("out")
    for first in range(0, ROWS, 5):
        source.append(pa.table({"n": pa.array(range(first, first + 5), pa.int64())}))
    for _ in range(ROUNDS):
        had = copied(sink)
        process = copying(store, tmp_path)
        try:
            until = time.monotonic() + 180
            while copied(sink) == had and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(dice.uniform(0, 1))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        rows = sink.read().column("n").to_pylist()
        # Complete batches, each once: the rows are a prefix of the input, in any order of tasks.
        assert sorted(rows) == list(range(len(rows)))
        assert len(rows) > had
    process = copying(store, tmp_path)
    assert process.wait(180) == 0, (tmp_path / "copy.log").read_text(encoding="utf-8")[-3000:]
    assert sorted(sink.read().column("n").to_pylist()) == list(range(ROWS))


@pytest.mark.slow
@pytest.mark.spark
def test_a_routed_copy_is_exact_when_spark_and_the_broker_are_killed(store: Path, tmp_path: Path) -> None:
    api, dice = connect(store), random.Random(5)
    source, sinks = api.ledger("in"), [api.ledger(f"out-{number}") for number in range(3)]
    for first in range(0, ROWS, 5):
        source.append(pa.table({"n": pa.array(range(first, first + 5), pa.int64())}))
    for _ in range(2):
        had = sum(map(copied, sinks))
        process = copying(store, tmp_path, 3)
        try:
            until = time.monotonic() + 180
            while sum(map(copied, sinks)) == had and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            fixtures.kill_broker(store)
            time.sleep(dice.uniform(0, 1))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert sum(map(copied, sinks)) > had
    process = copying(store, tmp_path, 3)
    assert process.wait(240) == 0, (tmp_path / "copy.log").read_text(encoding="utf-8")[-3000:]
    rows = [n for sink in sinks for n in sink.read().column("n").to_pylist()]
    assert sorted(rows) == list(range(ROWS))


# Each run of a batch gives other rows and other texts. The file of places is for `fault_points`.
CHANGING = """
import sys
from pyspark_ledger import session
from tests.rigs.fault_points import OPTION, StoppingSource
store, checkpoint, points = sys.argv[1:]
spark = session("changing")
spark.dataSource.register(StoppingSource)
read = spark.readStream.format("ledger").option("store", store).option("startingPosition", "earliest").load("in")
rows = read.repartition(2).selectExpr("n", "uuid() AS id").where("n % 20 = 0 OR rand() < 0.5")
write = rows.writeStream.format("stopping").option("store", store).option(OPTION, points)
write.option("checkpointLocation", checkpoint).start("out").awaitTermination()
"""


@pytest.mark.fault
@pytest.mark.spark
def test_a_batch_whose_rows_change_keeps_its_first_commit_after_a_kill(store: Path, tmp_path: Path) -> None:
    """SIGKILL between the commit of the ledger and that of Spark. The query then runs the batch again, and goes on."""
    api, points = connect(store), FaultPoints(tmp_path / "points")
    source, sink = api.ledger("in"), api.ledger("out")
    command = [sys.executable, "-c", CHANGING, str(store), str(tmp_path / "c"), str(points.directory)]
    points.arm("committed")
    kept: list[object] = []
    for first in (0, 20):
        source.append(pa.table({"n": pa.array(range(first, first + 20), pa.int64())}))
        with subprocess.Popen(command, cwd=Path.cwd(), start_new_session=True, stderr=subprocess.DEVNULL) as process:
            try:
                wait_until(partial(has_more_rows, sink, len(kept)), "the batch is copied", 300)
                if not kept:
                    points.reached("committed")
            finally:
                os.killpg(process.pid, signal.SIGKILL)
        points.release()
        rows = sink.read().to_pylist()
        assert rows[: len(kept)] == kept, "the first commit of a batch stands"
        assert {row["n"] // 20 for row in rows[len(kept) :]} == {first // 20}
        kept = rows
    assert len({row["id"] for row in kept}) == len(kept)


def has_more_rows(sink: Ledger, rows: int) -> bool:
    return copied(sink) > rows


def copied(sink: Ledger) -> int:
    from pyspark_ledger.ledger.errors import NotFound

    try:
        return sink.describe().rows
    except NotFound:
        return 0
