"""Goal: a partitioned ledger is listed, described, written, read and deleted as one ledger. Method: a real broker."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.errors import AlreadyExists, NotFound, Refused
from pyspark_ledger.ledger.names import partition_of, without_partitions
from pyspark_ledger.ledger.partition_routing import partition_for_key
from pyspark_ledger.ledger.protocol.actions import AskEnd, CreateLedger, StopBroker

HOUR_MS = 3_600_000


def values(ledger: Ledger) -> list[str]:
    return [value.decode() for value in ledger.read().column("value").to_pylist()]


def test_names_of_partitions() -> None:
    assert partition_of("a/b/persistent/c-partition-12") == ("a/b/persistent/c", 12)
    for name in ("c", "c-partition-", "c-partition-01", "c-partition--1", "-partition-1", "c-partition-1x"):
        assert partition_of(name) is None
    assert without_partitions(["c", "c-partition-0", "d-partition-0"]) == ["c", "d-partition-0"]


def test_it_is_listed_described_and_deleted_as_one(store: LedgerStore, tmp_path: Path) -> None:
    clicks = store.create_partitioned("clicks", 3)
    for number in range(6):
        clicks.append([{"n": number}])
    assert store.names() == ["public/default/persistent/clicks"]
    described = clicks.describe()
    assert (described.entries, described.rows, len(described.partitions)) == (6, 6, 3)
    assert [part.name[-11:] for part in described.partitions] == [f"partition-{n}" for n in range(3)]
    assert [part.entries for part in described.partitions] == [2, 2, 2]
    with pytest.raises(Refused, match="'clicks-partition-1' is one of the 3 partitions of 'clicks'"):
        store.delete("clicks-partition-1")
    store.delete("clicks")
    assert store.names() == []
    assert not list((tmp_path / "store" / "ledgers").iterdir())
    with pytest.raises(NotFound):
        store.delete("clicks-partition-1")


def test_reading_the_whole_reads_all_partitions(store: LedgerStore) -> None:
    clicks = store.create_partitioned("clicks", 3)
    for number in range(7):
        clicks.append(pa.table({"n": [number]}))
    again = store.ledger("clicks")
    assert isinstance(again, PartitionedLedger)
    assert sorted(again.read().column("n").to_pylist()) == list(range(7))
    assert [part.read().num_rows for part in again.partitions()] != [7, 0, 0]
    with pytest.raises(Refused, match="column 'n'"):
        again.append([{"other": 1}])
    with pytest.raises(Refused, match="an end of 'clicks' was requested, but this ledger has partitions"):
        again.end()
    with pytest.raises(Refused, match="ledger 'clicks' has 3 partitions and no entries of its own"):
        store.client.ask(AskEnd("clicks"))
    with pytest.raises(Refused, match="has rows with columns"):
        again.producer()


@pytest.mark.parametrize("scheme", ["murmur3_32", "java_string"])
def test_a_key_has_one_partition_and_keeps_its_order(store: LedgerStore, scheme: str) -> None:
    clicks = store.create_partitioned("clicks", 3)
    with clicks.producer("p", hashing_scheme=scheme) as producer:
        sent = [producer.send(f"{n}".encode(), key=f"k{n % 5}") for n in range(20)]
        column = producer.send_column(
            pa.array([f"{n}" for n in range(20, 40)]), keys=pa.array([f"k{n % 5}" for n in range(20, 40)])
        )
        producer.flush()
    places = {n: partition_for_key(f"k{n}", 3, scheme) for n in range(5)}
    assert [future.result().partition for future in sent] == [places[n % 5] for n in range(20)]
    assert {message.partition for message in column.result()} == set(places.values())
    for partition, part in enumerate(clicks.partitions()):
        assert values(part) == [str(n) for n in range(40) if places[n % 5] == partition]


def test_without_a_key_the_turn_passes_on_with_each_batch(store: LedgerStore) -> None:
    clicks = store.create_partitioned("clicks", 3)
    with clicks.producer("p", batching_max_messages=2, batching_max_publish_delay_ms=HOUR_MS) as producer:
        sent = [producer.send(f"{n}".encode()) for n in range(6)]
        column = producer.send_column(pa.array([f"{n}" for n in range(6, 12)]))
    turns = [future.result().partition for future in sent]
    assert turns[::2] == turns[1::2]
    assert sorted(turns[::2]) == [0, 1, 2]
    assert [message.partition for message in column.result()] == turns[::2]
    assert sorted(len(values(part)) for part in clicks.partitions()) == [4, 4, 4]


def test_partitions_only_increase(store: LedgerStore) -> None:
    clicks = store.create_partitioned("clicks", 2)
    assert len(store.create_partitioned("clicks", 2).partitions()) == 2
    with pytest.raises(AlreadyExists, match="exists with 2 partitions, 4 were requested"):
        store.create_partitioned("clicks", 4)
    clicks.append([{"n": 1}])
    clicks.increase_partitions(4)
    assert len(clicks.partitions()) == 4
    assert clicks.read().num_rows == 1
    clicks.increase_partitions(4)
    for fewer in (3, 0):
        with pytest.raises(Refused, match=rf"{fewer}( partitions)? were requested"):
            clicks.increase_partitions(fewer)
    assert len(clicks.partitions()) == 4
    store.ledger("plain").append(b"x")
    with pytest.raises(AlreadyExists, match="exists with no partitions"):
        store.create_partitioned("plain", 2)


def test_a_partition_is_not_made_by_itself(store: LedgerStore) -> None:
    with pytest.raises(Refused, match="means partition 0 of 'clicks', which is not a partitioned ledger"):
        store.ledger("clicks-partition-0").append(b"x")
    store.create_partitioned("clicks", 1)
    with pytest.raises(Refused, match="means partition 1 of 'clicks', which has 1 partitions"):
        store.ledger("clicks-partition-1").append(b"x")
    store.ledger("clicks-partition-0").append(b"x")
    with pytest.raises(Refused, match="10001 partitions were requested, a ledger has 1 to 10000"):
        store.client.ask(CreateLedger("many", partitions=10_001))
    with pytest.raises(Refused, match="only in case"):
        store.create_partitioned("Clicks", 1)


@pytest.mark.thorough
def test_its_partitions_survive_the_broker(store: LedgerStore, tmp_path: Path) -> None:
    store.create_partitioned("clicks", 2).append([{"n": 1}])
    store.client.ask(StopBroker())
    again = connect(tmp_path / "store").ledger("clicks")
    assert isinstance(again, PartitionedLedger)
    assert again.read().to_pylist() == [{"n": 1}]


def test_a_producer_that_is_refused_leaves_no_stream(store: LedgerStore) -> None:
    clicks = store.create_partitioned("clicks", 3)
    with pytest.raises(Refused, match="md5"):
        clicks.producer(hashing_scheme="md5")
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("/clicks-partition-0")]
