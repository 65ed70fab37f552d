"""Goal: a client with another cache uses the broker that the manifest names, and goes on when the broker has moved.

Method: two caches and run directories as two hosts, broker processes, a real S3.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ledger.connector.doctor.store import check_store
from pyspark_ledger.connector.task_client import task_client
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.broker import bucket_home
from pyspark_ledger.ledger.broker.own_certificates import OwnCertificates
from pyspark_ledger.ledger.client import manifest_client
from pyspark_ledger.ledger.client.client import Client, client_for
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Refused, Unauthenticated, Unavailable
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.ownership import process_identity
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskEnd, AskSettings, DeleteLedger
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.transport.bucket_discovery import NamedBroker
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.ledger.wal.requests import RequestLimits, read_manifest
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_clients import create_store
from tests.rigs.command import run
from tests.rigs.deadline import wait_until
from tests.rigs.processes import is_supervisor, parent_of

Host = Callable[[str], Path]


@pytest.fixture
def host(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Make this process one of a host: with a cache and a run directory of the host. Return the store's directory."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="ledger-hosts-") as run:
        hosts = dict[str, Path]()

        def enter(name: str) -> Path:
            (Path(run) / name).mkdir(exist_ok=True)
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(Path(run) / name))
            monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / name))
            hosts[name] = bucket_directory(bucket)
            return hosts[name]

        create_store(bucket, s3_server.options)
        yield enter
        for name in list(hosts):
            stop_broker(enter(name))


def rows(first: int, count: int = 1) -> list[dict[str, int]]:
    return [{"id": number} for number in range(first, first + count)]


def ids(address: str) -> list[int]:
    found: list[int] = connect(address).ledger("orders").read().column("id").to_pylist()
    return sorted(found)


def kill(directory: Path, *, supervisor: bool) -> None:
    """Kill a broker, and before it the supervisor, if the host is to be lost."""
    record = BrokerRecord.read(directory)
    assert record is not None
    if supervisor:
        parent = parent_of(record.pid)
        assert is_supervisor(parent)
        os.kill(parent, signal.SIGKILL)
    os.kill(record.pid, signal.SIGKILL)


def named(address: str) -> str:
    """Return the address that the manifest names."""
    place = open_object_store(address)
    broker = read_manifest(place, RequestLimits()).manifest.broker
    place.close()
    return "" if broker is None else broker.address


@pytest.mark.thorough
def test_another_cache_connects_to_the_broker(host: Host, bucket: str) -> None:
    one = host("one")
    connect(bucket).ledger("orders").append(rows(0, 10))
    two = host("two")
    store = connect(bucket)
    store.ledger("orders").append(rows(10))
    assert ids(bucket) == list(range(11))
    assert store.client.address.startswith("grpc+tls://127.0.0.1:")
    assert not (two / "broker.json").exists(), "no second broker"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in two.iterdir()}
    assert modes == {"remote.token": 0o600, "remote.ca.pem": 0o600}
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in (one / "tls").iterdir())
    token = (two / "remote.token").read_text()
    place = open_object_store(bucket)
    manifest = place.get("manifest", 1 << 20).data.decode()
    broker = read_manifest(place, RequestLimits()).manifest.broker
    assert broker is not None
    secrets = [found.key for found in place.objects("secret/")]
    place.close()
    assert secrets == [broker.secret]
    shown = [repr(store.client), repr(store.client.credentials), manifest, (one / "broker.log").read_text()]
    assert not [text for text in shown if token in text]
    served = f"store {store.client.store_id} is served at {store.client.address}"
    assert served in [diagnosis.found for diagnosis in check_store(bucket, {})]
    assert run("stop", "--store", bucket) == f"no broker runs for {bucket} with the cache of this host\n"
    stranger = Client(store.client.address, credentials=Credentials(str(two / "remote.ca.pem")))
    with pytest.raises(Unauthenticated, match="had no token"):
        stranger.hello()


def test_a_task_needs_neither_the_files_nor_the_token(host: Host, bucket: str) -> None:
    host("one")
    connect(bucket).ledger("orders").append(rows(0, 3))
    two = host("two")
    client = connect(bucket).client
    token = (two / "remote.token").read_bytes()
    task = pickle.loads(pickle.dumps(client.credentials.for_task("read", [canonical_name("orders")], system_clock_ms)))  # noqa: S301
    for path in two.iterdir():
        path.unlink()
    assert token not in pickle.dumps(task)
    there = client_for(client.address, client.store_id, task)
    request = ReadRequest(canonical_name("orders"), PositionRange(EARLIEST, LATEST))
    assert sum(block.entries for block in there.read_blocks(request)) == 1
    with pytest.raises(Unauthenticated, match=r"allows to read .*orders, the call was delete"):
        there.ask(DeleteLedger("orders"))


@pytest.mark.thorough
def test_a_client_goes_on_after_the_broker_was_killed(host: Host, bucket: str) -> None:
    one = host("one")
    first = connect(bucket)
    first.ledger("orders").append(rows(0))
    host("two")
    store = connect(bucket)
    second = store.ledger("orders")
    before = store.client.address
    kill(one, supervisor=False)
    second.append(rows(1))
    assert store.client.address == before, "the supervisor starts the broker again, at the same port"
    kill(one, supervisor=True)
    second.append(rows(2))
    assert store.client.address.startswith("grpc+unix://"), "the client's own broker has taken over"
    host("one")
    first.ledger("orders").append(rows(3))
    assert first.client.address.startswith("grpc+tls://"), "the first host has found the second one's broker"
    assert ids(bucket) == [0, 1, 2, 3]


@pytest.mark.thorough
def test_a_client_follows_a_broker_that_took_over(host: Host, bucket: str) -> None:
    host("one")
    first = connect(bucket)
    first.ledger("orders").append(rows(0))
    two = host("two")
    main = [sys.executable, "-m", "pyspark_ledger.offload.broker", "--store", str(two), "--idle", "0"]
    taker = subprocess.Popen([*main, "--take-over", "broker", "--address", "grpc+tls://localhost:0"])
    try:
        host("one")
        wait_until(lambda: named(bucket).startswith("grpc+tls://localhost:"), "the manifest names the taker")
        first.ledger("orders").append(rows(1))  # here the first broker learns that it has lost the store
        assert first.client.address == named(bucket)
        assert ids(bucket) == [0, 1]
    finally:
        taker.terminate()
        taker.wait(60)


@pytest.mark.thorough
def test_changed_settings_survive_the_loss_of_the_cache(host: Host, bucket: str) -> None:
    one = host("one")
    run("settings", "set", "maxConcurrentRequests", "77", "--store", bucket)
    run("settings", "set", "logFormat", "json", "--store", bucket)
    run("settings", "reset", "logFormat", "--store", bucket)
    stop_broker(one)
    shutil.rmtree(one)
    for name in ("one", "two"):
        stop_broker(host("one"))
        host(name)
        states = connect(bucket).client.ask(AskSettings())
        assert {state.name: state.value for state in states.settings if state.changed} == {"maxConcurrentRequests": 77}


def test_a_broker_without_an_address_needs_no_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert OwnCertificates.of("", Settings(), tmp_path, system_clock_ms) is None
    with pytest.raises(Refused, match="not installed"):
        OwnCertificates.of("grpc+tls://localhost:0", Settings(), tmp_path, system_clock_ms)
    given = Settings(authenticationTokens="file:/etc/ledger/tokens")
    assert OwnCertificates.of("grpc+tls://localhost:0", given, tmp_path, system_clock_ms) is None
    assert OwnCertificates.of("grpc://127.0.0.1:0", Settings(), tmp_path, system_clock_ms) is None


def test_a_loopback_address_of_another_host_is_not_tried() -> None:
    elsewhere = "another-machine/1/1"
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"grpc+tls://127.0.0.1:{stranger.getsockname()[1]}"
        assert not bucket_home._answers(address)
        assert not manifest_client._is_reachable(NamedBroker("store", address, elsewhere, None))
    named = NamedBroker("store", "grpc+tls://broker.example.org:6651", elsewhere, None)
    assert manifest_client._is_reachable(named)
    assert manifest_client._is_reachable(named._replace(address=address, process=process_identity()))
    assert not manifest_client._is_reachable(named._replace(address="grpc+unix:///there.sock"))


def test_certificates_stay_for_half_a_year(tmp_path: Path) -> None:
    def made(now_ms: int) -> str:
        own = OwnCertificates.of("grpc+tls://0.0.0.0:0", Settings(), tmp_path, lambda: now_ms)
        assert own is not None
        return own.secret().token

    now_ms, day_ms = system_clock_ms(), 24 * 3600 * 1000
    first = made(now_ms)
    assert made(now_ms + 180 * day_ms) == first
    assert made(now_ms + 190 * day_ms) != first
    own = OwnCertificates.of("grpc+tls://0.0.0.0:0", Settings(), tmp_path, lambda: now_ms)
    assert own is not None
    assert own.address(6651) == f"grpc+tls://{own.host}:6651"
    assert own.host != "0.0.0.0"
    assert own.secret().token not in repr(own)
    assert own.secret().token not in repr(own.secret())


@pytest.mark.thorough
@pytest.mark.parametrize("readable", [True, False])
def test_a_task_follows_a_broker_that_moved_if_it_can_read_the_bucket(
    host: Host, bucket: str, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    one = host("one")
    connect(bucket).ledger("orders").append(rows(0, 3))
    host("two")
    client = connect(bucket).client
    planned = client.address
    credentials = client.credentials.for_task("read", [canonical_name("orders")], system_clock_ms)
    kill(one, supervisor=True)
    host("three")
    connect(bucket).ledger("orders").append(rows(3))
    assert named(bucket) not in ("", planned), "the broker has moved"
    host("executor")
    if not readable:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
        monkeypatch.setitem(Client.__init__.__kwdefaults__, "deadline_ms", 1_000)
        with pytest.raises(Unavailable, match=r"a task on .*the hosts of the executors can read s3://"):
            task_client(planned, client.store_id, credentials, bucket)
        return
    task = task_client(planned, client.store_id, credentials, bucket)
    end = task.ask(AskEnd("orders")).end
    blocks = list(task.read_blocks(ReadRequest(canonical_name("orders"), PositionRange(EARLIEST, end))))
    assert sum(block.entries for block in blocks) == 2
    assert task.address != planned
