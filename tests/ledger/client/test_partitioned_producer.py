"""Goal: a message of a partitioned ledger that is sent again meets the partition that knows it. Method: a real broker.

The producer, and in one test its broker, ends between two attempts to send the same messages.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.client.partitioned_producer import PartitionedProducer
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.partition_routing import partition_for_key
from pyspark_ledger.ledger.position import MessageId
from tests.rigs.broker_process import kill_broker

PARTITIONS = 3


def partitioned(store: LedgerStore) -> PartitionedLedger:
    return store.create_partitioned("once", PARTITIONS, deduplication=True)


def key_of(number: int) -> str | None:
    """Return a key for every fourth message."""
    return f"k{number}" if number % 4 == 0 else None


def place_of(number: int) -> int:
    key = key_of(number)
    return number % PARTITIONS if key is None else partition_for_key(key, PARTITIONS, "murmur3_32")


def send(producer: PartitionedProducer, numbers: range) -> list[Future[MessageId]]:
    return [producer.send(b"%d" % number, key=key_of(number), sequence_id=number) for number in numbers]


def values(ledger: PartitionedLedger) -> list[list[int]]:
    return [[int(value) for value in part.read()["value"].to_pylist()] for part in ledger.partitions()]


def expected(numbers: range) -> list[list[int]]:
    return [[number for number in numbers if place_of(number) == place] for place in range(PARTITIONS)]


@pytest.mark.broker_process
@pytest.mark.parametrize("killed", [False, True])
def test_messages_sent_again_after_a_restart_are_written_once(store: LedgerStore, tmp_path: Path, killed: bool) -> None:
    ledger = partitioned(store)
    with ledger.producer("p", batching_max_publish_delay_ms=0) as producer:
        first = send(producer, range(20))
    assert [one.result().partition for one in first] == [place_of(number) for number in range(20)]
    assert not any(one.result().is_duplicate for one in first)
    if killed:
        kill_broker(tmp_path / "store")
        ledger = partitioned(connect(tmp_path / "store"))
    with ledger.producer("p", batching_max_publish_delay_ms=0) as producer:
        again = send(producer, range(30))
    assert [one.result().is_duplicate for one in again] == [True] * 20 + [False] * 10
    assert values(ledger) == expected(range(30))


def test_partition_of_a_sequence_id_does_not_depend_on_the_batches(store: LedgerStore) -> None:
    ledger = partitioned(store)
    for most, known in ((7, 0), (2, 21)):
        with ledger.producer("p", batching_max_messages=most) as producer:
            sent = send(producer, range(24)) if known else send(producer, range(21))
        assert sum(one.result().is_duplicate for one in sent) == known
    assert values(ledger) == expected(range(24))


def test_large_messages_sent_again_are_written_once(store: LedgerStore) -> None:
    ledger = partitioned(store)
    entries = []
    for known in (False, True):
        with ledger.producer("p", chunk_max_bytes=10) as producer:
            sent = [producer.send(b"x" * 25, sequence_id=number) for number in range(5)]
        assert [one.result().is_duplicate for one in sent] == [known] * 5
        entries.append([part.describe().entries for part in ledger.partitions()])
    assert entries == [[6, 6, 3]] * 2


def test_sequence_ids_must_rise_over_all_partitions(store: LedgerStore) -> None:
    with partitioned(store).producer("p") as producer:
        producer.send(b"", sequence_id=5)
        for number in (5, 4, 0):
            with pytest.raises(Refused, match=f"sequence id {number} was given to the producer 'p', its last is 5"):
                producer.send(b"", sequence_id=number)
        with pytest.raises(Refused, match="event time is -1"):
            producer.send(b"", sequence_id=6, event_time_ms=-1)
        assert producer.send(b"", sequence_id=6).result(60).partition == 0


@pytest.mark.parametrize("wrong", [-1, 1.5, "1", 2**63])
def test_sequence_id_that_no_log_knows_is_refused(store: LedgerStore, wrong: Any) -> None:
    with (
        partitioned(store).producer("p") as producer,
        pytest.raises(Refused, match=f"sequence id is {wrong!r}, expected a number from 0 to 2"),
    ):
        producer.send(b"", sequence_id=wrong)
