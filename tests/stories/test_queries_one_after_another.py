"""Goal: streams that start one after another on an offloaded backlog together read its objects about once.

Method: the data source is called as Spark calls it, without a JVM. A broker in this process offloads to a real S3,
behind a proxy that counts the bytes of the objects. A stream starts when the first one has read a part of the backlog.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.connector.default_source import DefaultSource
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from pyspark_ledger.ledger.settings.setting import MIB
from tests.rigs.driven_broker import DrivenBroker
from tests.rigs.fault_proxy import FaultProxy

PROVIDER = "streaming_examples.s3_server:credentials"
CACHE_MB = 16
ENTRY_BYTES = 256 * 1024


class Stream:
    """Streaming query of one subscription, one micro-batch at a time."""

    def __init__(self, address: str, name: str, options: dict[str, str]) -> None:
        shape = {"store": address, "path": "orders", "subscription": name, "startingPosition": "earliest"}
        # Without pacing the order of the reads, and so their bytes, depend only on the test.
        limits = {"maxBytesPerTrigger": f"{2 * MIB}", "pacing": "false", "credentialProvider": PROVIDER}
        source = DefaultSource({**shape, **limits, **options})
        self._reader = source.streamReader(source.schema())
        self._at = self._reader.initialOffset()
        self.ids: list[int] = []

    def step(self) -> bool:
        """Run one micro-batch. Return whether it had rows."""
        end = self._reader.latestOffset(self._at, self._reader.getDefaultReadLimit())
        if end == self._at:
            return False
        for part in self._reader.partitions(self._at, end):
            for batch in self._reader.read(part):
                self.ids += batch.column("id").to_pylist()
        self._reader.commit(end)
        self._at = end
        return True

    def stop(self) -> None:
        self._reader.stop()


class Backlog:
    """Ledger `orders` with entries that are only in the bucket, or with `local` only in files."""

    def __init__(self, broker: DrivenBroker, proxy: FaultProxy, entries: int, *, local: bool = False) -> None:
        self.broker, self.entries, self.proxy = broker, entries, proxy
        rnd = random.Random(entries)
        broker.store.create_ledger(CreateLedger("orders", max_entries_per_ledger=8))
        store = connect(broker.record.address)
        for number in range(entries):
            store.ledger("orders").append([{"id": number, "body": rnd.randbytes(ENTRY_BYTES)}])
        store.client.close()
        log = broker.store.ledger("orders")
        log.roll_over()
        if not local:
            broker.store.offloads.offload(OffloadPrefix("orders"))
            broker.store.offloads.round()
            broker.pass_ms(5 * 3_600_000)
            log.trim()
        self.bytes = log.snapshot.segments.size_bytes(0, len(log.snapshot.segments))
        proxy.got_bytes = 0

    def read(self, shares: Sequence[float], *options: dict[str, str]) -> float:
        """Run a stream for each share of the backlog: it starts when the first stream has read this share.

        Return the bytes of objects that were read, divided by the bytes of the backlog.
        """
        waiting = deque(zip(shares, options or ({},) * len(shares), strict=True))
        streams, live = list[Stream](), True
        while live or waiting:
            while waiting and (not streams or len(streams[0].ids) >= waiting[0][0] * self.entries):
                streams.append(Stream(self.broker.record.address, f"q{len(streams)}", waiting.popleft()[1]))
            live = any([stream.step() for stream in streams])  # noqa: C419 — each stream takes its step
        for stream in streams:
            assert stream.ids == list(range(self.entries))
            stream.stop()
        return self.proxy.got_bytes / self.bytes


@pytest.fixture
def broker(bucket: str, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DrivenBroker]:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    settings: dict[str, Any] = {
        "managedLedgerOffloadBucket": bucket,
        "managedLedgerOffloadServiceEndpoint": proxy.endpoint,
        "managedLedgerOffloadCredentialProvider": PROVIDER,
        "managedLedgerCacheSizeMB": CACHE_MB,
    }
    broker = DrivenBroker(tmp_path, settings, monkeypatch)
    yield broker
    broker.close()


def backlog(broker: DrivenBroker, proxy: FaultProxy, caches: float, *, local: bool = False) -> Backlog:
    return Backlog(broker, proxy, int(caches * CACHE_MB * MIB / ENTRY_BYTES), local=local)


@pytest.mark.parametrize("shares", [(0, 0.4, 0.8), (0, 1, 1)])
def test_a_backlog_of_half_the_cache_is_read_once(
    broker: DrivenBroker, proxy: FaultProxy, shares: Sequence[float]
) -> None:
    orders = backlog(broker, proxy, 0.5)
    assert orders.read(shares) <= 1.1
    assert broker.source.metrics().direct_bytes == 0, "the broker reads all of them into unused memory"


def test_a_backlog_of_four_times_the_cache_is_read_less_than_twice(broker: DrivenBroker, proxy: FaultProxy) -> None:
    assert backlog(broker, proxy, 4).read((0, 0.1, 0.2)) <= 1.5  # 1.56 without unused memory


def test_a_stream_that_reads_alone_reads_directly_when_the_cache_is_full(
    broker: DrivenBroker, proxy: FaultProxy
) -> None:
    orders = backlog(broker, proxy, 2)
    assert orders.read((0,)) <= 1.1
    counted = broker.source.metrics()
    assert 0.4 * orders.bytes < counted.direct_bytes < 0.6 * orders.bytes
    assert counted.size_bytes <= CACHE_MB * MIB


def test_tasks_on_other_hosts_read_directly_and_are_counted_apart(broker: DrivenBroker, proxy: FaultProxy) -> None:
    """A task that cannot map the broker's memory gets no block that only a later query may need."""
    orders = backlog(broker, proxy, 0.5)
    found = orders.read((0, 1, 1), {"mapping": "off"}, {}, {"mapping": "off"})
    elsewhere = broker.source.metrics().direct_bytes / orders.bytes
    assert 1 <= elsewhere <= 1.1, "the first stream; the third one finds all blocks in the cache"
    assert found - elsewhere <= 1.1, "the second stream, on the broker's host"


def test_copied_blocks_of_local_files_are_read_once(broker: DrivenBroker, proxy: FaultProxy) -> None:
    broker.set("managedLedgerCacheCopyEntries", 1)
    orders = backlog(broker, proxy, 0.5, local=True)
    assert orders.read((0, 0.4, 1)) == 0, "no object"
    counted = broker.source.metrics()
    assert counted.file_miss_bytes + counted.page_cache_hit_bytes <= 1.1 * orders.bytes
    assert counted.memory_hit_bytes >= 1.9 * orders.bytes
    assert orders.bytes <= counted.size_bytes <= CACHE_MB * MIB


def test_copied_entries_change_nothing_for_blocks_of_objects(broker: DrivenBroker, proxy: FaultProxy) -> None:
    broker.set("managedLedgerCacheCopyEntries", 1)
    assert backlog(broker, proxy, 0.5).read((0, 0.4, 1)) <= 1.1
    assert broker.source.metrics().direct_bytes == 0
