"""Goal: a column that was always null gets its type at every door, and no older plan reads null in place of a value.

Method: the same rows through a store in a bucket, with and without its broker, direct reads, a bucket without a broker
and histories. The data source is called as Spark calls it, without a JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from streaming_examples.s3_server import S3Server
from tests.rigs.broker_thread import served
from tests.rigs.bucket_clients import be_client, create_store
from tests.rigs.driven_broker import DrivenBroker
from tests.rigs.published_history import publish_sealed, trim
from tests.rigs.scan import rows_of

PROVIDER = "streaming_examples.s3_server:credentials"
VOID = {"id": 1, "note": None, "list": [None], "pair": {"n": 1, "x": None}}
TYPED = {"id": 2, "note": "gift", "list": ["a", None], "pair": {"n": 2, "x": {"y": b"1"}}}
LATE: dict[str, Any] = {"id": 3, "note": None, "list": [], "pair": None}


class Door:
    """Ledger `notes`, and the options of a read of it. `settle` brings the sealed segments to the place of the read."""

    def __init__(self, ledger: Ledger, options: dict[str, str], settle: Callable[[], object] = lambda: None) -> None:
        self.ledger, self.options, self.settle = ledger, options, settle

    def source(self, **options: str) -> LedgerSource:
        return LedgerSource({"path": "notes", **self.options, **options}, "0")

    def append(self, row: dict[str, Any]) -> None:
        self.ledger.append([row])
        self.ledger.seal()
        self.settle()


class Place:
    """Resources of one test."""

    def __init__(self, path: Path, server: S3Server, bucket: str, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.path, self.server, self.bucket, self.patch, self.stack = path, server, bucket, patch, stack
        self.store, self.table = path / "store", path / "table"

    def ledger(self) -> Ledger:
        self.stack.enter_context(served(self.store))
        found: Ledger = connect(self.store).ledger("notes")
        return found

    def publish(self) -> None:
        publish_sealed(self.store, self.table, "notes")


def bucket_store(place: Place) -> Door:
    be_client(place.server, place.path / "cache", place.patch)
    create_store(place.bucket)
    place.stack.callback(stop_broker, bucket_directory(place.bucket))
    return Door(connect(place.bucket).ledger("notes"), {"store": place.bucket})


def bucket_store_without_broker(place: Place) -> Door:
    door = bucket_store(place)
    door.options["broker"] = "none"
    return door


def direct_reads(place: Place) -> Door:
    place.patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    names = {"Bucket": place.bucket, "ServiceEndpoint": place.server.endpoint, "CredentialProvider": PROVIDER}
    settings = {f"managedLedgerOffload{name}": value for name, value in names.items()}
    broker = DrivenBroker(place.path, settings, place.patch)
    place.stack.callback(broker.close)
    api = connect(broker.record.address)
    place.stack.callback(api.client.close)
    broker.store.create_ledger(CreateLedger("notes"))

    def settle() -> None:
        broker.store.offloads.offload(OffloadPrefix("notes"))
        broker.store.offloads.round()
        broker.pass_ms(5 * 3_600_000)
        broker.store.ledger("notes").trim()

    return Door(api.ledger("notes"), {"store": broker.record.address, "credentialProvider": PROVIDER}, settle)


def bucket_without_broker(place: Place) -> Door:
    ledger, bucket = place.ledger(), place.path / "bucket"
    connect(place.store).offload_to(str(bucket))
    return Door(ledger, {"offload": str(bucket)}, ledger.offload)


def history(place: Place) -> Door:
    ledger = place.ledger()

    def settle() -> None:
        place.publish()
        trim(place.store, "notes")

    return Door(ledger, {"store": str(place.store), "history": str(place.table)}, settle)


def bucket_history(place: Place) -> Door:
    door = bucket_without_broker(place)
    offload, door.options["history"] = door.settle, str(place.table)

    def settle() -> None:
        offload()
        place.publish()

    door.settle = settle
    return door


def read_on(reader: LedgerStreamReader, start: Any) -> None:
    """Read two batches, because a bucket is listed again after the first. They may have the first row only."""
    for _ in range(2):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        for part in reader.partitions(start, end):
            assert all(batch["id"].to_pylist() == [VOID["id"]] for batch in reader.read(part))
        start = end


BATCH_ONLY = (bucket_store_without_broker, bucket_history)


@pytest.fixture
def place(tmp_path: Path, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, s3_server, bucket, monkeypatch, stack)


@pytest.mark.parametrize(
    "door_of",
    [bucket_store, bucket_store_without_broker, direct_reads, bucket_without_broker, history, bucket_history],
    ids=lambda door: door.__name__,
)
def test_null_column_gets_its_type_at_every_door(place: Place, door_of: Callable[[Place], Door]) -> None:
    door = door_of(place)
    door.append(VOID)
    assert rows_of(door.source()) == [VOID]
    planned = door.source(startingPosition="earliest")
    columns = planned.schema()
    start = None
    if door_of not in BATCH_ONLY:
        stale = planned.stream_reader(columns)
        start = stale.initialOffset()
    door.append(TYPED)
    door.append(LATE)
    assert sorted(rows_of(door.source()), key=lambda row: row["id"]) == [VOID, TYPED, LATE]
    with pytest.raises(Refused, match=r"Start again: call load\(\) again|Call load\(\) again"):
        rows_of(planned, columns) if start is None else read_on(stale, start)
    if start is not None:
        stale.stop()
