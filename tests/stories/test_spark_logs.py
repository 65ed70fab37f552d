"""Goal: one id follows a batch through the log lines of driver, tasks and broker, from the plan to the sync and back.

Method: a user's script in a separate process streams from one ledger to another. All lines are JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

SCRIPT = textwrap.dedent(
    """
    from pyspark_ledger import catch_up, connect, session
    from pyspark_ledger.ledger.protocol.actions import ChangeSetting

    store = connect()
    store.client.ask(ChangeSetting("logFormat", "json"))
    store.ledger("orders").append([{"id": number} for number in range(10)])
    spark = session()
    orders = spark.readStream.format("ledger").option("subscription", "billing").option("startingPosition", "earliest")
    writer = orders.load("orders").writeStream.format("ledger").option("checkpointLocation", "checkpoint")
    query = writer.trigger(availableNow=True).start("bills")
    print("query", query.id)
    print("acknowledged", bool(catch_up(query)))
    print("rows", spark.read.format("ledger").load("bills").count())
    spark.stop()
    """
)


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the lines of steps."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith('{"time"')]
    return [line for line in found if "step" in line]


@pytest.mark.sessions
@pytest.mark.spark
def test_one_id_follows_a_batch_from_the_trigger_to_the_sync(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "LEDGER_STORE": str(tmp_path / "store"),
        "LEDGER_LOG_FORMAT": "json",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split() for line in done.stdout.splitlines() if line.count(" ") == 1)
    assert (said["acknowledged"], said["rows"]) == ("True", "10")
    trigger = f"{said['query']}:0"
    connector, broker = lines_of(done.stderr), lines_of((tmp_path / "store" / "broker.log").read_text())

    # Written: Spark's trigger is the id.
    staged, committed = (_only(connector, trigger, step) for step in ("stage", "commit"))
    assert (staged["rows"], committed["rows"], committed["trigger"]) == (10, 10, trigger)
    written = {line["step"]: line for line in broker if line["batch"] == trigger}
    assert {"stage.open", "run.commit", "sync"} <= set(written)
    assert (written["sync"]["rows"], written["sync"]["ledger"]) == (10, "public/default/persistent/bills")
    assert written["sync"]["seconds"] > 0

    # Read: the reader's id, from the plan to the acknowledgement. Tasks and the listener know Spark's trigger, too.
    (read,) = (line for line in connector if line["step"] == "read" and line.get("trigger") == trigger)
    batch = read["batch"]
    assert (read["rows"], batch != trigger) == (10, True)
    steps = {line["step"] for line in connector if line["batch"] == batch}
    assert {"plan", "split", "read", "acknowledge"} <= steps
    asked = {line["step"]: line for line in broker if line["batch"] == batch}
    assert {"survey", "cursor.mark_delete"} <= set(asked)
    assert asked.keys() & {"locate", "locate.many", "read.open"}
    assert asked["cursor.mark_delete"]["trigger"] == trigger
    by_trigger = {line["step"] for line in (*connector, *broker) if line.get("trigger") == trigger}
    assert {"read", "stage", "commit", "run.commit", "sync", "acknowledge", "cursor.mark_delete"} <= by_trigger
    assert len({line["pid"] for line in (*connector, *broker) if line["batch"] in (batch, trigger)}) >= 3


def _only(lines: list[dict[str, Any]], batch: str, step: str) -> dict[str, Any]:
    (found,) = (line for line in lines if line["batch"] == batch and line["step"] == step)
    return found
