"""Goal: `connect("s3://…")` works as with a directory, and survives its disk. Method: broker processes, a real S3."""

from __future__ import annotations

import os
import re
import shutil
import signal
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger.api.cursor import Cursor
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.broker.bucket_home import FoundStore, _leave
from pyspark_ledger.ledger.bucket_store.creation import found_or_created
from pyspark_ledger.ledger.bucket_store.home import BucketLimits, BucketStore
from pyspark_ledger.ledger.client.connect import serve_store, stop_broker
from pyspark_ledger.ledger.client.producer import Producer
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Fenced, LedgerError, NotFound, Refused, Unauthenticated
from pyspark_ledger.ledger.location import bucket_directory, bucket_of, location_text, store_location
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import DescribeLedger
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.ledger.wal.bucket import MANIFEST
from pyspark_ledger.ledger.wal.requests import RequestLimits, read_manifest
from pyspark_ledger.offload.home_view import open_read_only
from streaming_examples.acts.app_process import session_members
from streaming_examples.s3_server import S3Server
from tests.rigs import entry as entries
from tests.rigs.command import run
from tests.rigs.deadline import wait_until
from tests.rigs.faulty_bucket import FaultyBucket, refused


@pytest.fixture
def address(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket, in the environment of a user whose caches are in `tmp_path`."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / "one"))
    yield bucket
    for root in tmp_path.iterdir():
        monkeypatch.setenv("LEDGER_CACHE", str(root))
        stop_broker(bucket_directory(bucket))


def ids(address: str, name: str = "orders") -> list[int]:
    found: list[int] = connect(address).ledger(name).read().column("id").to_pylist()
    return found


def create_in(address: str) -> None:
    """Make the store with a short probe. Thousands of racing puts are tried in their own test."""
    bucket = open_object_store(address)
    found_or_created(bucket, system_clock_ms, RequestLimits(), create=True, window=8, probe=lambda _: None)
    bucket.close()


def rows(count: int, first: int = 0) -> list[dict[str, int]]:
    return [{"id": number} for number in range(first, first + count)]


def append_entry(store: LedgerStore, entry: bytes) -> Position:
    with Producer(store.client, "public/default/persistent/orders") as producer:
        return producer.append(entry).result()


def test_the_directory_of_a_bucket_is_named_by_its_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path))
    location = Path(store_location("s3://lake/some/prefix/"))
    assert location == tmp_path / "s3%3A%2F%2Flake%2Fsome%2Fprefix"
    assert (bucket_of(location), bucket_of(tmp_path)) == ("s3://lake/some/prefix", "")
    assert (location_text(location), location_text("/srv/a")) == ("s3://lake/some/prefix", "/srv/a")
    with pytest.raises(Refused, match="1 to 240 are allowed"):
        store_location("s3://")


@pytest.mark.thorough
def test_rows_survive_kills_and_the_disk(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LedgerError, match="there is no ledger store at s3://"):
        connect(address, create=False)
    create_in(address)
    store = connect(address)
    assert store.location == address
    orders = store.ledger("orders")
    orders.append(rows(100))
    assert store.client.ask(DescribeLedger("orders")).durability == "bucket"
    reader = orders.cursor("printer")
    seen, position = reader.read()
    reader.acknowledge(position)
    directory = Path(store_location(address))
    record = BrokerRecord.read(directory)
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    orders.append(rows(10, 100))
    assert ids(address) == list(range(110))
    assert re.search(r"2 entries verified, \d+ objects of the log verified", run("verify", "--store", address))
    stop_broker(directory)
    shutil.rmtree(directory)
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / "two"))
    assert ids(address) == list(range(110))
    left, _ = connect(address).ledger("orders").cursor("printer").read()
    assert seen.num_rows == 100
    assert left.column("id").to_pylist() == list(range(100, 110))
    with pytest.raises(NotFound, match="nothing"):
        connect(address).ledger("nothing").read()


@pytest.mark.thorough
def test_a_served_store_is_not_taken_over(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_in(address)
    connect(address).ledger("orders").append(rows(1))
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / "two"))
    with pytest.raises(Refused, match=r"s3://.* is served at grpc\+tls://127.0.0.1:\d+ by "):
        serve_store(bucket_directory(address), [])


@pytest.mark.thorough
def test_a_fenced_broker_is_not_started_again_by_itself(address: str, tmp_path: Path) -> None:
    create_in(address)
    orders = connect(address).ledger("orders")
    orders.append(rows(3))
    directory = Path(store_location(address))
    bucket = open_object_store(address)
    taker = BucketStore(
        bucket,
        tmp_path / "taker",
        read_manifest(bucket, RequestLimits()),
        system_clock_ms,
        BucketLimits(),
        lambda _: None,
        settings=Settings(),
    )
    taker.close()
    shutil.rmtree(tmp_path / "taker")
    with pytest.raises(LedgerError):
        orders.append(rows(1, 3))
    with pytest.raises(Fenced, match=r"was taken over: .*epoch"):
        orders.append(rows(1, 3))
    assert (directory / "fenced").exists()
    assert ids(address) in (list(range(3)), list(range(4))), "a new connection takes the store back"


@pytest.mark.thorough
def test_no_cursor_passes_a_first_chunk_after_a_take_over(address: str) -> None:
    create_in(address)
    store = connect(address)
    store.create("orders")
    log = store.ledger("orders")
    first = append_entry(store, entries.chunk(b"c", 0, 2, "m-1", 2, "p"))
    log.append(b"whole")
    log.seal()
    log.append(b"later")
    log.offload()
    directory = bucket_directory(address)
    for member in session_members(os.getsid(store.client.hello().pid)):
        os.kill(member, signal.SIGKILL)
    shutil.rmtree(directory)
    store = connect(address)
    log = store.ledger("orders")
    cursor = log.cursor("c")
    cursor.acknowledge(log.end().end)
    assert cursor.state().next_position == first
    append_entry(store, entries.chunk(b"c", 1, 2, "m-1", 2, "p"))
    end = log.end().end
    cursor.acknowledge(end)
    assert cursor.state().next_position == end
    assert not any(segment.offloaded for segment in log.describe().segments)
    with suppress(Refused):  # the broker's own run has started
        log.offload()
    wait_until(lambda: [part.ledger_id for part in log.describe().segments if part.offloaded] == [first.ledger_id])


@pytest.mark.thorough
@pytest.mark.usefixtures("address")
def test_verification_tells_of_a_bucket_that_keeps_old_versions(s3_server: S3Server) -> None:
    name = f"versions-{uuid.uuid4()}"
    address = f"{s3_server.make_bucket(name)}/store"
    create_in(address)
    assert "keeps old versions" not in run("verify", "--store", address)
    s3_server.client().put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    connect(address).ledger("orders").append(rows(3))  # the broker puts the manifest again
    assert f"{address} keeps old versions of objects" in run("verify", "--store", address)
    stop_broker(bucket_directory(address))


def test_credentials_that_are_refused_at_the_start_are_not_tried_again(tmp_path: Path) -> None:
    faults = FaultyBucket()
    faults.on("get", MANIFEST, refused)
    place = faults.before(open_object_store((tmp_path / "bucket").as_uri()))
    with pytest.raises(Unauthenticated, match="403"):
        FoundStore.find(place, Settings(), create=False)
    with pytest.raises(NotFound, match="there is no ledger store"):
        FoundStore.find(place, Settings(), create=False)


@pytest.mark.thorough
def test_a_writer_of_the_bucket_names_no_code_and_no_other_place(tmp_path: Path) -> None:
    place = open_object_store((tmp_path / "bucket").as_uri())
    bucket, found = FoundStore.find(place, Settings(), create=True)

    def stored(**changed: int | str) -> Settings:
        manifest = msgspec.structs.replace(found.manifest, settings=changed)
        return FoundStore(bucket, found._replace(manifest=manifest)).live_settings(Settings()).now

    with pytest.raises(Refused, match=r"the manifest of .*'managedLedgerOffloadCredentialProvider' is stored here"):
        stored(managedLedgerOffloadCredentialProvider="os:system")
    moved = stored(managedLedgerOffloadServiceEndpoint="http://127.0.0.1:1", managedLedgerOffloadBucket="s3://x")
    assert moved == Settings()
    assert stored(metricsLedgersMax=7).metricsLedgersMax == 7


def test_what_a_store_in_a_bucket_refuses(address: str) -> None:
    create_in(address)
    store = connect(address)
    with pytest.raises(Refused, match=r"offloads to s3://.*/segments, and not to '/elsewhere'"):
        store.offload_to("/elsewhere", check=False)
    with pytest.raises(Refused, match=r"is at the endpoint of AWS, and not at 'http://127.0.0.1:1'"):
        store.offload_to(f"{address}/segments", check=False, endpoint="http://127.0.0.1:1")
    with pytest.raises(Refused, match="has durability 'os', a store in a bucket acknowledges nothing before"):
        store.create("fast", durability="os")


@pytest.mark.thorough
def test_read_only_store_reads_the_bucket_beside_and_after_its_broker(address: str, tmp_path: Path) -> None:
    create_in(address)
    store = connect(address)
    orders = store.ledger("orders")
    orders.append(rows(100))
    pages = store.create_partitioned("pages", 3)
    pages.append(rows(30))
    _, position = orders.cursor("printer").read()
    orders.cursor("printer").acknowledge(position)
    view = open_read_only(address)
    orders.append(rows(10, 100))
    assert view.names() == store.names()
    assert view.ledger("orders").read().column("id").to_pylist() == list(range(100)), "the state of its opening"
    assert sorted(view.ledger("pages").read().column("id").to_pylist()) == list(range(30))
    assert Cursor(view.ledger("orders"), "printer").state().next_position == position
    assert "orders" in repr(view)
    with pytest.raises(Refused, match="opened for reading only, 'create'"):
        view.ledger("orders").append(rows(1))
    with pytest.raises(Refused, match="opened for reading only, 'cursor"):
        view.ledger("orders").cursor("printer")
    directory = Path(store_location(address))
    stop_broker(directory)
    shutil.rmtree(tmp_path / "one")
    assert open_read_only(address).ledger("orders").read().column("id").to_pylist() == list(range(110))
    assert not directory.exists(), "a reader uses no cache"


def test_a_broker_that_lost_its_store_exits_without_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    with suppress(FileNotFoundError):  # raised here, because the exit is recorded only
        _leave(tmp_path / "deleted", Fenced("taken over"))
    assert exits == [0]
