"""Goal: Spark Connect has all functions of a driver's session, and nothing is half done.

Method: one server, in a working directory of its own and without this package's variables. Each client is a process
that ends as a script does. Run by `make test-connect`, and by `make test-sparks` on Java 21.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="Spark Connect's client is not installed: make test-connect")

from pyspark_ledger.ledger.api.store import connect
from tests.rigs.connect_server import ConnectServer, connect_server

_HEAD = """
import json, os, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger import *
remote, store, place = sys.argv[1:4]
spark = SparkSession.builder.remote(remote).getOrCreate()
found = {}
def refused(call):
    try:
        return f"not refused: {call()!r}"
    except Exception as error:
        return str(error)
"""
_END = """
print("RESULT", json.dumps(found), flush=True)
"""
Client = Callable[..., dict[str, object]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


def _start(server: ConnectServer, script: str, store: Path, place: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a client in a directory of its own. Its script has the server, the store and a folder."""
    place.mkdir(exist_ok=True)
    (place / "client.py").write_text(_HEAD + script + _END, encoding="utf-8")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("LEDGER_", "AWS_"))}
    return subprocess.Popen(
        [sys.executable, "client.py", server.address, str(store), str(place)],
        cwd=place, env=environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _found(client: subprocess.Popen[str]) -> dict[str, object]:
    """Wait for the end of a client, and return its findings, with its standard error as `stderr`."""
    out, err = client.communicate(timeout=540)
    assert client.returncode == 0, err[:6000]
    found: dict[str, object] = json.loads(out.partition("RESULT")[2])
    return found | {"stderr": err}


STORY = """
from pyspark_ledger.connector.doctor.platform import probe_platform
checkpoint = place + "/c"
configure(spark, store=store)
found["kind"] = type(spark).__module__
lines = []
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
found["serve"] = refused(lambda: serve(spark, store))
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
found["went back"] = refused(lambda: twice.start("twice").awaitTermination())
found["stored"] = connect(store).ledger("twice").read().num_rows
# The rows that the other query has read, and one more.
connect(store).ledger("orders").append([{"n": 102}])
again = catch_up(lambda: write.trigger(availableNow=True).start("copied"), 120)
found["again"] = [bool(again), again.rows, again.rows_left]
# One more, and nobody waits for it: the process that ends does.
connect(store).ledger("orders").append([{"n": 100}])
again = write.trigger(availableNow=True).start("copied")
again.awaitTermination(120)
"""


@pytest.mark.feature("Spark Connect, without variables and on Java 21")
@pytest.mark.spark
def test_a_story_over_connect(server: ConnectServer, store: Path, tmp_path: Path) -> None:
    found = _found(_start(server, STORY, store, tmp_path / "client"))
    assert str(found["kind"]).startswith("pyspark.sql.connect")
    assert found["rows"] == [100, 4950]
    assert (found["caught up"], found["backlog"], found["copied"]) == (True, 0, True)
    assert found["lines"] == [0]
    assert found["again"] == [True, 3, 0]
    assert "a client of Spark Connect does not run there" in str(found["serve"])
    assert (found["repeated"], found["stored"]) == (101, 102)
    assert "batch 1 of query" in str(found["went back"])
    assert "is below batch 2" in str(found["went back"])
    platform = {check: (state, told) for check, state, told in found["platform"]}  # type: ignore[attr-defined]
    assert "Spark Connect" in platform["platform"][1]
    assert {platform[check][0] for check in ("task", "python", "package in a task", "driver's address")} == {"ok"}
    assert connect(store).ledger("orders").cursor("copy").state().backlog_rows == 0


HABITS = """
rows = spark.range(10).withColumnRenamed("id", "n")
def write(**options):
    rows.write.format("ledger").mode("append").options(**options).save("orders")
found["unnamed"] = refused(write)
found["relative"] = refused(lambda: write(store="ledgers"))
found["read"] = refused(lambda: spark.read.format("ledger").option("store", "ledgers").load("orders"))
found["publish"] = refused(lambda: publish(spark, "orders", place + "/t"))
found["stream"] = refused(lambda: publish_stream(spark, "orders", place + "/t"))
found["files"] = sorted(os.listdir(place))
# A variable of the client names the store, when the session is prepared.
os.environ["LEDGER_STORE"] = store
found["session"] = [session(app_name="mine") is spark, session(store=store) is spark]
del os.environ["LEDGER_STORE"]
write()
orders = connect(store).ledger("orders")
kept = orders.cursor("kept")
kept.state()
with_positions = spark.read.format("ledger").option("includeMetadata", "true").load("orders")
acknowledge(with_positions.where("n < 4"), "orders", "kept")
found["left"] = kept.state().backlog_rows
acknowledge(with_positions.where("n >= 4"), "orders", "kept", store=store)
found["all"] = kept.state().backlog_rows
# Lines that the source logs on the server reach the client.
stream = spark.readStream.format("ledger").option("startingPosition", "earliest").load("orders")
noop = stream.writeStream.format("noop").option("checkpointLocation", place + "/c").trigger(availableNow=True)
noop.start().awaitTermination()
connect(store).ledger("orders").append([{"n": 10}])
stream = spark.readStream.format("ledger").option("startingPosition", "latest").load("orders")
noop = stream.writeStream.format("noop").option("checkpointLocation", place + "/c").trigger(availableNow=True)
query = noop.start()
chart = watch(query)
query.awaitTermination()
found["watched"] = [chart.wait(60), chart.state]
from pyspark_ledger.connector.read.progress import source_report
last = json.loads(query.lastProgress.json)["sources"][0]
found["warnings"] = source_report(last)["warnings"]
"""


@pytest.mark.feature("Spark Connect, without variables and on Java 21")
@pytest.mark.spark
def test_stores_and_warnings_are_as_clear_as_in_a_session_of_the_driver(
    server: ConnectServer, store: Path, tmp_path: Path
) -> None:
    found = _found(_start(server, HABITS, store, tmp_path / "client"))
    assert "no store is named, and the default" in str(found["unnamed"])
    assert "Set option 'store'" in str(found["unnamed"])
    for door in ("relative", "read"):
        assert "store 'ledgers' is relative" in str(found[door])
        assert "Give an absolute directory" in str(found[door])
    for door in ("publish", "stream"):
        assert "a session of Spark Connect has no default" in str(found[door])
    assert found["files"] == ["client.py"]
    assert found["session"] == [True, True]
    assert (found["left"], found["all"]) == (6, 0)
    assert found["watched"] == [True, "ended"]
    warning = "the query continues from its checkpoint: option startingPosition is ignored"
    assert found["warnings"] == [warning]
    assert f"on the server: {warning}" in str(found["stderr"])


PUBLISHER = """
configure(spark, store=store)
orders = connect(store).ledger("orders")
table, view = place + "/../table", place + "/../view"
def state(path):
    return [(row.k, row.v) for row in spark.read.format("delta").load(path).orderBy("k", "v").collect()]
"""
LATEST = (
    PUBLISHER
    + """
orders.append([{"k": 1, "v": 1}, {"k": 2, "v": 1}])
orders.seal()
clone = type(spark).cloneSession
del type(spark).cloneSession  # as in a client of Spark 4.0
found["older"] = refused(lambda: publish(spark, "orders", table, latest=view, key="k"))
found["made"] = os.path.exists(table)
type(spark).cloneSession = clone
found["published"] = [part.rows for part in publish(spark, "orders", table, latest=view, key="k", optimize_after=1)]
orders.append([{"k": 1, "v": 2}, {"k": 2, "v": None}, {"k": 3, "v": 2}])
orders.seal()
query = publish_stream(spark, "orders", table, latest=view, key="k").option("checkpointLocation", place + "/c")
query.trigger(availableNow=True).start().awaitTermination()
found["table"], found["view"] = state(table), state(view)
orders.set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
orders.trim()
publish(spark, "orders", table, follow_retention=True)
found["kept"] = spark.read.format("delta").load(table).count()
"""
)
MANY = (
    PUBLISHER
    + """
print("READY", flush=True)
publish(spark, "orders", table, latest=view, key="k")
found["rows"] = [len(state(table)), len(state(view))]
"""
)


@pytest.mark.feature("Spark Connect, without variables and on Java 21")
@pytest.mark.spark
def test_table_and_latest_rows_are_published_without_deltas_plugin(
    server: ConnectServer, store: Path, tmp_path: Path
) -> None:
    pytest.importorskip("delta", reason="this environment has no Delta")
    found = _found(_start(server, LATEST, store, tmp_path / "client"))
    assert "this client of Spark Connect has no cloneSession" in str(found["older"])
    assert found["made"] is False
    assert found["published"] == [2]
    assert found["table"] == [[1, 1], [1, 2], [2, None], [2, 1], [3, 2]]
    assert found["view"] == [[1, 2], [3, 2]]
    assert found["kept"] == 3, "the rows of the last segment"


@pytest.mark.feature("Spark Connect, without variables and on Java 21")
@pytest.mark.spark
def test_killed_and_simultaneous_publishers_publish_each_row_once(
    server: ConnectServer, store: Path, tmp_path: Path
) -> None:
    pytest.importorskip("delta", reason="this environment has no Delta")
    orders = connect(store).ledger("orders")
    for number in range(8):
        orders.append([{"k": number % 3, "v": number}])
        orders.seal()
    killed = _start(server, MANY, store, tmp_path / "killed")
    until = time.monotonic() + 240
    while len(list((tmp_path / "table" / "_delta_log").glob("*.json"))) < 2:
        assert killed.poll() is None, killed.communicate()[1][-4000:]
        assert time.monotonic() < until, "the client has published nothing"
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    clients = [_start(server, MANY, store, tmp_path / name) for name in ("first", "second")]
    for client in clients:
        assert _found(client)["rows"] == [8, 3]
