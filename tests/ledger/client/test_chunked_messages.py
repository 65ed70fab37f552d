"""Goal: a message that is too large for an entry arrives whole, once, or fails. Method: a real broker, small chunks.

The third entry of a producer fails before it is sent, or is damaged on its way, as the tests need it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.client.message_producer import MessageProducer
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.message.batch_decoder import ChunkAssembler, Message, decode_messages
from pyspark_ledger.ledger.message.entry import ParsedEntry, parse_entry
from pyspark_ledger.ledger.position import MessageId, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.reader import iter_frames

HOUR_MS = 3_600_000
CHUNK = 1000
NOISE = random.Random(3).randbytes(5 * CHUNK + 1)


def entries(ledger: Ledger) -> list[tuple[Position, ParsedEntry]]:
    log = ledger.end()
    request = ReadRequest(ledger.name, PositionRange(log.start, log.end), max_block_bytes=1 << 20)
    return [
        (Position(block.ledger_id, entry_id), parse_entry(bytes(frame), "entry"))
        for block in ledger.client.read_blocks(request)
        for entry_id, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries)
    ]


def messages(ledger: Ledger) -> list[tuple[Position, Message]]:
    """The messages that a reader gets, each with the position of its entry or of its last chunk."""
    assembler = ChunkAssembler()
    wholes = [(position, assembler.add(entry, "entry")) for position, entry in entries(ledger)]
    return [
        (position, message) for position, whole in wholes if whole is not None for message in decode_messages(whole, "")
    ]


def values(ledger: Ledger) -> list[bytes]:
    return [bytes(message.value or b"") for _, message in messages(ledger)]


def fail_third(
    producer: MessageProducer, monkeypatch: pytest.MonkeyPatch, fail: Callable[[list[Buffer]], list[Buffer]]
) -> None:
    """Make the producer's third entry pass through `fail`."""
    append, sent = producer._pipeline.append, [0]

    def appended(*entry: Buffer) -> Future[Position]:
        sent[0] += 1
        return append(*(fail(list(entry)) if sent[0] == 3 else entry))

    monkeypatch.setattr(producer._pipeline, "append", appended)


def killed(_: list[Buffer]) -> list[Buffer]:
    raise Unavailable("killed")


def damaged(entry: list[Buffer]) -> list[Buffer]:
    return [*entry[:-1], bytes(len(memoryview(entry[-1])))]


@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
def test_all_of_a_large_message_arrives_in_order(store: LedgerStore, compression: str) -> None:
    log = store.ledger("log")
    with log.producer(
        "p", compression=compression, chunk_max_bytes=CHUNK, batching_max_publish_delay_ms=HOUR_MS
    ) as producer:
        sent = [
            producer.send(b"before"),
            producer.send(NOISE, key="k", properties={"a": "ü"}, event_time_ms=5, ordering_key=b"\0"),
            producer.send(b"between"),
            producer.send(NOISE[:-1], key=b"\xff", sequence_id=70),
            producer.send(b"after"),
        ]
        assert producer.last_sequence_id == 71
    found = messages(log)
    assert [bytes(message.value or b"") for _, message in found] == [b"before", NOISE, b"between", NOISE[:-1], b"after"]
    assert [future.result() for future in sent] == [MessageId(at.ledger_id, at.entry_id) for at, _ in found]
    assert [message.sequence_id for _, message in found] == [0, 1, 2, 70, 71]
    (_, first), (_, second) = found[1], found[3]
    assert (first.key, first.properties, first.event_time, first.ordering_key) == ("k", {"a": "ü"}, 5, b"\0")
    assert second.key_bytes == b"\xff"
    chunks = [entry.metadata for _, entry in entries(log) if entry.metadata.num_chunks_from_msg > 1]
    assert len(chunks) >= 11
    assert {(chunk.uuid, chunk.sequence_id) for chunk in chunks} == {("p-1", 1), ("p-70", 70)}
    for chunk in chunks[: chunks[0].num_chunks_from_msg]:
        assert (chunk.partition_key, chunk.event_time, chunk.ordering_key) == ("k", 5, b"\0")
        assert (chunk.uncompressed_size, chunk.properties[0].value) == (len(NOISE), "ü")


def test_message_larger_than_a_block_is_divided_without_an_option(store: LedgerStore) -> None:
    store.client.ask(CreateLedger("log", block_bytes=5 << 20))
    log = store.ledger("log")
    value = NOISE * 2200
    with log.producer("p", max_pending_bytes=1) as producer:
        assert producer.send(value).result(60).batch_index == -1
    assert values(log) == [value]
    assert len(entries(log)) == 3


def test_message_of_the_limit_is_one_entry_and_one_byte_more_is_two(store: LedgerStore) -> None:
    log = store.ledger("log")
    with log.producer("p", chunk_max_bytes=CHUNK, batching_max_publish_delay_ms=0) as producer:
        for size in (CHUNK, CHUNK + 1):
            producer.send(NOISE[:size])
    assert [len(entry.payload) for _, entry in entries(log)] == [CHUNK, CHUNK, 1]


def test_a_column_with_a_value_above_the_chunk_size_is_refused_whole(store: LedgerStore) -> None:
    log = store.ledger("log")
    with log.producer("p", chunk_max_bytes=CHUNK) as producer:
        with pytest.raises(Refused, match=r"a value of the column has 5001 bytes, .* is 1000.*with `send`"):
            producer.send_column(pa.array([b"small", NOISE]))
        producer.send_column(pa.array([b"small", NOISE[:CHUNK]]))
    assert values(log) == [b"small", NOISE[:CHUNK]]


@pytest.mark.parametrize(("fail", "error"), [(killed, Unavailable), (damaged, Corrupt)])
def test_a_chunk_that_fails_fails_its_message(
    store: LedgerStore,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[list[Buffer]], list[Buffer]],
    error: type[LedgerError],
) -> None:
    log = store.ledger("log")
    producer = log.producer("p", chunk_max_bytes=CHUNK)
    fail_third(producer, monkeypatch, fail)
    with pytest.raises(error):
        producer.send(NOISE).result(60)
    if fail is damaged:
        with pytest.raises(LedgerError):
            producer.send(b"behind").result(60)
        with pytest.raises(LedgerError):
            producer.close()
    else:
        producer.close()
    assert values(log) == []
    assert len(entries(log)) == 2


def test_message_cut_off_and_sent_again_is_delivered_once(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log = store.create("once", deduplication=True)
    with log.producer("p", chunk_max_bytes=CHUNK) as first:
        first.send(b"before").result(60)
        fail_third(first, monkeypatch, killed)
        with pytest.raises(Unavailable, match="killed"):
            first.send(NOISE, sequence_id=1).result(60)
    for attempt in range(2):
        with log.producer("p", chunk_max_bytes=CHUNK + attempt) as again:
            assert again.last_sequence_id == attempt
            sent = [again.send(b"before", sequence_id=0), again.send(NOISE, sequence_id=1)]
        assert [one.result().is_duplicate for one in sent] == [True, bool(attempt)]
        assert values(log) == [b"before", NOISE]
    assert len(entries(log)) == 1 + 2 + 6


def test_large_message_whose_id_another_producer_used_fails(store: LedgerStore) -> None:
    log = store.create("once", deduplication=True)
    with log.producer("p", chunk_max_bytes=CHUNK) as late, log.producer("p") as other:
        other.send(b"other").result(60)
        with pytest.raises(Refused, match="from another producer of that name"):
            late.send(NOISE).result(60)
    assert values(log) == [b"other"]
