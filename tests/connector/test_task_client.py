"""Goal: a task that cannot work on its host fails with one line that names the host, both values and the remedy.

Method: tasks of another release, a broker of another protocol, and addresses without a broker.
"""

from __future__ import annotations

import os
import pickle
import socket
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.read.ledger.scan import LedgerScan
from pyspark_ledger.connector.read.planner import TaskPartition, partitions_of, read_partition
from pyspark_ledger.connector.task_client import task_client
from pyspark_ledger.connector.write.commit import commit_parts, stage_rows
from pyspark_ledger.connector.write.target import prepare_target
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import Unavailable, Unsupported
from pyspark_ledger.ledger.protocol.actions import PROTOCOL_VERSION, Hello
from pyspark_ledger.ledger.version import __version__

HOST = os.uname().nodename
Copied = TypeVar("Copied")


def copied(value: Copied) -> Copied:
    """Return what a task receives."""
    received: Copied = pickle.loads(pickle.dumps(value))  # noqa: S301  # of this process
    return received


def test_a_task_of_another_release_reads_and_writes_nothing(store: Path) -> None:
    options = read_options({"ledger": "orders", "store": str(store)})
    target = prepare_target(options, StructType([StructField("id", LongType())]))
    rows = [pa.record_batch({"id": [1, 2]})]
    commit_parts(target, "1", [stage_rows(copied(target), "1", "q", 0, rows)], 0)
    (partition,) = partitions_of(LedgerScan(options).tasks())
    assert isinstance(partition, TaskPartition)
    assert sum(batch.num_rows for batch in read_partition(copied(partition))) == 2
    words = rf"driver has pyspark-ledger 0\.0\.9, the task's host {HOST} has {__version__}.*Install the same release"
    with pytest.raises(Unsupported, match=words):
        read_partition(copied(replace(partition, release="0.0.9")))
    object.__setattr__(target, "release", "0.0.9")
    with pytest.raises(Unsupported, match=words):
        stage_rows(copied(target), "1", "q", 1, rows)
    assert list(read_partition(InputPartition(None))) == list(read_partition(None)) == []


def test_a_broker_of_another_protocol_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = read_options({"ledger": "orders", "store": str(store)})
    target = prepare_target(options, StructType([StructField("id", LongType())]))
    monkeypatch.setattr(
        "pyspark_ledger.ledger.client.broker_connection.Hello", lambda **said: Hello(**said, version=99)
    )
    with pytest.raises(Unsupported) as caught:
        task_client(target.address, target.store_id, Credentials(scope="a connection of its own"))
    assert f"the client uses protocol version 99, this broker {PROTOCOL_VERSION}" in caught.value.message
    assert caught.value.hint.startswith("Install the broker's release of pyspark-ledger")


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("grpc+unix:///run/nobody.sock", "pyspark_ledger.serve(spark, STORE) on the driver"),
        ("grpc://127.0.0.1:{port}", "pyspark_ledger.serve(spark, STORE) on the driver"),
        ("grpc://{host}:{port}", "open the port for the hosts of the executors (ledger doctor --platform"),
        ("grpc://{host}:{port}", "A batch read of a store in a bucket needs no broker with option 'broker' = 'none'"),
    ],
)
def test_an_address_without_an_answer_has_its_remedy(
    address: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Client.__init__.__kwdefaults__, "deadline_ms", 200)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = address.format(port=closed.getsockname()[1], host=HOST)
        with pytest.raises(Unavailable) as caught:
            task_client(address, "store-1", Credentials())
    assert caught.value.message.startswith(f"a task on {HOST}: no broker of store store-1 answers at {address}: ")
    assert remedy in caught.value.hint
    assert "\n" not in str(caught.value)
