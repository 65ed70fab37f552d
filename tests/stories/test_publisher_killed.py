"""Goal: after kill -9 of a publisher (driver and JVM), and with parallel publishers, each segment is in the table once.

Method: a publishing process is killed when the table has grown, and started again. The last process ends by itself.
Then two commands start at once on one table of a local disk. One command is killed, and a third replaces it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import CreateLedger

SEGMENTS = 6
SEGMENTS_AT_ONCE = 6
PUBLISH = """
import sys
from pyspark_ledger import publish, session
store, table = sys.argv[1:]
spark = session("publisher", delta=True, **{"spark.master": "local[1]"})
publish(spark, "orders", table, options={"store": store}, partition_by=[])
"""


def files(table: Path) -> list[str]:
    """Return the files of the table by its log."""
    found: dict[str, bool] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                found[action["add"]["path"]] = True
            if "remove" in action:
                found.pop(action["remove"]["path"], None)
    return list(found)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.spark
def test_each_segment_is_there_once_whenever_the_publisher_is_killed(store: Path, tmp_path: Path) -> None:
    name, table, script = "public/default/persistent/orders", tmp_path / "table", tmp_path / "publish.py"
    script.write_text(PUBLISH, encoding="utf-8")
    api = connect(store)
    api.client.ask(CreateLedger(name, max_entries_per_ledger=1))
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


@contextmanager
def commands(store: Path, table: Path, place: Path, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run several `ledger publish` in parallel, with one output file each. All processes end with the context."""
    words = [
        sys.executable,
        "-m",
        "pyspark_ledger.connector.cli.app",
        "publish",
        "orders",
        "--table",
        str(table),
        "--store",
        str(store),
    ]
    words += ["--output", "json", "--partition-by", "", "--conf", "spark.master=local[1]"]
    started = []
    try:
        for number in range(count):
            with (place / f"out-{number}").open("wb") as out, (place / f"log-{number}").open("wb") as log:
                started.append(subprocess.Popen(words, start_new_session=True, stdout=out, stderr=log, cwd=place))
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def published(table: Path) -> Counter[int]:
    """Return the number of commits of each segment."""
    found: Counter[int] = Counter()
    for commit in (table / "_delta_log").glob("*.json"):
        for line in commit.read_text(encoding="utf-8").splitlines():
            said = json.loads(json.loads(line).get("commitInfo", {}).get("userMetadata", "{}"))
            if said.get("kind") == "segment":
                found[said["segment"]] += 1
    return found


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.spark
def test_commands_at_once_leave_each_segment_once_also_when_one_is_killed(store: Path, tmp_path: Path) -> None:
    api, table = connect(store), tmp_path / "table"
    api.client.ask(CreateLedger("orders", max_entries_per_ledger=1))
    ledger = api.ledger("orders")
    assert isinstance(ledger, Ledger)
    for number in range(SEGMENTS_AT_ONCE):
        ledger.append([{"id": number}])
    ledger.seal()
    with commands(store, table, tmp_path, 3) as started:
        until = time.monotonic() + 200
        while (grown := sum(published(table).values())) < 2 and time.monotonic() < until:
            assert all(process.poll() is None for process in started), said(tmp_path)
            time.sleep(0.01)
        os.killpg(started[0].pid, signal.SIGKILL)
        assert started[0].wait() == -signal.SIGKILL
        assert grown < SEGMENTS_AT_ONCE, "it was killed too late"
        assert [process.wait(300) for process in started[1:]] == [0, 0], said(tmp_path)
    segments = [one.ledger_id for one in ledger.describe().segments if one.close_ms and one.entries]
    assert published(table) == Counter(segments)
    ids = [row for path in files(table) for row in pq.read_table(table / path, columns=["id"])["id"].to_pylist()]
    assert sorted(ids) == list(range(SEGMENTS_AT_ONCE))
    told = {json.loads(line)["segment"] for out in tmp_path.glob("out-*") for line in whole_lines(out)}
    assert told <= set(segments)
    assert len([name for name in ledger.change_properties({}) if name.startswith("published:")]) == 1


def whole_lines(out: Path) -> list[str]:
    return [line for line in out.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def said(place: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8")[-2000:] for log in sorted(place.glob("log-*")))
