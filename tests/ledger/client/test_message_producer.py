"""Goal: messages gather into batches and every one of them hears where it is, or why not. Method: a real broker; the
delay is an hour where a batch must not be sent by time."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client import message_producer
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.message.batch_decoder import Message, decode_messages
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.position import MessageId, PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.reader import iter_frames

HOUR_MS = 3_600_000


def entries(ledger: Ledger) -> list[list[Message]]:
    """The messages of a ledger, entry by entry."""
    log = ledger.end()
    request = ReadRequest(ledger.name, PositionRange(log.start, log.end), max_block_bytes=1 << 20)
    found = []
    for block in ledger.client.read_blocks(request):
        for _, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries):
            kept = bytes(frame)
            found.append(decode_messages(parse_entry(kept, "entry"), "entry"))
    return found


def values(ledger: Ledger) -> list[list[bytes | None]]:
    return [[None if m.value is None else bytes(m.value) for m in messages] for messages in entries(ledger)]


def test_messages_gather_until_a_batch_is_full(store: LedgerStore) -> None:
    log = store.ledger("log")
    with log.producer(
        "p", batching_max_messages=3, batching_max_bytes=10, batching_max_publish_delay_ms=HOUR_MS
    ) as producer:
        sent = [producer.send(value) for value in (b"1", b"2", b"3", b"55555", b"4444", b"666666", b"x" * 12, None)]
        assert not sent[-1].done()
        assert producer.last_sequence_id == 7
    assert values(log) == [[b"1", b"2", b"3"], [b"55555", b"4444"], [b"666666"], [b"x" * 12], [None]]
    ids = [future.result() for future in sent]
    assert ids == sorted(ids)
    assert [message.batch_index for message in ids] == [0, 1, 2, 0, 1, -1, -1, -1]
    assert [message.sequence_id for batch in entries(log) for message in batch] == list(range(8))
    assert str(MessageId(3, 17, 2)) == "3:17:-1:2"


def test_ordinary_and_other_messages_share_a_batch(store: LedgerStore) -> None:
    log = store.ledger("log")
    with log.producer("p", batching_max_messages=4, batching_max_publish_delay_ms=HOUR_MS) as producer:
        producer.send(b"0", key="k" * 70_000)  # too long a key to be ordinary
        producer.send(b"1")
        for number in range(2, 6):
            producer.send(b"%d" % number, key=f"{number}")
        other = producer.send(b"6", properties={"a": "b"}, sequence_id=9)
        producer.send(b"7", key="ü")
        last = producer.send(b"8")
    found = entries(log)
    assert [[message.value for message in batch] for batch in found] == [
        [b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"], [b"8"],
    ]  # fmt: skip
    assert [message.sequence_id for batch in found for message in batch] == [0, 1, 2, 3, 4, 5, 9, 10, 11]
    assert [message.key for batch in found for message in batch][1:] == [None, "2", "3", "4", "5", None, "ü", None]
    assert (other.result().batch_index, last.result().batch_index) == (2, -1)


def test_message_waits_at_most_the_batching_delay_and_goes_alone_without(store: LedgerStore) -> None:
    log = store.ledger("log")
    with log.producer("p", batching_max_publish_delay_ms=1) as producer:
        first = producer.send(b"a").result(60)
    with log.producer("p", batching_max_publish_delay_ms=0) as producer:
        alone = [producer.send(b"b"), producer.send(b"c")]
    assert [first.batch_index, *(future.result().batch_index for future in alone)] == [-1, -1, -1]


@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
def test_all_of_a_message_arrives(store: LedgerStore, compression: str) -> None:
    log = store.ledger("log")
    with log.producer("p", compression=compression, batching_max_publish_delay_ms=HOUR_MS) as producer:
        producer.send(b"v", key="k", properties={"a": "ü"}, event_time_ms=5, ordering_key=b"\\0")
        producer.send(b"", key=b"\\xff")
        producer.flush()
        producer.send(None, key="gone", sequence_id=70)
    (first, second), (last,) = entries(log)
    assert (first.key, first.properties, first.event_time, first.ordering_key) == ("k", {"a": "ü"}, 5, b"\\0")
    assert (second.key_bytes, second.value) == (b"\\xff", b"")
    assert (last.key, last.value, last.sequence_id) == ("gone", None, 70)
    assert {message.producer for message in (first, second, last)} == {"p"}


def test_a_column_is_sent_in_batches_behind_what_had_gathered(store: LedgerStore) -> None:
    log = store.ledger("log")
    with log.producer("p", batching_max_messages=40, batching_max_publish_delay_ms=HOUR_MS) as producer:
        before = producer.send(b"before")
        last = producer.send_column(
            pa.array([f"{i}" for i in range(100)]), keys=pa.array([f"k{i}" for i in range(100)])
        ).result(60)
        after = producer.send(b"after")
    found = entries(log)
    assert [len(batch) for batch in found] == [1, 40, 40, 20, 1]
    assert before.result() < last < after.result()
    assert last.batch_index == 19
    flat = [message for batch in found for message in batch]
    assert [message.sequence_id for message in flat] == list(range(102))
    assert [(m.key, bytes(m.value or b"")) for m in flat[1:-1]] == [(f"k{i}", f"{i}".encode()) for i in range(100)]


def test_many_threads_lose_and_double_nothing(store: LedgerStore) -> None:
    log = store.ledger("log")
    with log.producer("p", batching_max_messages=7) as producer:

        def send(thread: int) -> None:
            for number in range(50):
                producer.send(f"{thread}:{number}".encode())

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [value.decode().split(":") for batch in values(log) for value in batch if value is not None]
    for thread in range(4):
        assert [int(number) for sender, number in found if sender == str(thread)] == list(range(50))


def test_what_is_refused_is_refused_alone(store: LedgerStore) -> None:
    store.client.ask(CreateLedger("log", block_bytes=5 << 20))
    log = store.ledger("log")
    with log.producer("p", batching_max_publish_delay_ms=HOUR_MS) as producer:
        kept = producer.send(b"a")
        with pytest.raises(Refused, match=r"key and properties take 6\d+ bytes of each entry"):
            producer.send(b"b", properties={"a": "x" * (6 << 20)})
        with pytest.raises(Refused, match=r"readers assemble at most 134217728 from chunks"):
            producer.send(bytes((128 << 20) + 1))
        with pytest.raises(Refused, match="a message of the column takes up to"):
            producer.send_column(pa.array([b"y", b"x" * (6 << 20)]))
        with pytest.raises(Refused, match="sequence id 0 was given to the producer 'p', its last is 0"):
            producer.send(b"b", sequence_id=0)
        other = producer.send(b"c")
    assert [kept.result().batch_index, other.result().batch_index] == [0, 1]
    assert values(log) == [[b"a", b"c"]]
    with pytest.raises(Unavailable, match="is closed"):
        producer.send(b"late")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"event_time_ms": 1.5}, "event time is 1.5, expected milliseconds"),
        ({"event_time_ms": 2**63}, "event time is 9223372036854775808"),
        ({"event_time_ms": None}, "event time is None"),
        ({"sequence_id": 2**64}, "sequence id is 18446744073709551616"),
        ({"key": "\ud800"}, r"key '\\ud800' is not valid Unicode"),
        ({"properties": {"a": "\ud800"}}, "property .* is not valid Unicode"),
        ({"properties": "a"}, "properties are str"),
    ],
)
def test_message_that_protobuf_cannot_encode_is_refused_alone(
    store: LedgerStore, given: dict[str, Any], said: str
) -> None:
    with store.ledger("log").producer("p") as producer:
        kept = producer.send(b"a")
        with pytest.raises(Refused, match=said):
            producer.send(b"b", **given)
        other = producer.send(b"c")
        assert kept.result(60).ledger_id == other.result(60).ledger_id
    assert [value for batch in values(store.ledger("log")) for value in batch] == [b"a", b"c"]


def test_a_batch_that_cannot_be_encoded_is_told_to_its_messages(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_producer, "require_message", lambda *_: 1)  # so that the encoder is what refuses
    with store.ledger("log").producer("p") as producer:
        sent = producer.send(b"b", event_time_ms=1.5)  # type: ignore[arg-type]  # as a user may
        with pytest.raises(Refused, match="a batch of 1 messages of 'p' cannot be sent: TypeError"):
            sent.result(60)
        assert producer.send(b"c").result(60).ledger_id >= 0


def test_a_batch_never_outgrows_an_entry(store: LedgerStore) -> None:
    store.client.ask(CreateLedger("log", block_bytes=5 << 20))
    log = store.ledger("log")
    with log.producer("p", batching_max_bytes=1 << 30, batching_max_publish_delay_ms=HOUR_MS) as producer:
        for _ in range(3):
            producer.send(b"x" * (2 << 20))
    assert [len(batch) for batch in values(log)] == [2, 1]


def test_messages_of_a_batch_that_cannot_be_sent_all_hear_of_it(store: LedgerStore) -> None:
    log = store.ledger("log")
    producer = log.producer("p", batching_max_messages=2, batching_max_publish_delay_ms=HOUR_MS)
    producer.send(b"a")
    producer.send(b"b").result(60)
    store.delete("log")
    sent = [producer.send(b"c"), producer.send(b"d")]
    for future in sent:
        with pytest.raises(LedgerError):
            future.result(60)
    with pytest.raises(LedgerError):
        producer.close()


def test_messages_sent_again_are_known_and_a_name_that_two_use_is_told(store: LedgerStore) -> None:
    log = store.create("once", deduplication=True)
    with log.producer("p", batching_max_publish_delay_ms=HOUR_MS) as producer:
        sent = [producer.send(b"a"), producer.send(b"b")]
    assert [one.result().is_duplicate for one in sent] == [False, False]
    first, second = log.producer("p"), log.producer("p")
    assert first.last_sequence_id == 1
    again = [first.send(b"a", sequence_id=0), first.send(b"b", sequence_id=1), first.send(b"c")]
    assert [one.result(60).is_duplicate for one in again] == [True, True, False]
    for future in (second.send(b"lost"), second.send_column(pa.array([b"too"]))):
        if future.exception(60) is not None:
            break
    with pytest.raises(Refused, match="from another producer of that name"):
        future.result(60)
    first.close()
    second.close()
    assert [value for batch in values(log) for value in batch][:3] == [b"a", b"b", b"c"]


def test_settings_out_of_range_and_ledgers_of_rows_are_refused(store: LedgerStore) -> None:
    log = store.ledger("rows")
    log.append([{"id": 1}])
    with pytest.raises(Refused, match="has rows with columns"):
        log.producer()
    with pytest.raises(Refused, match="batching_max_messages is 0, expected a whole number of at least 1"):
        store.ledger("log").producer(batching_max_messages=0)
    for compression in ("gzip", None):
        with pytest.raises(Refused, match=f"compression {compression!r} is not known"):
            store.ledger("log").producer(compression=compression)  # type: ignore[arg-type]  # as a user may
    for value in (0, -5, "1", 1.5):
        with pytest.raises(Refused, match=f"max_pending_bytes is {value!r}, expected a whole number of at least 1"):
            store.ledger("log").producer(max_pending_bytes=value)  # type: ignore[arg-type]  # as a user may
        with pytest.raises(Refused, match=f"chunk_max_bytes is {value!r}, expected a whole number of at least 1"):
            store.ledger("log").producer(chunk_max_bytes=value)  # type: ignore[arg-type]  # as a user may
