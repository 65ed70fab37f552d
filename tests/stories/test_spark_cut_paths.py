"""Goal: an executor that reaches only one of bucket and broker works, or fails with one clear line.

Method: a standalone cluster whose executors have a proxy that refuses connections. The driver has no proxy. gRPC reads
the variable `grpc_proxy`, and boto3 reads `HTTP_PROXY`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming_examples.s3_server import S3Server
from tests.rigs import cluster as rig
from tests.rigs.bucket_clients import be_client, create_store

pytestmark = [pytest.mark.slow, pytest.mark.spark]
ROWS, PART_ROWS = 1_000, 40_000  # a part of 40 MB goes into the bucket
DRIVER = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark_ledger import serve
from pyspark_ledger.ledger.protocol.metrics import AskMetrics
from tests.rigs.deadline import wait_until

master, store, folder = sys.argv[1:]
conf = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m",
    "spark.task.maxFailures": "1", "spark.ui.enabled": "false", "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "2",
}
builder = SparkSession.builder.master(master).appName("cut")
for name, value in conf.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
served = serve(spark, store, host="127.0.0.1")
sealed = served.connect().ledger("in")
sealed.append([{"n": number} for number in range(ROWS)])
sealed.seal()
wait_until(lambda: sealed.describe().segments[0].offloaded, "the segment is in the bucket")

def batch_read(**options):
    read = spark.read.format("ledger").option("mapping", "off").options(**options).load("in")
    return sorted(row.n for row in read.collect()) == list(range(ROWS))

def without_broker():
    read = spark.read.format("ledger").options(store=store, broker="none").load("in")
    return sorted(row.n for row in read.collect()) == list(range(ROWS))

def stream(rows, name):
    sink = rows.writeStream.format("ledger").option("compression", "none")
    query = sink.option("checkpointLocation", folder + "/" + name).trigger(availableNow=True).start(name)
    query.awaitTermination()

def stream_read():
    read = spark.readStream.format("ledger").option("mapping", "off").option("startingPosition", "earliest").load("in")
    query = read.writeStream.format("noop").option("checkpointLocation", folder + "/read").trigger(availableNow=True)
    running = query.start()
    running.awaitTermination()
    return sum(progress["numInputRows"] for progress in running.recentProgress) == ROWS

def stream_write():
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", PART_ROWS).option("numPartitions", 1)
    text = f.repeat(f.lpad(f.col("value").cast("string"), 10, "0"), 100)
    stream(rate.load().select("value", text.alias("text")), "written")
    written = served.connect().ledger("written").describe().rows
    return written > 0 and written % PART_ROWS == 0

def told(act):
    try:
        return act()
    except Exception as error:
        return str(error)

acts = (batch_read, stream_read, stream_write, without_broker)
found = {act.__name__: told(act) for act in acts}
metrics = served.connect().client.ask(AskMetrics())
counts = {"direct": metrics.parts.direct, "staged": metrics.parts.staged, "read": metrics.cache.direct_entries}
print("RESULT", json.dumps({"acts": found, "address": served.address, "counts": counts}))
served.stop()
spark.stop()
""".replace("PART_ROWS", str(PART_ROWS)).replace("ROWS", str(ROWS))


@pytest.fixture
def closed() -> Iterator[str]:
    """The address of a proxy that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def environment(s3_server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_client(s3_server, tmp_path / "cache", monkeypatch)
    create_store(bucket)


def ran(tmp_path: Path, bucket: str, variables: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return what the driver told, and the warnings of the executors."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER, encoding="utf-8")
    with rig.cluster(tmp_path, namespaces=False, variables=variables) as cluster:
        command = [sys.executable, str(script), cluster.master, bucket, str(tmp_path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    logs = [path.read_text(encoding="utf-8", errors="replace") for path in tmp_path.glob("work*/*/*/stderr")]
    warnings = [line for log in logs for line in log.splitlines() if "broker, because" in line]
    found: dict[str, Any] = json.loads(done.stdout.partition("RESULT")[2])
    return found, warnings


def line_of(error: str) -> str:
    """Return the line of this package in an error of Spark."""
    found = {line.strip() for line in error.splitlines() if "[LEDGER_" in line}
    assert len(found) == 1, error
    return found.pop().partition("[LEDGER_")[2]


def test_executors_without_a_way_to_the_broker(environment: None, bucket: str, closed: str, tmp_path: Path) -> None:
    found, warnings = ran(tmp_path, bucket, {"grpc_proxy": f"http://{closed}"})
    acts = found["acts"]
    assert acts.pop("without_broker") is True, "the bucket suffices"
    host = os.uname().nodename
    for act, error in acts.items():
        line = line_of(error)
        assert line.startswith(f"UNAVAILABLE] a task on {host}: no broker of store "), act
        assert f"answers at {found['address']}: " in line, act
        assert "Only the broker's host reaches this address" in line, act
        assert "pyspark_ledger.serve(spark, STORE)" in line, act
    assert not warnings
    assert found["counts"] == {"direct": 0, "staged": 0, "read": 0}


def test_executors_without_a_way_to_the_bucket(environment: None, bucket: str, closed: str, tmp_path: Path) -> None:
    found, warnings = ran(tmp_path, bucket, {"HTTP_PROXY": f"http://{closed}"})
    acts = found["acts"]
    line = line_of(acts.pop("without_broker"))
    assert line.startswith(f"UNAVAILABLE] a task on {os.uname().nodename} cannot read {bucket}: ")
    assert closed in line
    assert "or read through the broker, without option 'broker'" in line
    assert acts == {"batch_read": True, "stream_read": True, "stream_write": True}, "the broker suffices"
    counts = found["counts"]
    assert (counts["direct"], counts["staged"] > 0) == (0, True)
    for words in ("cannot read the bucket: ", "cannot write to the bucket: "):
        told = [line for line in warnings if words in line]
        assert told, words
        assert all(bucket in line and closed in line for line in told), words
