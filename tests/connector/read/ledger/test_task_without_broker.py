"""Goal: a task without a broker fails with the broker's address and store, and starts no process.

Method: broker and supervisor are killed. Then pickled tasks run in a process that was connected (a reused worker of
Spark) and in a new process.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.read.ledger.scan import LedgerScan
from pyspark_ledger.connector.read.ledger.task import LedgerTask
from pyspark_ledger.connector.write.commit import commit_parts, stage_rows
from pyspark_ledger.connector.write.target import SinkTarget, prepare_target
from pyspark_ledger.ledger.client.acknowledge import acknowledge
from pyspark_ledger.ledger.client.client import Client, client_for
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand
from tests.rigs import broker_process as fixtures

ROOT = Path(__file__).resolve().parents[4]
ROWS = [pa.record_batch({"id": [1, 2, 3]})]
NEW_WORKER = """
import pickle, sys
from pyspark_ledger.connector.write.commit import stage_rows
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.errors import LedgerError

Client.__init__.__kwdefaults__["deadline_ms"] = 200
part, target, rows = pickle.load(sys.stdin.buffer)
for task in (lambda: list(part.read()), lambda: stage_rows(target, "1", "q", 1, rows)):
    try:
        task()
    except LedgerError as error:
        print(error)
"""


@pytest.fixture
def tasks(store: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LedgerTask, SinkTarget]:
    """Tasks that read and write, after a successful run in this process and the kill of the broker."""
    monkeypatch.setitem(Client.__init__.__kwdefaults__, "deadline_ms", 200)
    options = read_options({"ledger": "orders", "store": str(store)})
    target = prepare_target(options, StructType([StructField("id", LongType())]))
    commit_parts(target, "1", [stage_rows(target, "1", "q", 0, ROWS)], 0)
    (part,) = LedgerScan(options).tasks()
    assert sum(batch.num_rows for batch in part.read()) == 3
    fixtures.kill_all(store)
    return part, target


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_worker_that_was_connected_names_address_and_store(
    store: Path, tasks: tuple[LedgerTask, SinkTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    part, target = tasks
    both = re.escape(f"no broker of store {target.store_id} answers at {target.address}: ")
    sent = replace(part, source=replace(part.source, mapping=False))

    def refused(task: Callable[[], object]) -> None:
        with pytest.raises(Unavailable, match=both):
            task()

    refused(lambda: list(part.read()))
    refused(lambda: list(sent.read()))
    refused(lambda: stage_rows(target, "1", "q", 1, ROWS))
    client = client_for(target.address, target.store_id)
    lines = [acknowledge_batch(np.array([0]), np.array([0]), np.array([-1]))]
    refused(lambda: acknowledge(client, AcknowledgeCommand("orders", "billing"), lines, deadline_ms=0))
    monkeypatch.setattr(Client, "same_host_token", lambda *_, **__: "")  # as on another host, where blocks are sent
    refused(lambda: stage_rows(target, "1", "q", 1, ROWS))
    assert fixtures.serving(store) == []


@pytest.mark.broker_process
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.thorough
def test_a_new_worker_names_them_and_starts_nobody(
    store: Path, tasks: tuple[LedgerTask, SinkTarget], deleted: bool
) -> None:
    part, target = tasks
    held = os.open(store, os.O_RDONLY)  # no other store gets the number of this directory, which names the socket
    if deleted:
        shutil.rmtree(store)
    before = sorted(store.rglob("*"))
    worker = subprocess.run(
        [sys.executable, "-c", NEW_WORKER],
        cwd=ROOT,
        input=pickle.dumps((part, target, ROWS)),
        capture_output=True,
        check=True,
        timeout=60,
    )
    read, written = worker.stdout.decode().splitlines()
    for said in (read, written):
        assert said.startswith(
            f"[{Unavailable.code}] a task on {os.uname().nodename}: "
            f"no broker of store {target.store_id} answers at {target.address}: "
        )
        assert "pyspark_ledger.serve(spark, STORE)" in said
    assert fixtures.serving(store) == []
    assert sorted(store.rglob("*")) == before
    assert store.exists() is not deleted
    os.close(held)
