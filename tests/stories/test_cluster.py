"""Goal: executors on other hosts write and read exactly through the session's broker, also if the broker is killed.

Method: a standalone cluster with workers in network namespaces, and the driver in a separate process.
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

ROOT = Path(__file__).resolve().parents[2]

ROWS = 50_000
DRIVER = """
import json, os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark_ledger import catch_up, serve
master, host, store, apart = sys.argv[1:]
spark = (
    SparkSession.builder.master(master).appName("elsewhere").config("spark.driver.host", host)
    .config("spark.driver.bindAddress", host).config("spark.executor.memory", "512m")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2").config("spark.sql.catalogImplementation", "in-memory").getOrCreate()
)
served = serve(spark, store)
mapping = "auto" if apart == "True" else "off"
rows = spark.range(0, ROWS, 1, 4).withColumnRenamed("id", "n")
rows.write.format("ledger").mode("append").save("orders")
read = spark.read.format("ledger").option("mapping", mapping).load("orders")
total, count = read.selectExpr("sum(n)", "count(*)").first()
# A stream in both directions, with the broker killed in between: it comes back at its address.
os.kill(json.loads((Path(store) / "broker.json").read_text())["pid"], signal.SIGKILL)
stream = spark.readStream.format("ledger").option("mapping", mapping).option("subscription", "copy")
stream = stream.option("startingPosition", "earliest").option("minPartitionBytes", "64k").load("orders")
write = stream.writeStream.format("ledger").option("checkpointLocation", sys.argv[3] + ".checkpoint")
query = write.trigger(availableNow=True).start("copied")
catch_up(query)
again = write.trigger(availableNow=True).start("copied")
again.awaitTermination()
reads = [json.loads(p.json)["sources"][0]["latestOffset"]["reads"] for p in again.recentProgress][-1]
copied = sorted(served.connect().ledger("copied").read()["n"].to_pylist())
secret = Path(served.options["authParams"].removeprefix("file:")).read_text()
print("RESULT", json.dumps({
    "total": total, "count": count, "exact": copied == list(range(ROWS)), "reads": reads,
    "backlog": served.connect().ledger("orders").cursor("copy").state().backlog_rows,
    "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size(),
    "secret": secret,
}))
served.stop()
spark.stop()
""".replace("ROWS", str(ROWS))


def tail(log: Path) -> str:
    return f"\n{log}:\n{log.read_text(encoding='utf-8', errors='replace')[-1500:]}"


@pytest.mark.slow
@pytest.mark.spark
def test_executors_elsewhere_write_and_read(tmp_path: Path) -> None:
    script, store = tmp_path / "elsewhere.py", tmp_path / "store"
    script.write_text(DRIVER, encoding="utf-8")
    with rig.cluster(tmp_path) as cluster:
        words = [sys.executable, str(script), cluster.master, cluster.host, str(store), str(cluster.apart)]
        with (tmp_path / "driver.out").open("wb") as out, (tmp_path / "driver.err").open("wb") as err:
            driver = subprocess.Popen(words, cwd=tmp_path, stdout=out, stderr=err, start_new_session=True)
        try:
            status = driver.wait(240)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)  # also its JVM
        printed, told = ((tmp_path / name).read_text(encoding="utf-8") for name in ("driver.out", "driver.err"))
        assert status == 0, told[-4000:] + "".join(map(tail, sorted(tmp_path.glob("work*/*/*/stderr"))))
    (tmp_path / "driver.out").unlink()  # the file has the secret, for this test only
    found = json.loads(printed.partition("RESULT")[2])
    assert (found["total"], found["count"]) == (ROWS * (ROWS - 1) // 2, ROWS)
    assert found["exact"]
    assert found["backlog"] == 0
    assert found["executors"] == 3, "two, and the driver"
    # No task could prove that it runs on the broker's host; the progress has no mapped bytes.
    assert found["reads"]["mappedBytes"] == 0
    assert found["reads"]["sentBytes"] > 2 * ROWS
    # The driver's token is on no executor, in no log and on no command line.
    logs = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size < 5_000_000]
    assert len(logs) > 5
    assert not [path for path in logs if found["secret"].encode() in path.read_bytes()]
    assert found["secret"] not in told
    assert "which is deleted with the cluster" in told, "pytest's directories are below /tmp"
