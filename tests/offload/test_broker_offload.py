"""Goal: a store's own broker, a process, offloads to a real S3 server and serves from it. Method: as a user does it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli import verify
from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.position import Position
from streaming_examples.s3_server import S3Server
from tests.rigs.broker_thread import served
from tests.rigs.command import run


@pytest.fixture
def store(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerStore]:
    monkeypatch.setenv("LEDGER_STORE", str(store_path))
    with served(store_path) as opened:
        yield opened


def test_a_ledger_goes_to_a_bucket_and_is_read_from_it(
    store: LedgerStore, store_path: Path, s3_server: S3Server, bucket: str
) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": number, "note": "x" * 1000} for number in range(2000)])
    with pytest.raises(Refused, match="no offloader is configured"):
        orders.offload()
    store.offload_to(bucket, endpoint=s3_server.endpoint)
    done = orders.offload(seal=True)
    orders.append([{"id": 2000, "note": "later"}])
    assert (done.state, done.offloaded, done.local) == ("done", 1, 1)
    orders.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    assert orders.trim().local == done.done
    assert len(list((store_path / "ledgers").glob("*.ledger"))) == 1
    assert orders.read().column("id").to_pylist() == list(range(2001))
    assert orders.describe().rows == 2001
    objects = open_object_store(bucket, s3_server.options)
    keys = [found.key for found in objects.objects()]
    assert [key.partition("-ledger-")[2] for key in keys] == ["0", "0-entries", "0-index"]
    metadata = objects.head(keys[0]).metadata
    assert metadata["managedledgername"] == "public/default/persistent/orders"
    assert (metadata["role"], metadata["s3managedledgeroffloaderformatversion"]) == ("data", "1")
    assert metadata["pulsarclustername"] == store.client.store_id or metadata["pulsarclustername"]
    store.delete("orders")
    run("offload", "missing", status=1)


def test_what_is_in_object_storage_only_is_verified_there(store: LedgerStore, store_path: Path, tmp_path: Path) -> None:
    clicks = store.ledger("clicks")
    clicks.append(b"one")
    store.offload_to(tmp_path / "objects")
    clicks.offload(seal=True)
    clicks.append(b"two")
    clicks.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    (gone,) = clicks.trim().local
    assert not (store_path / "ledgers" / f"{gone}.ledger").exists()
    assert json.loads(run("verify", "--output", "json")) == {clicks.name: 2}


def test_what_is_trimmed_while_it_is_verified_is_no_loss(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clicks = store.ledger("clicks")
    for message in (b"one", b"two"):
        clicks.append(message)
        clicks.seal()
    clicks.append(b"three")
    clicks.set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    index = verify._index

    def trimmed_first(*asked: Any) -> Any:
        monkeypatch.setattr(verify, "_index", index)
        assert clicks.trim().ledgers
        return index(*asked)

    monkeypatch.setattr(verify, "_index", trimmed_first)
    assert json.loads(CliRunner().invoke(app, ["verify", "--output", "json"]).stdout) == {clicks.name: 1}


def test_the_command_offloads_tells_and_sweeps(store: LedgerStore, tmp_path: Path) -> None:
    clicks = store.ledger("clicks")
    clicks.append([{"id": 1}])
    assert "no offloader is configured" in run("offload", "clicks", status=1)
    run("settings", "set", "managedLedgerOffloadBucket", str(tmp_path / "objects"))
    assert run("offload", "clicks", "--status") == f"{clicks.name}: idle; nothing is in object storage yet\n"
    nothing = CliRunner().invoke(app, ["offload", "clicks"])
    assert "0 segments in this run, 0 left; nothing is in object storage yet" in nothing.stdout
    assert "bytes" not in nothing.stderr, "a bar of nothing has no total"
    told = json.loads(run("offload", "clicks", "--seal", "--output", "json"))
    assert (told["state"], told["done"], told["first_left"]) == ("done", [0], [0, 1])
    assert told["bytes_done"] == told["bytes_total"] > 0
    said = run("offload", "clicks", "--status")
    assert "1 segment in this run, 0 left; 1 segment in object storage (1 of them here, too)" in said
    assert "all entries before 0:1 are in object storage" in said
    assert "0 unreferenced" not in run("offload", "clicks", "--sweep")
    assert "done" in run("offload", "clicks", "--cancel")
    assert "SEGMENT:ENTRY" in run("offload", "clicks", "--until", "x", status=1)
    assert "exclude each other" in run("offload", "clicks", "--cancel", "--sweep", status=1)
    assert clicks.offload(Position(0, 1)).done == []
    run("settings", "set", "managedLedgerOffloadDeletionLagMs", "1", status=1)
    assert "expected a whole number" in run("settings", "set", "metricsLedgersMax", "x", status=1)
    assert clicks.read().num_rows == 1
