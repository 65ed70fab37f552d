"""Goal: tasks fetch from a bucket what no other reader needs, and return the rows of a read through the broker.

Method: a broker in this process offloads to a real S3. The data source is called as Spark calls it, without a JVM. Each
test has a store, and so a process-wide state, of its own.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.connector.default_source import DefaultSource
from pyspark_ledger.connector.read.ledger import direct, prefetch_client
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.broker.telemetry.openmetrics import exposition
from pyspark_ledger.ledger.errors import DataLoss, Unsupported
from pyspark_ledger.ledger.logs.steps import FIELDS, STEPS
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskEnd, CreateLedger
from pyspark_ledger.ledger.protocol.cache import CacheMetrics
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy, OffloadPrefix
from pyspark_ledger.ledger.protocol.metrics import AskMetrics
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket import kafka_batch
from tests.rigs.direct import commit_direct, direct_part
from tests.rigs.driven_broker import DrivenBroker

PROVIDER = "streaming_examples.s3_server:credentials"
ACCESS = {"credentialProvider": PROVIDER}
SENT = {"mapping": "off"}
NAME = "public/default/persistent/orders"


class Orders:
    """Ledger `orders` of a broker in this process. A segment has three entries."""

    def __init__(self, broker: DrivenBroker, bucket: str) -> None:
        self.broker, self.bucket = broker, bucket
        self.store = connect(broker.record.address)
        broker.store.create_ledger(CreateLedger("orders", max_entries_per_ledger=3))
        self.ledger = self.store.ledger("orders")
        self.rows = 0

    def append(self, entries: int, rows: int = 2) -> None:
        for _ in range(entries):
            self.ledger.append([{"id": self.rows + row, "item": f"item {self.rows + row}"} for row in range(rows)])
            self.rows += rows

    def offload(self, *, gone: bool) -> None:
        """Offload the sealed segments. With `gone`, delete the local copies of all offloaded segments."""
        self.broker.store.offloads.offload(OffloadPrefix("orders"))
        self.broker.store.offloads.round()
        if gone:
            self.broker.pass_ms(5 * 3_600_000)
            self.broker.store.ledger("orders").trim()

    def read(self, options: Mapping[str, str], before: Callable[[], object] = lambda: None) -> list[int]:
        """Return the ids of a batch read. `before` is called between the plan and the tasks."""
        source = DefaultSource({"store": self.broker.record.address, "path": "orders", **options})
        reader = source.reader(source.schema())
        parts = reader.partitions()
        before()
        return [row["id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    def stream(self, options: Mapping[str, str]) -> tuple[list[int], dict[str, Any]]:
        """Return the ids of a stream's first batch, and the `reads` of the progress of the next trigger."""
        source = DefaultSource(
            {"store": self.broker.record.address, "path": "orders", "startingPosition": "earliest", **options}
        )
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        reader.reportLatestOffset()
        parts = reader.partitions(start, end)
        ids = [row["id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        reader.commit(end)
        reader.latestOffset(end, reader.getDefaultReadLimit())
        report = reader.reportLatestOffset()
        reader.stop()
        return ids, report["reads"]

    def counted(self) -> CacheMetrics:
        return self.broker.source.metrics()

    def close(self) -> None:
        self.store.client.close()
        self.broker.close()


@pytest.fixture
def orders(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orders]:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    settings = {
        "managedLedgerOffloadBucket": bucket,
        "managedLedgerOffloadServiceEndpoint": s3_server.endpoint,
        "managedLedgerOffloadCredentialProvider": PROVIDER,
    }
    orders = Orders(DrivenBroker(tmp_path, settings, monkeypatch), bucket)
    yield orders
    orders.close()


@pytest.mark.parametrize("seed", range(6))
def test_direct_reads_return_what_the_broker_returns(orders: Orders, seed: int) -> None:
    rnd = random.Random(seed)
    for _ in range(rnd.randint(2, 5)):
        orders.append(rnd.randint(1, 7), rnd.randint(1, 3))
        if rnd.random() < 0.8:
            orders.offload(gone=rnd.random() < 0.5)
    orders.append(4)
    orders.offload(gone=True)
    orders.append(1)
    segments = orders.ledger.describe().segments
    small = {"minPartitionBytes": "1", "targetPartitionBytes": "1"}
    for _ in range(6):
        first, last = sorted(rnd.choices(range(len(segments)), k=2))
        start = f"{segments[first].ledger_id}:{rnd.randrange(segments[first].entries + 1)}"
        bounds = rnd.choice(
            [
                {},
                {"startingPosition": start},
                {"endingPosition": f"{segments[last].ledger_id}:{segments[last].entries}"},
            ]
        )
        options = {**bounds, **rnd.choice([{}, small]), **rnd.choice([{}, SENT])}
        assert orders.read({**ACCESS, **options}) == orders.read({"directReads": "off", **options}), options
    assert orders.counted().direct_entries
    orders.broker = orders.broker.again()
    orders.store = connect(orders.broker.record.address)
    counted = orders.counted()
    ids, reads = orders.stream({**ACCESS, **SENT})
    assert ids == list(range(orders.rows))
    assert reads["directBytes"] == orders.counted().direct_bytes - counted.direct_bytes > 0
    assert reads["sentBytes"] > 0, "the tail"


def test_record_batches_of_kafka_are_unsupported_in_direct_reads(orders: Orders) -> None:
    orders.broker.store.create_ledger(CreateLedger("topic"))
    topic = orders.store.ledger("topic")
    with orders.store.client.producer(topic.name) as producer:
        producer.append(kafka_batch(0, num_messages_in_batch=3)).result()
    topic.seal()
    orders.broker.store.offloads.offload(OffloadPrefix("topic"))
    orders.broker.store.offloads.round()
    orders.broker.pass_ms(5 * 3_600_000)
    orders.broker.store.ledger("topic").trim()
    source = DefaultSource({"store": orders.broker.record.address, "path": "topic", **ACCESS})
    reader = source.reader(source.schema())
    with pytest.raises(Unsupported, match=r"entry .* was stored by KoP with entry.format=kafka"):
        [batch for part in reader.partitions() for batch in reader.read(part)]


def test_metrics_and_log_lines_count_what_tasks_fetched(orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
    orders.append(9)
    orders.offload(gone=True)
    orders.append(2)
    with caplog.at_level(logging.INFO, STEPS.name):
        assert orders.read({**ACCESS, **SENT}) == list(range(22))
        assert orders.read({"directReads": "off", **SENT}) == list(range(22))
    fetched = [step for record in caplog.records if (step := getattr(record, FIELDS, {})).get("step") == "fetch"]
    counted = orders.counted()
    assert fetched == [{"step": "fetch", "entries": 6, "bytes": counted.direct_bytes}]
    lines = exposition(orders.store.client.ask(AskMetrics()), openmetrics=True).decode().splitlines()
    assert {"ledger_direct_read_entries_total 6", f"ledger_direct_read_bytes_total {counted.direct_bytes}"} <= {*lines}


def test_a_block_that_another_reader_expects_is_read_once(orders: Orders) -> None:
    orders.append(9)
    orders.offload(gone=True)
    for reader in ("a", "b"):
        orders.broker.source.follow(NAME, reader, EARLIEST, 60_000)
    read = {**ACCESS, "subscription": "a"}
    orders.broker.source.follow(NAME, "a", EARLIEST, 60_000)
    ids, _ = orders.stream(read)
    assert ids == list(range(18))
    counted = orders.counted()
    assert (counted.direct_entries, counted.object_misses) == (0, 6), "reader b expects all of them"
    assert orders.stream({**ACCESS, "subscription": "b"})[0] == ids
    counted = orders.counted()
    assert (counted.direct_entries, counted.object_misses, counted.memory_hits) == (0, 6, 6), "they are cached"


def test_a_block_that_one_reader_expects_is_not_cached(orders: Orders) -> None:
    orders.append(9)
    orders.offload(gone=True)
    read = {**ACCESS, **SENT, "subscription": "alone"}
    assert orders.stream(read)[0] == list(range(18))
    counted = orders.counted()
    assert (counted.direct_entries, counted.object_misses, counted.ahead_bytes) == (6, 6, 0)
    assert counted.expected_reads == counted.size_bytes == 0
    assert [count for (_, kind), count in orders.broker.cache.decisions().items() if kind == "decline"] == [6 + 3]


@pytest.mark.parametrize(("given", "remote"), [(SENT, 0), ({}, 2), ({"directReads": "off"}, 2)])
def test_the_broker_prefetches_no_block_that_a_task_fetches(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], remote: int
) -> None:
    orders.append(9)
    orders.offload(gone=True)
    prefetcher, planned = orders.broker.source.prefetch_planner.prefetcher, list[Any]()
    plan = prefetcher.plan
    monkeypatch.setattr(prefetcher, "plan", lambda reading, blocks: planned.append(blocks) or plan(reading, blocks))
    monkeypatch.setattr(prefetch_client, "WORTH_BYTES", 1)
    assert orders.stream({**given, "subscription": "alone"})[0] == list(range(18))
    assert len([block for block in planned[0] if block.source is not None]) == remote


def test_a_reader_behind_others_reads_directly_what_they_have_passed(orders: Orders) -> None:
    orders.append(9)
    orders.offload(gone=True)
    segments = orders.ledger.describe().segments
    orders.broker.source.follow(NAME, "ahead", Position(segments[1].ledger_id, 0), 60_000)
    assert orders.read(ACCESS) == list(range(18))
    assert orders.counted().direct_entries == 3, "the first segment"


def test_wrong_credentials_lead_through_the_broker_with_one_warning(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    orders.append(9)
    orders.offload(gone=True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-key-0123456789")
    small = {"minPartitionBytes": "1", "targetPartitionBytes": "1"}
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert orders.read({**SENT, **small}) == list(range(18))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    (warning,) = [text for text in warnings if "read through the broker" in text]
    assert "nobody" not in warning
    assert "not-the-key" not in caplog.text
    assert orders.counted().direct_entries == 1, "only the first task, of one entry, has asked for places"


def test_an_unreachable_bucket_leads_through_the_broker(orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
    orders.append(4)
    orders.offload(gone=True)
    closed = {**ACCESS, **SENT, "offloadEndpoint": "http://127.0.0.1:9"}
    assert orders.read(closed) == list(range(8))
    assert "127.0.0.1:9" in caplog.text


def test_an_object_that_is_gone_after_the_plan_is_read_through_the_broker(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker still has local copies. The second object is deleted after the task has its place."""
    orders.append(13)
    orders.offload(gone=False)
    locate = direct._locate

    def located(*asked: Any, **named: Any) -> Any:
        places = locate(*asked, **named)
        if places is not None:
            key = places.ranges[0][0].blocks[1].key
            place = open_object_store(orders.bucket, _s3(orders))
            place.delete([key])
            place.close()
        return places

    assert orders.read({**ACCESS, **SENT}) == list(range(26)), "the process can read the bucket"
    monkeypatch.setattr(direct, "_locate", located)
    assert orders.read({**ACCESS, **SENT}) == list(range(26))


def test_retention_between_plan_and_task_is_a_data_loss(orders: Orders) -> None:
    orders.append(9)
    orders.offload(gone=True)

    def trim() -> None:
        values = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        orders.broker.store.policies.change(ChangePolicy("orders", values=values))
        orders.broker.store.ledger("orders").trim()

    with pytest.raises(DataLoss):
        orders.read({**ACCESS, **SENT}, before=trim)
    assert orders.read({**ACCESS, **SENT}) == list(range(12, 18))


def test_direct_segments_have_their_real_stamps(orders: Orders, s3_server: S3Server, tmp_path: Path) -> None:
    orders.broker.store.create_ledger(CreateLedger("raw", block_bytes=4096))
    offloader = ObjectStoreOffloader(orders.bucket, s3_server.options)
    payloads = [b"%d" % number * 100 for number in range(30)]
    for batch in (1, 2):
        commit_direct(
            orders.broker.store, offloader, batch, [direct_part(tmp_path, batch, payloads, 4096, rows=2)], "raw"
        )
    client = orders.broker.client
    request = ReadRequest("raw", PositionRange(EARLIEST, client.ask(AskEnd("raw")).end))
    access = direct.S3Options(credential_provider=PROVIDER)
    ((_, blocks),) = direct.read_direct(client, access, [request], mapping=False)
    found = b"".join(bytes(block.frames) for block in blocks)
    assert orders.counted().direct_entries == 2 * (30 + 1), "with the marker of each batch"
    assert found == b"".join(bytes(block.frames) for block in client.read_blocks(request, mapping=False))
    offloader.close()


def _s3(orders: Orders) -> Any:
    segment = orders.broker.store.ledger("orders").snapshot.segments[0]
    stored = segment.offloaded.stored
    return direct.S3Options(endpoint=stored.endpoint, credential_provider=PROVIDER)
