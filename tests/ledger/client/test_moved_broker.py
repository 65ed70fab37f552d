"""Goal: a connected client continues where a new `connect()` would, when directory, cache, lock or place have changed.

Method: real supervised brokers, a real S3.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.client.connect import serve_store, stop_broker
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.ownership import live_place
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from tests.rigs.processes import is_supervisor, parent_of

Rig = Any


def append(store: LedgerStore, number: int) -> None:
    store.ledger("orders").append([{"id": number}])


def ids(store: LedgerStore) -> list[int]:
    found: list[int] = store.ledger("orders").read().column("id").to_pylist()
    return sorted(found)


def kill(directory: Path, *, supervisor: bool = True) -> None:
    record = BrokerRecord.read(directory)
    assert record is not None
    parent = parent_of(record.pid)
    if supervisor and is_supervisor(parent):
        os.kill(parent, signal.SIGKILL)
    os.kill(record.pid, signal.SIGKILL)


def restore(directory: Path) -> None:
    """Replace a store's directory by a copy of it, as a restore does."""
    copy = directory.with_name("restored")
    shutil.copytree(directory, copy)
    shutil.rmtree(directory)
    copy.rename(directory)


@pytest.mark.thorough
def test_a_client_continues_with_a_directory_that_was_restored(rig: Rig) -> None:
    store = connect(rig.store, create=True)
    store.create("orders")
    append(store, 0)
    before = store.client.place
    stop_broker(rig.store)
    restore(rig.store)
    serve_store(rig.store, ["--take-over", "moved"])
    append(store, 1)
    assert ids(store) == ids(connect(rig.store)) == [0, 1]
    assert store.client.place == live_place(rig.store) != before


@pytest.mark.thorough
@pytest.mark.parametrize("killed", ["nothing", "broker", "both"])
def test_a_client_continues_without_the_lock_of_the_supervisor(rig: Rig, killed: str) -> None:
    store = connect(rig.store, create=True)
    store.create("orders")
    append(store, 0)
    rig.supervised()
    (rig.store / "supervisor.lock").unlink()
    if killed != "nothing":
        kill(rig.store, supervisor=killed == "both")
    for number in (1, 2):
        append(store, number)
    assert ids(store) == ids(connect(rig.store)) == [0, 1, 2]
    rig.supervised()


@pytest.mark.parametrize("killed", [False, True])
def test_a_client_continues_after_the_cache_of_its_store_was_deleted(
    directory: Path, bucket: str, killed: bool
) -> None:
    store = connect(bucket)
    store.create("orders")
    append(store, 0)
    if killed:
        kill(directory)
    shutil.rmtree(directory)
    for number in (1, 2):
        append(store, number)
    assert ids(store) == ids(connect(bucket)) == [0, 1, 2]


def test_a_client_continues_at_another_address_of_the_broker(
    directory: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = connect(bucket)
    store.create("orders")
    append(store, 0)
    for number, host in enumerate(("localhost", "127.0.0.1"), 1):
        stop_broker(directory)
        monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / f"elsewhere-{number}"))
        moved = bucket_directory(bucket)
        serve_store(moved, ["--address", f"grpc+tls://{host}:0"])
        append(store, number)
        assert ids(store) == ids(connect(bucket)) == [*range(number + 1)]
        stop_broker(moved)


def test_a_client_of_another_cache_continues_after_that_cache_was_deleted(
    directory: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(bucket).create("orders")
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / "elsewhere"))
    store = connect(bucket)
    assert store.client.address.startswith("grpc+tls://")
    append(store, 0)
    shutil.rmtree(bucket_directory(bucket))
    append(store, 1)
    kill(directory, supervisor=False)
    shutil.rmtree(bucket_directory(bucket))
    append(store, 2)
    assert ids(store) == ids(connect(bucket)) == [0, 1, 2]
    stop_broker(directory)
