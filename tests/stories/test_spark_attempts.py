"""Goal: failed and speculative attempts of tasks write their rows once. Takes about two minutes.

Method: a cluster of two hosts, because Spark runs a second attempt on another host. One attempt fails after nearly all
of its rows. Another attempt sleeps there until a speculative attempt is done.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from tests.rigs import cluster as rig

pytestmark = pytest.mark.feature("failed and speculative attempts of tasks")

ROWS, TASKS = 4000, 4
FAILURE = "an attempt fails when its rows are written already"
DRIVER = """
import sys, time
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark_ledger import serve

master, host, store, checkpoint, rows, tasks = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
spark = (SparkSession.builder.master(master).appName("attempts").config("spark.driver.host", host)
    .config("spark.driver.bindAddress", host).config("spark.executor.memory", "512m")
    .config("spark.ui.enabled", "false").config("spark.sql.catalogImplementation", "in-memory")
    # The writer gets rows while the function below still runs.
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    .config("spark.speculation", "true").config("spark.speculation.interval", "100ms")
    .config("spark.speculation.multiplier", "1.5").config("spark.speculation.quantile", "0.5")
    .config("spark.speculation.minTaskRuntime", "500ms").config("spark.task.maxFailures", "4").getOrCreate())
served = serve(spark, store)
calls = {}

@udf("bigint", useArrow=False)
def unsteady(n):
    task = TaskContext.get()
    done = calls[task.taskAttemptId()] = calls.get(task.taskAttemptId(), 0) + 1
    if task.attemptNumber() == 0 and done == 0.9 * rows / tasks:
        if task.partitionId() == 1:
            raise ValueError("FAILURE")
        if task.partitionId() == 2:
            time.sleep(600)
    return n

written = spark.range(0, rows, 1, tasks).select(unsteady("id").alias("n"))
written.write.format("ledger").option("entryBytes", "1k").mode("append").save("batch")

stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", tasks).load()
steps = stream.select(unsteady("value").alias("n")).writeStream.format("ledger").option("entryBytes", "1k")
query = steps.option("checkpointLocation", checkpoint).start("stream")
while not [p for p in query.recentProgress if p["numInputRows"]]:
    if query.exception():
        raise query.exception()
    time.sleep(0.1)
query.stop()
served.stop()
spark.stop()
""".replace("FAILURE", FAILURE)


@pytest.mark.slow
@pytest.mark.spark
def test_attempts_that_fail_and_attempts_that_are_overtaken(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "write_unsteadily.py"
    script.write_text(DRIVER, encoding="utf-8")
    with rig.cluster(tmp_path) as cluster:
        if not cluster.apart:
            pytest.skip("two hosts on one machine take network namespaces, and those take root")
        words = [cluster.master, cluster.host, str(store), str(tmp_path / "c"), str(ROWS), str(TASKS)]
        with (tmp_path / "log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, str(script), *words], cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
            )
        try:
            status = driver.wait(280)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)  # also its JVM
    said = (tmp_path / "log").read_text(encoding="utf-8")
    assert status == 0, said[-4000:]
    assert FAILURE in said
    api = connect(store)
    assert sorted(api.ledger("batch").read()["n"].to_pylist()) == list(range(ROWS))
    rows = sorted(api.ledger("stream").read()["n"].to_pylist())
    assert len(rows) >= ROWS
    assert rows == list(range(len(rows)))
