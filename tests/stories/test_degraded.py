"""Goal: what a platform forbids is replaced, and the replacement is logged once.

Method: a program writes, reads and acknowledges with a broker of its own, both under a kernel that forbids something.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs import forbid
from tests.rigs.broker_process import kill_all

STORY = """
import sys
import pyarrow as pa
from pyspark_ledger import connect
store = connect(sys.argv[1], create=True)
orders = store.create("orders")
for first in range(0, 1000, 100):
    orders.append(pa.table({"n": pa.array(range(first, first + 100), pa.int64())}))
cursor = orders.cursor("billing")
table, position = cursor.read()
cursor.acknowledge(position)
again = orders.read()
assert again["n"].to_pylist() == list(range(1000)), again
print("rows", again.num_rows, "read", table.num_rows, "backlog", cursor.state().backlog_rows)
"""

# A broker that is killed comes back at its port, with its token: a reader and a token of a task go on.
KILLED = """
import os, signal, sys
from pathlib import Path
import pyarrow as pa
from pyspark_ledger import connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Unauthenticated
from pyspark_ledger.ledger.transport.discovery import BrokerRecord, address_token_path
path = Path(sys.argv[1])
store = connect(path, create=True)
orders = store.create("orders")
orders.append(pa.table({"n": [1, 2, 3]}))
client, before = store.client, BrokerRecord.read(path)
token_file = address_token_path(before.address)
kept = Credentials(token=f"file:{token_file}")
task = kept.for_task("read", [orders.name], system_clock_ms)
os.kill(before.pid, signal.SIGKILL)
orders.append(pa.table({"n": [4]}))
after = BrokerRecord.read(path)
assert after.pid != before.pid and after.address == before.address, (before, after)
assert Client(after.address, client.store_id, credentials=task).hello().store_id == client.store_id
hidden = token_file.rename(token_file.with_suffix(".hidden"))  # as for another user
try:
    Client(after.address, client.store_id).hello()
except Unauthenticated as refused:
    print("refused:", refused.message)
hidden.rename(token_file)
assert oct(token_file.stat().st_mode & 0o777) == "0o600"
assert token_file.read_text() not in (path / "broker.log").read_text() + (path / "broker.json").read_text()
print("rows", orders.read().num_rows, after.address)
stop_broker(path)
orders.append(pa.table({"n": [5]}))
last = BrokerRecord.read(path)
assert last.guarded, last
try:
    Client(last.address, client.store_id, credentials=task).hello()
except Unauthenticated:
    print("the old token is worthless; rows", orders.read().num_rows)
"""
SPARK = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
path = sys.argv[1]
spark.range(1000).write.format("ledger").option("store", path).mode("append").save("orders")
rows = spark.readStream.format("ledger").options(store=path, subscription="billing", startingPosition="earliest")
write = rows.load("orders").writeStream.format("ledger").options(store=path, checkpointLocation=path + "-checkpoint")
assert write.trigger(availableNow=True).start("copied").awaitTermination(100)
assert spark.read.format("ledger").option("store", path).load("copied").count() == 1000
print("copied")
"""


def run_without(forbidden: str, program: str, store: Path) -> tuple[str, str]:
    """Run a program under the filter. Return its standard output, and its errors with the broker's log."""
    if not forbid.is_possible(forbidden):
        pytest.skip(f"this host lets no process forbid {forbidden}: mounts take root, filters x86-64")
    command = [sys.executable, forbid.__file__, forbidden, sys.executable, "-c", program, str(store)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=store.parent)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout, done.stderr + (store / "broker.log").read_text(encoding="utf-8")
    finally:
        kill_all(store)


@pytest.mark.parametrize(
    ("forbidden", "said"),
    [
        ("memfd", "producers send entries over Flight"),
        ("packets", "producers send entries over Flight"),
        ("unix", "the broker listens at a loopback port"),
        ("shared-memory", "blocks in shared memory are not available"),
    ],
)
@pytest.mark.thorough
def test_a_store_works_without(forbidden: str, said: str, tmp_path: Path) -> None:
    printed, logs = run_without(forbidden, STORY, tmp_path / "store")
    assert "rows 1000" in printed
    assert logs.count(said) == 1, logs[-3000:]


@pytest.mark.thorough
def test_a_port_and_its_token_outlive_a_killed_broker(tmp_path: Path) -> None:
    printed, _ = run_without("unix", KILLED, tmp_path / "store")
    assert "rows 4 grpc://127.0.0.1:" in printed
    assert "refused:" in printed
    assert "the old token is worthless; rows 5" in printed


@pytest.mark.sessions
def test_spark_works_without_unix_sockets(tmp_path: Path) -> None:
    printed, logs = run_without("unix", SPARK, tmp_path / "store")
    assert "copied" in printed
    assert "a loopback port" in logs
