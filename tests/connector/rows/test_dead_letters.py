"""Goal: undecodable messages are dead letters, once per micro-batch, and the other rows are delivered.

Method: Spark's calls over a real embedded broker: attempts that end early, run in parallel, or follow a kill of the
broker.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.errors import LedgerError, Refused
from tests.rigs import broker_process as fixtures

VALUES = 400
TOPIC = "persistent://public/default/clicks"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Store for all tests of this file, because the start of a broker takes longer than a test."""
    path = tmp_path_factory.mktemp("dead-letters") / "store"
    yield path
    fixtures.end_all(path)


@pytest.fixture(scope="module")
def api(place: Path) -> LedgerStore:
    """Store with messages of eight bytes, of which every tenth is no number."""
    api = connect(place)
    with api.ledger("clicks").producer(batching_max_messages=7, batching_max_publish_delay_ms=10_000) as producer:
        for number in range(VALUES):
            producer.send(b"?%d" % number if number % 10 == 3 else struct.pack(">q", number))
    return api


def stream(place: Path, dead_letters: str, **options: str) -> LedgerStreamReader:
    given = {"path": "clicks", "payloadSchema": "INT64", "startingPosition": "earliest", "minPartitionBytes": "256"}
    given |= {"targetPartitionBytes": "1k", "deadLetterLedger": dead_letters, "store": str(place), **options}
    source = LedgerSource(given, "0.1.0")
    return source.stream_reader(source.schema())


def planned(reader: LedgerStreamReader) -> list:
    start = json.loads(json.dumps(reader.initialOffset()))
    end = json.loads(json.dumps(reader.latestOffset(start, None)))
    return [pickle.loads(pickle.dumps(part)) for part in reader.partitions(start, end)]  # noqa: S301  # our own bytes


def values(reader: LedgerStreamReader, parts: list) -> list[int]:
    return [n for part in parts for batch in reader.read(part) for n in batch.column("value").to_pylist()]


def dead(place: Path, name: str, *columns: str) -> Iterator[dict]:
    source = LedgerSource({"path": name, "store": str(place), "columns": ",".join(columns)}, "0.1.0")
    reader = source.batch_reader(source.schema())
    for part in reader.partitions():
        for batch in reader.read(part):
            yield from batch.to_pylist()


def test_rows_go_on_and_the_rest_is_kept_with_reason_and_place(place: Path, api: LedgerStore) -> None:
    reader = stream(place, "whole", columns="value,__topic")
    parts = planned(reader)
    assert len(parts) > 3
    assert values(reader, parts) == [n for n in range(VALUES) if n % 10 != 3]
    batch = next(iter(reader.read(parts[0])))
    assert batch.schema.names == ["value", "__topic"]
    letters = list(dead(place, "whole", "value", "__messageProperties"))
    assert [letter["value"] for letter in letters] == [b"?%d" % n for n in range(3, VALUES, 10)]
    said = dict(letters[0]["__messageProperties"])
    assert said["REAL_TOPIC"] == TOPIC
    ledger, entry, index = map(int, said["ORIGIN_MESSAGE_ID"].split(":"))
    assert (entry * 7 + index, ledger >= 0) == (3, True)
    assert "2 bytes" in said["ledger.reason"] or "8" in said["ledger.reason"]


@pytest.mark.thorough
def test_attempts_that_end_early_or_run_side_by_side_leave_each_once(place: Path, api: LedgerStore) -> None:
    reader = stream(place, "attempts")
    parts = planned(reader)
    for part in parts:
        begun = iter(reader.read(part))
        next(begun)
        begun.close()
    threads = [Thread(target=values, args=(stream(place, "attempts"), parts[::step])) for step in (1, -1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fixtures.kill_broker(place)
    assert len(values(reader, parts)) == VALUES * 9 // 10, "the batch is planned again, after a restart"
    assert sorted(letter["value"] for letter in dead(place, "attempts", "value")) == sorted(
        b"?%d" % n for n in range(3, VALUES, 10)
    )


def test_a_broker_that_is_killed_while_they_are_sent(place: Path, api: LedgerStore) -> None:
    reader = stream(place, "killed", minPartitionBytes="8m", targetPartitionBytes="64m")
    (part,) = planned(reader)
    begun = iter(reader.read(part))
    found = next(begun).num_rows
    fixtures.kill_broker(place)
    assert found + sum(batch.num_rows for batch in begun) == VALUES * 9 // 10
    assert [letter["value"] for letter in dead(place, "killed", "value")] == [b"?%d" % n for n in range(3, VALUES, 10)]


def test_columns_that_come_later_are_no_dead_letters(place: Path, api: LedgerStore) -> None:
    api.ledger("grows").append(pa.table({"value": pa.array([1], pa.int64())}))
    given = {"path": "grows", "store": str(place), "startingPosition": "earliest", "deadLetterLedger": "columns"}
    source = LedgerSource(given, "0.1.0")
    schema = source.schema()
    later = LedgerSource({"path": "grows", "store": str(place), "mergeSchema": "true"}, "0.1.0")
    writer = later.batch_writer(StructType().add("value", "long").add("more", "string"), overwrite=False)
    writer.commit([writer.write(iter([pa.record_batch({"value": pa.array([2], pa.int64()), "more": ["x"]})]))])
    reader = LedgerSource(given, "0.1.0").stream_reader(schema)
    assert values(reader, planned(reader)) == [1, 2]
    assert api.ledger("columns").describe().rows == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rescuedDataColumn": "r"}, "exclude each other"),
        ({"deadLetterLedger": "clicks"}, "which the query itself reads"),
        ({"deadLetterLedger": "a//b"}, "'deadLetterLedger'"),
        ({"ackMode": "explicit", "subscription": "s"}, "would never acknowledge a dead letter"),
    ],
)
def test_what_makes_no_sense_is_refused(place: Path, api: LedgerStore, options: dict[str, str], said: str) -> None:
    with pytest.raises(Refused, match=said):
        stream(place, "sense", **options)


def test_a_ledger_that_cannot_tell_duplicates_is_refused(place: Path, api: LedgerStore) -> None:
    api.create("plain")
    with pytest.raises(Refused, match="without de-duplication"):
        planned(stream(place, "plain"))
    api.create("rows", deduplication=True)
    api.ledger("rows").append(pa.table({"n": [1]}))
    with pytest.raises(LedgerError, match="has columns"):
        planned(stream(place, "rows"))
