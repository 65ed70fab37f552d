"""Goal: a stream without a broker has the offsets and rows of a stream through it. Method: a real S3, no JVM.

The broker of the races is in this process, so that a test decides what happens between plan and task.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_clients import be_client, create_store
from tests.rigs.bucket_store import BucketRig, append, numbered, offload
from tests.rigs.deadline import wait_until
from tests.rigs.fault_proxy import FaultProxy

EARLIEST = {"startingPosition": "earliest"}
NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
Offset = dict[str, Any]


@pytest.fixture(autouse=True)
def environment(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials of a user, whose caches are in `tmp_path`."""
    be_client(s3_server, tmp_path / "cache", monkeypatch)


@pytest.fixture
def store(bucket: str) -> Iterator[LedgerStore]:
    create_store(bucket)
    yield connect(bucket)
    stop_broker(bucket_directory(bucket))


@pytest.fixture
def rig(bucket: str, s3_server: S3Server, tmp_path: Path) -> Iterator[BucketRig]:
    rig = BucketRig(tmp_path, bucket, s3_server.options)
    yield rig
    rig.close()


def reader(bucket: str, **options: str) -> LedgerStreamReader:
    """Return a reader in a process other than that of the columns."""
    source = LedgerSource({"store": bucket, "path": "log", "broker": "none", **options}, "0.1.0")
    columns = source.schema()
    copy: LedgerSource = pickle.loads(pickle.dumps(source))  # noqa: S301 — our own bytes
    return copy.stream_reader(columns)


def stored(offset: Offset) -> Offset:
    """Return an offset as Spark returns it from the checkpoint."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def planned(stream: LedgerStreamReader, start: Offset, end: Offset) -> list[bytes]:
    return [pickle.dumps(part) for part in stream.partitions(stored(start), stored(end))]


def rows(stream: LedgerStreamReader, parts: list[bytes]) -> list[dict[str, Any]]:
    batches = (batch for part in parts for batch in stream.read(pickle.loads(part)))  # noqa: S301 — our own bytes
    return [row for batch in batches for row in batch.to_pylist()]


def values(stream: LedgerStreamReader, start: Offset, end: Offset) -> list[bytes]:
    return [row["value"] for row in rows(stream, planned(stream, start, end))]


def end_after(stream: LedgerStreamReader, start: Offset) -> Offset:
    return stored(stream.latestOffset(stored(start), stream.getDefaultReadLimit()))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"path": "orders"},
        {"path": "orders", "maxRowsPerTrigger": "7", "includeMetadata": "true"},
        {"path": "orders", "maxBytesPerTrigger": "900"},
        {"path": "pages", "maxRowsPerTrigger": "3"},
        {"path": "large"},
        {"path": "large", "payloadSchema": "STRING", "rescuedDataColumn": "_bad"},
        {"ledgersPattern": "orders|pages|new.*", "columns": "id,__position"},
    ],
)
def test_offsets_and_rows_are_those_of_a_stream_through_the_broker(
    store: LedgerStore, bucket: str, options: dict[str, str]
) -> None:
    """Each batch is planned on one side and read on the other side, in turn."""
    fill(store)
    given = {**EARLIEST, **options}
    sides = []
    for broker in ("auto", "none"):
        source = LedgerSource({"store": bucket, "broker": broker, **given}, "0.1.0")
        sides.append(source.stream_reader(source.schema()))
    live, without = sides
    at = stored(live.initialOffset())
    assert json.dumps(without.initialOffset()) == json.dumps(live.initialOffset())
    found: list[dict[str, Any]] = []
    for batch in range(100):
        ends = [json.dumps(side.latestOffset(at, side.getDefaultReadLimit())) for side in sides]
        assert ends[0] == ends[1], "byte for byte"
        reports = [side.reportLatestOffset() for side in sides]
        assert reports[0]["ledgers"].keys() == reports[1]["ledgers"].keys()
        lags = [{name: lag["lagRows"] for name, lag in report["ledgers"].items()} for report in reports]
        assert lags[0] == lags[1]
        end = json.loads(ends[0])
        if end == at:
            break
        parts = [rows(side, planned(side, at, end)) for side in sides]
        assert parts[0] == parts[1]
        found += parts[0]
        at = end
        if batch == 1:
            store.ledger("new-one").append([{"id": 9, "item": "a ledger that joins"}])
            store.ledger("orders").append([{"id": 101, "item": "during the run"}])
    batch_options = {name: text for name, text in options.items() if "PerTrigger" not in name}
    source = LedgerSource({"store": bucket, **batch_options}, "0.1.0")
    batch_reader = source.batch_reader(source.schema())
    everything = [
        row for part in batch_reader.partitions() for batch in batch_reader.read(part) for row in batch.to_pylist()
    ]
    assert sorted(map(repr, found)) == sorted(map(repr, everything)), "each row once"


def fill(store: LedgerStore) -> None:
    """Ledgers with rows, messages, chunks and partitions, partly uploaded."""
    for name in ("orders", "large"):
        store.client.ask(CreateLedger(name, max_entries_per_ledger=4))
    orders = store.ledger("orders")
    for number in range(10):
        orders.append([{"id": 10 * number + row, "item": f"i{number}"} for row in range(5)])
    wait_until(lambda: any(segment.offloaded for segment in orders.describe().segments), "the broker uploads")
    orders.append([{"id": 100, "item": "late"}])
    pages = store.create_partitioned("pages", 3)
    for number in range(6):
        pages.append([{"id": 1000 + number, "item": "page"}])
    with store.ledger("large").producer("p", chunk_max_bytes=1000, batching_max_publish_delay_ms=0) as producer:
        for size in (3000, 10, 2500, 0, 900):
            producer.send(bytes([size % 256]) * size, key=f"k{size}", properties={"size": str(size)})


def test_available_now_ends_where_the_log_ended_at_its_start(rig: BucketRig, bucket: str) -> None:
    broker = rig.host()
    append(broker, numbered(10), entries=3)
    stream = reader(bucket, maxRowsPerTrigger="4", **EARLIEST)
    stream.prepareForTriggerAvailableNow()
    at, found = stored(stream.initialOffset()), list[bytes]()
    append(broker, numbered(5, 10), entries=3)
    while (end := end_after(stream, at)) != at:
        found += values(stream, at, end)
        at = end
    assert found == numbered(10)
    later = reader(bucket, **EARLIEST)
    assert values(later, at, end_after(later, at)) == numbered(5, 10), "the next run"


def test_stream_starts_at_the_latest_row_and_waits_for_the_fewest_rows(rig: BucketRig, bucket: str) -> None:
    broker = rig.host()
    append(broker, numbered(5))
    stream = reader(bucket, minRowsPerTrigger="3", maxTriggerDelay="1h")
    at = stored(stream.initialOffset())
    append(broker, numbered(2, 5))
    assert end_after(stream, at) == at
    append(broker, numbered(1, 7))
    assert values(stream, at, end_after(stream, at)) == numbered(3, 5)


def test_idle_trigger_sends_two_requests_and_a_stream_only_reads(
    rig: BucketRig, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    broker = rig.host()
    append(broker, numbered(9), entries=4)
    offload(broker)
    keys = rig.keys()
    with FaultProxy(s3_server.endpoint) as proxy:
        for method in ("PUT", "POST", "DELETE"):
            proxy.on(method, "", "forbidden", times=1_000)
        access = {"offloadEndpoint": proxy.endpoint, "credentialProvider": "streaming_examples.s3_server:credentials"}
        stream = reader(bucket, **EARLIEST, **access)
        at = stored(stream.initialOffset())
        end = end_after(stream, at)
        assert values(stream, at, end) == numbered(9)
        before = proxy.requests
        for _ in range(5):
            assert end_after(stream, end) == end
            stream.reportLatestOffset()
            stream.commit(end)
        assert proxy.requests - before == 10
        append(broker, numbered(1, 9), entries=4)
        before = proxy.requests
        newest = end_after(stream, end)
        assert proxy.requests > before
        assert values(stream, end, newest) == numbered(1, 9)
        stream.stop()
        assert not proxy.met, "nothing was written"
    assert {*keys} <= {*rig.keys()}
    assert not (tmp_path / "cache").exists(), "neither a cache nor a broker"


def upload_and_collect(broker: BucketStore) -> None:
    broker.store.ledger("log").roll_over()
    offload(broker)
    broker.collector.collect()


def test_rows_that_only_moved_are_no_data_loss(rig: BucketRig, bucket: str) -> None:
    broker = rig.host()
    append(broker, numbered(6), entries=8)
    stream = reader(bucket, **EARLIEST)
    at = stored(stream.initialOffset())
    end = end_after(stream, at)
    parts = planned(stream, at, end)
    before = rig.keys("wal/")
    upload_and_collect(broker)
    assert not {*before} <= {*rig.keys("wal/")}
    assert [row["value"] for row in rows(stream, parts)] == numbered(6), "planned before the move"
    assert values(stream, at, end) == numbered(6), "a repeated batch, planned by the old view"
    append(broker, numbered(3, 6), entries=8)
    newer = end_after(stream, end)
    upload_and_collect(broker)
    other = reader(bucket, **EARLIEST)
    assert values(other, end, newer) == numbered(3, 6), "a new process repeats the batch"


def test_stream_follows_take_overs_and_claims(rig: BucketRig, bucket: str) -> None:
    append(rig.host(), numbered(3))
    stream = reader(bucket, **EARLIEST)
    at, found = stored(stream.initialOffset()), list[bytes]()
    for number in range(3):
        end = end_after(stream, at)
        found += values(stream, at, end)
        at = end
        append(rig.host(f"host-{number}"), numbered(2, 3 + 2 * number))
    end = end_after(stream, at)
    assert found + values(stream, at, end) == numbered(9)


def trim(rig: BucketRig, broker: BucketStore) -> None:
    broker.store.policies.change(ChangePolicy("log", False, NOTHING))
    broker.store.ledger("log").trim()
    broker.store.offloads.round()
    for key in rig.keys("segments/"):
        rig.bucket.delete([key])


def test_rows_that_retention_deleted_are_data_loss(rig: BucketRig, bucket: str) -> None:
    broker = rig.host()
    append(broker, numbered(9), entries=3)
    offload(broker)
    append(broker, numbered(2, 9), entries=3)
    stream, lenient = reader(bucket, **EARLIEST), reader(bucket, failOnDataLoss="false", **EARLIEST)
    at = stored(stream.initialOffset())
    end = end_after(stream, at)
    parts = planned(stream, at, end)
    trim(rig, broker)
    with pytest.raises(DataLoss, match="retention deleted them"):
        rows(stream, parts)
    with pytest.raises(DataLoss, match="retention deleted them"):
        end_after(stream, at)
    left = values(lenient, at, end_after(lenient, at))
    assert left[-1:] == numbered(1, 10)
    assert len(left) < 8
    report = lenient.reportLatestOffset()
    assert report is not None
    assert report["dataLosses"] == 1


def test_deleted_and_new_ledgers_of_a_pattern(rig: BucketRig, bucket: str) -> None:
    broker = rig.host()
    append(broker, numbered(3))
    source = LedgerSource({"store": bucket, "ledgersPattern": "log.*", "broker": "none", **EARLIEST}, "0.1.0")
    stream = source.stream_reader(source.schema())
    at = stored(stream.initialOffset())
    append(broker, numbered(2, 3), "log-b")
    end = end_after(stream, at)
    assert sorted(values(stream, at, end)) == numbered(5), "a new ledger, from its beginning"
    broker.store.delete_ledger("log")
    append(broker, numbered(1))
    with pytest.raises(DataLoss, match="deleted and created again"):
        end_after(stream, end)
    broker.store.delete_ledger("log")
    with pytest.raises(DataLoss, match="was deleted"):
        end_after(stream, end)


def test_checkpoint_ahead_of_an_older_copy_is_refused(rig: BucketRig, bucket: str, s3_server: S3Server) -> None:
    broker = rig.host()
    append(broker, numbered(3))
    older = {key: rig.bucket.get(key, 1 << 24).data for key in sorted(rig.keys())}
    append(broker, numbered(3, 3))
    stream = reader(bucket, **EARLIEST)
    at = stored(stream.initialOffset())
    end = end_after(stream, at)
    broker.close()
    rig.opened.clear()
    rig.bucket.delete([*({*rig.keys()} - {*older})])
    for key, data in older.items():
        rig.bucket.put(key, [data])
    with pytest.raises(DataLoss, match="restored from an older copy"):
        values(reader(bucket, **EARLIEST), at, end)


def test_another_store_in_the_place_is_refused(rig: BucketRig, bucket: str) -> None:
    broker = rig.host()
    append(broker, numbered(3))
    stream = reader(bucket, **EARLIEST)
    at = stored(stream.initialOffset())
    broker.close()
    rig.opened.clear()
    rig.bucket.delete(rig.keys())
    append(rig.host("other"), numbered(3))
    with pytest.raises(Refused, match=r"the store at s3://.* has id .*, the read began with store"):
        end_after(stream, at)
    with pytest.raises(Refused, match="the checkpoint is of store"):
        end_after(reader(bucket), at)


def test_what_a_stream_without_a_broker_refuses(rig: BucketRig, bucket: str, tmp_path: Path) -> None:
    append(rig.host(), numbered(1))
    for options, words in (
        (
            {"subscription": "s"},
            "option 'subscription' is 's' with 'broker' = 'none': only the store's broker can move",
        ),
        ({"ackMode": "explicit"}, "option 'ackMode' has no meaning with 'broker' = 'none'"),
        ({"deadLetterLedger": "dead"}, "option 'deadLetterLedger' has no meaning with 'broker' = 'none'"),
        ({"pacing": "false"}, "option 'pacing' has no meaning with 'broker' = 'none'"),
        ({"waitForLedger": "true"}, "option 'waitForLedger' has no meaning with 'broker' = 'none'"),
        ({"store": str(tmp_path)}, "the store .* is not in a bucket"),
    ):
        with pytest.raises(Refused, match=words):
            reader(bucket, **options)
    with pytest.raises(NotFound, match="there is no ledger 'lgo'"):
        reader(bucket, path="lgo")
    source = LedgerSource({"store": bucket, "path": "log", "broker": "none"}, "0.1.0")
    with pytest.raises(
        Refused, match=r"'broker' has no meaning for a stream write. Only the store's broker .* Leave 'broker' out"
    ):
        source.stream_writer(source.schema())
