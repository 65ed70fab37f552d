"""Goal: the source uses the right store, and runs with older Spark versions. Method: sources created directly."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructType

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import store_location

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def orders(store: Path) -> Ledger:
    ledger = connect(store).ledger("orders")
    ledger.append([{"n": 1}])
    return ledger


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert store_location() == str(tmp_path / "ledger-store")
    assert store_location("elsewhere") == str(tmp_path / "elsewhere")
    assert store_location("file:///srv/store") == "/srv/store"
    monkeypatch.setenv("LEDGER_STORE", "grpc://broker:6650")
    assert store_location() == "grpc://broker:6650"
    assert store_location("elsewhere") == str(tmp_path / "elsewhere")
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / "caches"))
    assert store_location("s3://bucket/store") == str(tmp_path / "caches" / "s3%3A%2F%2Fbucket%2Fstore")
    with pytest.raises(Refused, match="'gs://bucket' is neither a directory"):
        store_location("gs://bucket")
    for address in ("grpc+tls://me:S3CRET@broker:6650", "s3://S3CRET@bucket"):
        with pytest.raises(Refused, match="contains a user or a password") as refused:
            store_location(address)
        assert "S3CRET" not in str(refused.value)


@pytest.mark.broker_process
def test_a_source_without_ledger_or_with_a_bad_name_is_refused_at_once(store: Path) -> None:
    # Written rows may name their ledger, so only a read, or rows without a ledger, are refused.
    nameless, plain = LedgerSource({"store": str(store)}, "0"), StructType().add("n", LongType())
    for use in (
        nameless.schema,
        lambda: nameless.batch_writer(plain, overwrite=False),
        lambda: nameless.stream_writer(plain),
    ):
        with pytest.raises(Refused, match="no ledger is named"):
            use()
    with pytest.raises(Refused, match=r"no table of Spark's catalog can be a ledger.*TEMPORARY VIEW"):
        LedgerSource({"owner": "me", "path": "orders", "store": str(store)}, "0")
    with pytest.raises(Refused, match=r"'a/\.\./b'"):
        LedgerSource({"path": "a/../b", "store": str(store)}, "0")
    assert not store.exists()


@pytest.mark.broker_process
def test_overwrite_is_refused_before_anything_is_made(store: Path) -> None:
    source = LedgerSource({"path": "orders", "store": str(store)}, "0")
    with pytest.raises(Refused, match="mode overwrite is not supported: ledger 'orders' is a log"):
        source.batch_writer(StructType().add("n", LongType()), overwrite=True)
    assert not store.exists()


def test_a_user_schema_is_compared(store: Path, orders: Ledger) -> None:
    from pyspark.sql.types import IntegerType, StructType

    source = LedgerSource({"path": "orders", "store": str(store)}, "0")
    with pytest.raises(
        Refused, match=r"column 'n' of ledger .* is bigint, the read was planned with int.*Leave .schema.. out"
    ):
        source.batch_reader(StructType().add("n", IntegerType()))


def test_a_time_to_start_from(store: Path, orders: Ledger) -> None:
    orders.append([{"n": 2}])

    def numbers(milliseconds: int) -> list[int]:
        given = {"path": "orders", "store": str(store), "startingTimestamp": str(milliseconds)}
        source = LedgerSource(given, "0")
        reader = source.batch_reader(source.schema())
        return [n for part in reader.partitions() for b in reader.read(part) for n in b.column("n").to_pylist()]

    assert numbers(0) == [1, 2]
    assert numbers(orders.end().last_publish_ms + 1) == []
    assert numbers(orders.end().last_publish_ms)[-1:] == [2]


def test_a_store_that_nobody_named_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LEDGER_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        LedgerSource({"path": "orders"}, "0")
    assert capfd.readouterr().err.splitlines() == [f"pyspark-ledger: the store is {tmp_path / 'ledger-store'}"]
    LedgerSource({"path": "orders", "store": str(tmp_path / "named")}, "0")
    assert capfd.readouterr().err == ""


def test_it_is_told_once_to_a_driver_whose_workers_come_and_go(tmp_path: Path) -> None:
    """Print a default store once per driver. One shell stands for the driver, another for Spark's worker daemon."""
    code = (
        "from pyspark_ledger.connector.connection import log_default_store; "
        "[log_default_store(store) for store in ('/a', '/b', '/a')]"
    )
    worker = f'PYTHON_WORKER_FACTORY_SOCK_PATH=/socket {sys.executable} -c "{code}"; true'
    daemon = f"PYTHON_WORKER_FACTORY_SOCK_DIR=/ sh -c {shlex.quote(worker)}; true"
    for driver in (f"{worker}; {daemon}; {worker}", daemon):
        done = subprocess.run(
            ["sh", "-c", driver],
            cwd=ROOT,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr.splitlines() == ["pyspark-ledger: the store is /a", "pyspark-ledger: the store is /b"]
        # Files of an ended driver are removed.
        assert len(list(tmp_path.rglob("*.told"))) == 2
