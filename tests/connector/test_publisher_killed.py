"""Goal: kill -9 of a publisher, driver and JVM at once, at any moment, leaves every sealed segment in the table once.

Method: a publishing process is killed as soon as the table has grown, and started again; the last one ends by itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ledger.api import connect
from ledger.protocol import CreateLedger

SEGMENTS = 6
PUBLISH = """
import sys
from pyspark_ledger import publish, session
store, table = sys.argv[1:]
spark = session("publisher", delta=True, **{"spark.master": "local[1]"})
publish(spark, "orders", table, options={"store": store}, partition_by=[])
"""


def files(table: Path) -> list[str]:
    """The files that make up the table, by its log."""
    found: dict[str, bool] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                found[action["add"]["path"]] = True
            if "remove" in action:
                found.pop(action["remove"]["path"], None)
    return list(found)


@pytest.mark.fault
def test_each_segment_is_there_once_whenever_the_publisher_is_killed(store: Path, tmp_path: Path) -> None:
    name, table, script = "public/default/persistent/orders", tmp_path / "table", tmp_path / "publish.py"
    script.write_text(PUBLISH, encoding="utf-8")
    api = connect(store)
    api.client.call("create", CreateLedger(name, max_entries_per_ledger=1))
    for number in range(SEGMENTS + 1):
        api.ledger("orders").append([{"id": number}])
    sealed = sum(1 for one in api.ledger("orders").describe().segments if one.close_ms)

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), str(store), str(table)]
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log, cwd=tmp_path)

    process = start()
    try:
        until = time.monotonic() + 120
        while len(list((table / "_delta_log").glob("*.json"))) < 3 and time.monotonic() < until:
            assert process.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")[-3000:]
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process = start()
    assert process.wait(300) == 0, (tmp_path / "log").read_text(encoding="utf-8")[-3000:]
    ids = [row for path in files(table) for row in pq.read_table(table / path, columns=["id"])["id"].to_pylist()]
    assert sorted(ids) == list(range(sealed))
