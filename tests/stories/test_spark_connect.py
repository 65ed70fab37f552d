"""Goal: Spark Connect has all functions of a driver's session, including the last acknowledgement.

Method: a server, and a client in a process that ends as a script does. Run by `make test-connect`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="Spark Connect's client is not installed: make test-connect")

CLIENT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger import catch_up, configure, connect, serve, watch
from pyspark_ledger.connector.doctor.platform import probe_platform
store, checkpoint = sys.argv[1:]
builder = SparkSession.builder.remote("local[2]").config("spark.sql.catalogImplementation", "in-memory")
spark = configure(builder.config("spark.ui.enabled", "false").getOrCreate(), store=store)
lines, found = [], {"kind": type(spark).__module__}
watching = watch(spark, lines.append)
spark.range(100).withColumnRenamed("id", "n").coalesce(1).write.format("ledger").mode("append").option(
    "entryBytes", "1k").save("orders")
spark.sql("CREATE TEMPORARY VIEW orders USING ledger OPTIONS (path 'orders')")
found["rows"] = spark.sql("SELECT count(*), sum(n) FROM orders").first()
stream = spark.readStream.format("ledger").option("subscription", "copy").option("startingPosition", "earliest")
write = stream.load("orders").writeStream.format("ledger").option("checkpointLocation", checkpoint)
query = write.trigger(availableNow=True).start("copied")
found["caught up"] = bool(catch_up(query, 120))
found["backlog"] = connect(store).ledger("orders").cursor("copy").state().backlog_rows
found["copied"] = sorted(connect(store).ledger("copied").read()["n"].to_pylist()) == list(range(100))
found["lines"] = [line.lag_rows for line in lines if line.rows]
try:
    serve(spark, store)
except Refused as refused:
    found["refused"] = refused.message
found["platform"] = [(one.check, one.state, one.found) for one in probe_platform(spark).findings]
# A batch after which Spark died before its own commit is stored once. A checkpoint that went back is refused.
other = Path(checkpoint + "-other")
reader = spark.readStream.format("ledger").option("startingPosition", "earliest").load("orders")
twice = reader.writeStream.format("ledger").option("checkpointLocation", str(other)).trigger(availableNow=True)
def forget(batch, *logs):
    for log in logs:
        for name in (f"{batch}", f".{batch}.crc"):
            (other / log / name).unlink(missing_ok=True)
twice.start("twice").awaitTermination()
connect(store).ledger("orders").append([{"n": 100}])
twice.start("twice").awaitTermination()
forget(1, "commits")
twice.start("twice").awaitTermination()
found["repeated"] = connect(store).ledger("twice").read().num_rows
connect(store).ledger("orders").append([{"n": 101}])
twice.start("twice").awaitTermination()
forget(1, "offsets", "commits")
forget(2, "offsets", "commits")
try:
    twice.start("twice").awaitTermination()
except Exception as error:
    found["went back"] = str(error)
found["stored"] = connect(store).ledger("twice").read().num_rows
# The rows that the other query has read, and one more.
connect(store).ledger("orders").append([{"n": 102}])
again = catch_up(lambda: write.trigger(availableNow=True).start("copied"), 120)
found["again"] = [bool(again), again.rows, again.rows_left]
# One more, and nobody waits for it: the process that ends does.
connect(store).ledger("orders").append([{"n": 100}])
again = write.trigger(availableNow=True).start("copied")
again.awaitTermination(120)
print("RESULT", json.dumps(found), flush=True)
"""


@pytest.mark.spark
def test_a_story_over_connect(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "over_connect.py"
    script.write_text(CLIENT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(store), str(tmp_path / "c")],
        cwd=tmp_path, capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.partition("RESULT")[2])
    assert found["kind"].startswith("pyspark.sql.connect")
    assert found["rows"] == [100, 4950]
    assert (found["caught up"], found["backlog"], found["copied"]) == (True, 0, True)
    assert found["lines"] == [0]
    assert found["again"] == [True, 3, 0]
    assert "a client of Spark Connect does not run there" in found["refused"]
    assert (found["repeated"], found["stored"]) == (101, 102)
    assert "batch 1 of query" in found["went back"]
    assert "is below batch 2" in found["went back"]
    platform = {check: (state, told) for check, state, told in found["platform"]}
    assert "Spark Connect" in platform["platform"][1]
    assert {platform[check][0] for check in ("task", "python", "package in a task", "driver's address")} == {"ok"}
    from pyspark_ledger.ledger.api.store import connect

    assert connect(store).ledger("orders").cursor("copy").state().backlog_rows == 0


PUBLISHER = """
import sys
from pyspark.sql import SparkSession
from pyspark_ledger import configure, connect, publish
from pyspark_ledger.connector.session.delta import delta_settings
store, table = sys.argv[1:]
builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
for name, value in {"spark.sql.catalogImplementation": "in-memory", **delta_settings()}.items():
    builder = builder.config(name, value)
spark = configure(builder.getOrCreate(), store=store)
orders, done = connect(store).ledger("orders"), []
for number in range(2):
    orders.append([{"n": number}])
    orders.seal()
    done.append([segment.rows for segment in publish(spark, "orders", table, optimize_after=1)])
print("RESULT", done, sorted(row.n for row in spark.read.format("delta").load(table).collect()), flush=True)
"""


@pytest.mark.spark
def test_segments_are_published_without_deltas_plugin_for_connect(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "publisher.py"
    script.write_text(PUBLISHER, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(store), str(tmp_path / "table")],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert "RESULT [[1], [1]] [0, 1]" in done.stdout, done.stderr


UNNAMED = """
import os
from pyspark.sql import SparkSession
from pyspark_ledger import configure
spark = configure(SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate())
os.environ["LEDGER_STORE"] = os.getcwd() + "/mine"  # the server does not see this change
try:
    spark.range(3).write.format("ledger").mode("append").save("orders")
except Exception as error:
    print("RESULT", "no store is named" in str(error), "Set option 'store'" in str(error), flush=True)
"""


@pytest.mark.spark
def test_a_store_that_only_the_client_names_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "unnamed.py"
    script.write_text(UNNAMED, encoding="utf-8")
    environ = {name: text for name, text in os.environ.items() if name != "LEDGER_STORE"}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert "RESULT True True" in done.stdout, done.stderr[-4000:]
