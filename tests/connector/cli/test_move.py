"""Goal: `ledger store move` moves a store that Python and a broker use. Method: broker processes, a real S3 server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.ownership import StoreLock, process_identity
from pyspark_ledger.offload.home_view import open_read_only
from streaming_examples.s3_server import S3Server
from tests.rigs.broker_process import store
from tests.rigs.command import run, run_json
from tests.rigs.moving_store import reserved

__all__ = ["store"]


@pytest.fixture
def address(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A place in a bucket, in the environment of a user whose cache is in `tmp_path`."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / "cache"))
    yield bucket
    stop_broker(bucket_directory(bucket))


def ids(place: str | Path) -> list[int]:
    found: list[int] = connect(place).ledger("orders").read().column("id").to_pylist()
    return found


@pytest.mark.thorough
def test_the_command_moves_a_store_in_use_into_a_bucket(store: Path, address: str) -> None:
    connect(store).ledger("orders").append([{"id": 1}, {"id": 2}])
    reserved(connect(store).client.hello().store_id, address)
    said = run("store", "move", str(store), address)
    assert f"the store of {store} is in {address} now: 1 ledger, 1 segment, 1 entry verified" in " ".join(said.split())
    shutil.rmtree(store / "ledgers")
    assert ids(address) == [1, 2]
    connect(address).ledger("orders").append([{"id": 3}])
    assert ids(address) == [1, 2, 3]
    for refused in (("list",), ("verify",), ("repair",), ("append", "orders", "x")):
        assert f"was moved to {address}" in run(*refused, "--store", str(store), status=1)
    with pytest.raises(Refused, match=f"was moved to {address}"):
        open_read_only(store)
    assert run_json("store", "move", str(store), address)["place"] == address


def test_wrong_sides_are_refused_before_anything_changes(store: Path, address: str, tmp_path: Path) -> None:
    connect(store).ledger("orders").append([{"id": 1}])
    assert "moves from a directory into a bucket" in run("store", "move", str(store), str(tmp_path), status=1)
    assert "moves from a directory into a bucket" in run("store", "move", f"{address}/a", f"{address}/b", status=1)
    assert "is the cache of" in run("store", "move", str(bucket_directory(address)), f"{address}/b", status=1)
    assert "moves from a directory into a bucket" in run("store", "move", address, str(tmp_path / "new"), status=1)
    assert "no ledger store at" in run("store", "move", str(tmp_path / "none"), address, status=1)
    run("store", "move", str(store), address, "--durability", "os", status=2)
    assert ids(store) == [1]


def test_a_broker_that_does_not_answer_is_refused_by_its_name(store: Path, address: str) -> None:
    connect(store).ledger("orders").append([{"id": 1}])
    stop_broker(store)
    lock = StoreLock.acquire(store)
    assert f"is in use by the broker {process_identity()}" in run("store", "move", str(store), address, status=1)
    lock.release()
