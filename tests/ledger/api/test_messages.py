"""Goal: Python reads messages with all their columns, as Spark does. Method: a broker, and the connector's decoder."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_ledger.connector.rows.message_rows import PulsarRows
from pyspark_ledger.connector.rows.shape import RowOptions, row_shape
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import Unsupported
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.rows.message_groups import MESSAGES
from pyspark_ledger.ledger.rows.metadata_columns import Topic
from tests.ledger.message.test_fixtures_pulsar import walk
from tests.rigs import entry as entries
from tests.rigs.bucket import kafka_batch

TOPICS = ("01-plain", "02-lz4", "10-tombstones-delayed", "14-java-mixed")


def filled(store: LedgerStore, log: list[bytes], name: str = "clicks") -> Ledger:
    ledger = store.create(name)
    with store.client.producer(ledger.name) as producer:
        for entry in log:
            producer.append(entry)
    return ledger


@pytest.mark.parametrize("topic", TOPICS)
def test_messages_have_the_columns_of_a_read_by_spark(store: LedgerStore, topic: str) -> None:
    log = [data for _, _, data in walk(topic)]
    ledger = filled(store, log)
    at = ledger.end().start
    shape = row_shape(None, None, RowOptions(include_metadata=True), ledger.name)
    placed = [(Position(at.ledger_id, number), parse_entry(data, topic)) for number, data in enumerate(log)]
    wanted = pa.Table.from_batches(PulsarRows(Topic.of(ledger.name), shape).batches(placed), shape.schema)
    found = ledger.read()
    assert found.schema == MESSAGES
    assert wanted.num_rows > 0
    assert found.to_pylist() == wanted.to_pylist()


def test_an_empty_ledger_has_the_columns_of_messages(store: LedgerStore) -> None:
    assert store.create("empty").read().schema == MESSAGES


def test_a_message_has_what_its_producer_gave(store: LedgerStore) -> None:
    with store.ledger("clicks").producer("p") as producer:
        producer.send(b"a", key="k", properties={"by": "web"}, event_time_ms=5).result()
        producer.send(None, key="k").result()
    first, second = store.ledger("clicks").read().to_pylist()
    assert (first["value"], first["__key"], first["__messageProperties"]) == (b"a", "k", [("by", "web")])
    assert first["__eventTime"].timestamp() == 0.005
    assert (second["value"], second["__key"], second["__eventTime"]) == (None, "k", None)
    assert first["__position"] == {"ledgerId": 0, "entryId": 0, "batchIndex": -1}


def test_entries_that_kop_stored_are_unsupported(store: LedgerStore) -> None:
    kafka = kafka_batch(0, num_messages_in_batch=3)
    ledger = filled(store, [kafka])
    with pytest.raises(Unsupported, match=r"entry 0:0 .*stored by KoP with entry.format=kafka"):
        ledger.read()
    rows = store.ledger("rows")
    rows.append([{"id": 1}])
    with store.client.producer(rows.name) as producer:
        producer.append(kafka)
    with pytest.raises(Unsupported, match=r"stored by KoP with entry.format=kafka"):
        rows.read()


def test_acknowledged_messages_of_a_batch_are_left_out(store: LedgerStore) -> None:
    ledger = store.ledger("clicks")
    with ledger.producer("p", batching_max_publish_delay_ms=1000) as producer:
        for number in range(5):
            producer.send(b"%d" % number)
        producer.flush()
        producer.send(b"alone").result()
    billing = ledger.cursor("billing")
    billing.acknowledge_rows([(0, 0, 1), (0, 0, 3)])
    rows, _ = billing.read()
    assert rows["value"].to_pylist() == [b"0", b"2", b"4", b"alone"]
    assert [place["batchIndex"] for place in rows["__position"].to_pylist()] == [0, 2, 4, -1]
    again, done = billing.replay([Position(0, 0)])
    assert (again["value"].to_pylist(), done) == ([b"0", b"2", b"4"], set())


def chunk(number: int, message: str = "m") -> bytes:
    return entries.chunk(b"%d" % number * 6, number, 3, message, 18, "p")


def test_a_chunked_message_is_one_row_at_its_last_chunk(store: LedgerStore) -> None:
    log = [chunk(0), entries.entry(b"x"), chunk(1), *[entries.entry(b"y")] * 40, chunk(2), chunk(0, "unfinished")]
    ledger = filled(store, log)
    rows = ledger.read()
    assert rows["value"].to_pylist() == [b"x", *[b"y"] * 40, b"000000111111222222"]
    assert rows["__position"][-1].as_py() == {"ledgerId": 0, "entryId": 43, "batchIndex": -1}
    late = ledger.read(Position(0, 10))
    assert late["value"][-1].as_py() == b"000000111111222222", "the first chunks are before the range"
    assert ledger.read(Position(0, 0), Position(0, 43))["value"].to_pylist() == [b"x", *[b"y"] * 40]


def test_a_message_is_read_until_its_last_chunk_is_acknowledged(store: LedgerStore) -> None:
    ledger = filled(store, [chunk(0), chunk(1), chunk(2), entries.entry(b"x")])
    reader = ledger.cursor("reader")
    assert reader.acknowledge_rows([(0, 0), (0, 1)]).backlog_rows == 2
    rows, _ = reader.read()
    assert rows["value"].to_pylist() == [b"000000111111222222", b"x"]
    given = [(place["ledgerId"], place["entryId"]) for place in rows["__position"].to_pylist()]
    assert reader.acknowledge_rows(given).backlog_rows == 0
    assert reader.state().next_position == ledger.end().end
