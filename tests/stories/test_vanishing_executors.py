"""Goal: executors that vanish at random lose and duplicate no row, and nothing waits longer than a bound.

Method: a standalone cluster of two workers in network namespaces, with dynamic allocation and decommission. The broker
runs on the host of the first worker, so the driver is on another host than the broker. There are 20 rounds, in turn a
write of the sink and a read. In each round an executor is killed while tasks run. Every fifth round decommissions the
executor instead. A round without running tasks at the kill is repeated. Takes about seven minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rigs import cluster as rig
from tests.rigs.certificates import Authority

ROUNDS, ROWS, TASKS = 20, 2_000, 4
ROUND_SECONDS_MAX = 90
DRIVER = """
import json, os, random, signal, socket, subprocess, sys, threading, time
from contextlib import suppress
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark_ledger import configure
from tests.rigs.processes import command_words, is_running

master, host, store, folder, rounds, rows, tasks = *sys.argv[1:5], *map(int, sys.argv[5:8])
conf = {
    "spark.driver.host": host, "spark.driver.bindAddress": host, "spark.executor.memory": "512m",
    "spark.ui.enabled": "false", "spark.sql.catalogImplementation": "in-memory", "spark.sql.shuffle.partitions": "2",
    "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1", "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "4s", "spark.task.maxFailures": "8",
    "spark.speculation": "true", "spark.speculation.interval": "200ms", "spark.speculation.multiplier": "3",
    "spark.decommission.enabled": "true", "spark.storage.decommission.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50", "spark.executor.decommission.killInterval": "3s",
}
builder = SparkSession.builder.master(master).appName("vanishing")
for name, value in conf.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
tls = {name: f"{folder}/{file}" for name, file in (
    ("tlsTrustCertsFilePath", "authority.pem"), ("tlsCertificateFilePath", "client.crt"),
    ("tlsKeyFilePath", "client.key"),
)}
for _ in range(100):  # until the broker listens
    try:
        socket.create_connection((store.split("/")[2].split(":")[0], 16651), 1).close()
        break
    except OSError:
        time.sleep(0.2)
configure(spark, store=store, options={**tls, "authParams": f"file:{folder}/token"})
tracker, dice = spark.sparkContext.statusTracker(), random.Random(7)

@udf("bigint", useArrow=False)
def slow(n):
    time.sleep(0.002)
    return n

def executors():
    found = subprocess.run(["pgrep", "-f", f"CoarseGrainedExecutorBackend.*{spark.sparkContext.applicationId}"],
                           capture_output=True, text=True).stdout.split()
    return [int(pid) for pid in found if b"java" in command_words(int(pid))[0]]

def active_tasks():
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage)

class Killer(threading.Thread):
    # Ends one executor while tasks run, and notes the number of running tasks.
    def __init__(self, number):
        super().__init__(daemon=True)
        self.signal, self.tasks, self.pid = signal.SIGPWR if number % 5 == 4 else signal.SIGKILL, 0, 0
        self.stopped = threading.Event()
    def run(self):
        while not self.stopped.wait(0.02):
            if active_tasks() >= 2 and executors():
                time.sleep(dice.uniform(0.1, 0.7))
                running = active_tasks()
                pids = executors()
                if running and pids:
                    self.pid = dice.choice(pids)
                    with suppress(ProcessLookupError):  # the executor has just ended by itself
                        os.kill(self.pid, self.signal)
                        self.tasks = running
                        return

def round_of(number, work):
    while True:
        killer, start = Killer(number), time.monotonic()
        killer.start()
        work()
        seconds = time.monotonic() - start
        killer.stopped.set()
        killer.join()
        if killer.tasks:  # a round without a hit is repeated
            return {"signal": killer.signal.name, "tasks": killer.tasks, "seconds": seconds,
                    "gone": not is_running(killer.pid)}

batches = 0
def write():
    global batches
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", tasks)
    steps = rate.load().select(slow("value").alias("n")).writeStream.format("ledger").option("entryBytes", "1k")
    query = steps.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start("written")
    query.awaitTermination()
    batches += sum(bool(progress["numInputRows"]) for progress in query.recentProgress)

def read():
    frame = spark.read.format("ledger").option("minPartitionBytes", "8k").option("targetPartitionBytes", "16k")
    frame = frame.load("fixed")
    total, count = frame.select(slow("n").alias("n")).selectExpr("sum(n)", "count(*)").first()
    assert (total, count) == (rows * (rows - 1) // 2, rows), (total, count)

fixed = spark.range(0, rows, 1, tasks).withColumnRenamed("id", "n").write.format("ledger").mode("append")
fixed.option("entryBytes", "1k").save("fixed")
found = [round_of(number, write if number % 2 == 0 else read) for number in range(rounds)]
written = sorted(row.n for row in spark.read.format("ledger").load("written").collect())
print("RESULT", json.dumps({"rounds": found, "exact": written == list(range(batches * rows)), "batches": batches}))
spark.stop()
"""


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Certificates and a token for a broker, in a folder."""
    folder = tmp_path / "tls"
    folder.mkdir(mode=0o700)
    (folder / "token").write_text("a-token-of-sixteen-characters\n", encoding="utf-8")
    (folder / "token").chmod(0o600)
    return folder


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_executors_vanish_while_they_write_and_read(broker: Path, tmp_path: Path) -> None:
    script, folder = tmp_path / "vanishing.py", broker
    script.write_text(DRIVER, encoding="utf-8")
    with rig.cluster(tmp_path) as cluster:
        authority = Authority(folder, "authority")
        authority.sign("broker", address=cluster.elsewhere_address)
        authority.sign("client")
        address = f"grpc+tls://{cluster.elsewhere_address}:16651"
        (tmp_path / "broker.toml").write_text(
            f'bindAddress = "{address}"\ntlsCertificateFilePath = "{folder}/broker.crt"\n'
            f'tlsKeyFilePath = "{folder}/broker.key"\ntlsTrustCertsFilePath = "{folder}/authority.pem"\n'
            f'authenticationTokens = "file:{folder}/token"\n',
            encoding="utf-8",
        )
        serve = [sys.executable, "-m", "pyspark_ledger.connector.cli.app", "serve", "--create"]
        serve += ["--store", str(tmp_path / "store"), "--config", str(tmp_path / "broker.toml")]
        words = [cluster.master, cluster.host, address, str(folder), str(ROUNDS), str(ROWS), str(TASKS)]
        with (tmp_path / "log").open("ab") as log, (tmp_path / "driver.out").open("wb") as out:
            server = subprocess.Popen([*cluster.elsewhere, *serve], stdout=log, stderr=log, start_new_session=True)
            driver = subprocess.Popen(
                [sys.executable, str(script), *words], cwd=tmp_path, stdout=out, stderr=log, start_new_session=True
            )
            try:
                status = driver.wait(ROUNDS * ROUND_SECONDS_MAX // 2)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                for process in (driver, server):
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        assert status == 0, (tmp_path / "log").read_text(encoding="utf-8", errors="replace")[-5000:]
    found = json.loads((tmp_path / "driver.out").read_text(encoding="utf-8").partition("RESULT")[2])
    assert found["exact"], "each row of each committed batch once"
    assert found["batches"] >= ROUNDS // 2
    assert len(found["rounds"]) == ROUNDS
    for number, story in enumerate(found["rounds"]):
        assert story["tasks"] >= 1, f"round {number} hit running tasks"
        assert story["seconds"] < ROUND_SECONDS_MAX, f"round {number}: {story}"
    kills = [story for story in found["rounds"] if story["signal"] == "SIGKILL"]
    assert len(kills) >= ROUNDS * 3 // 4
    assert all(story["gone"] for story in kills)
