"""Goal: chunks are those of Pulsar's Java client. Method: real chunked messages are assembled and divided again.

Everything else goes through the reader's assembler, at sizes around both limits.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.batch_decoder import ChunkAssembler, decode_messages
from pyspark_ledger.ledger.message.compression import NONE
from pyspark_ledger.ledger.message.entry import ParsedEntry, entry_rows, parse_entry
from pyspark_ledger.ledger.message.outgoing import chunk_encoder
from pyspark_ledger.ledger.message.outgoing.chunk_encoder import encode_chunks
from pyspark_ledger.ledger.message.outgoing.message import OutgoingMessage, ProducerMetadata
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from tests.ledger.message.test_batch_encoder import COMPRESSIONS, PUBLISHED, outgoing, real_entries

LARGE = 1 << 30


def divided(
    message: OutgoingMessage, *, kind: int = NONE, entry_max: int = LARGE, chunk_max: int = LARGE
) -> list[bytes]:
    envelope = ProducerMetadata("p", kind, b"v")
    entries = encode_chunks(envelope, message, PUBLISHED, entry_bytes_max=entry_max, chunk_bytes_max=chunk_max)
    return [b"".join(map(memoryview, entry)) for entry in entries]


def assembled(entries: list[bytes]) -> OutgoingMessage:
    """Return the one message of these entries, which only the last one completes."""
    assembler = ChunkAssembler()
    *before, last = (assembler.add(parse_entry(entry, "entry"), "entry") for entry in entries)
    assert before == [None] * len(before)
    assert last is not None
    (message,) = decode_messages(last, "entry")
    assert (message.producer, message.publish_time, message.schema_version) == ("p", PUBLISHED, b"v")
    return outgoing(message)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def real_messages(topic: str) -> list[list[tuple[bytes, ParsedEntry]]]:
    """Return the chunks of each message of a topic, with their bytes; without transactions and encryption."""
    found: dict[tuple[str, str], list[tuple[bytes, ParsedEntry]]] = defaultdict(list)
    for raw, entry in real_entries(topic):
        metadata = entry.metadata
        if metadata.num_chunks_from_msg > 1 and not metadata.HasField("txnid_most_bits"):
            found[metadata.producer_name, metadata.uuid].append((raw, entry))
    return [chunks for chunks in found.values() if len(chunks) == chunks[0][1].metadata.num_chunks_from_msg]


def fields_around_codec(metadata: MessageMetadata) -> MessageMetadata:
    """Return the metadata without the numbers that depend on how well a codec compresses."""
    rest = MessageMetadata()
    rest.CopyFrom(metadata)
    for field in ("chunk_id", "num_chunks_from_msg", "total_chunk_msg_size"):
        assert rest.HasField(field)
        rest.ClearField(field)
    return rest


@pytest.mark.parametrize("topic", ["19-chunks-small", "21-txn-mixed"])
def test_real_chunks_of_the_java_client_are_built_again(topic: str) -> None:
    same = compressed = 0
    for chunks in real_messages(topic):
        assembler = ChunkAssembler()
        *_, whole = (assembler.add(entry, topic) for _, entry in chunks)
        assert whole is not None
        (message,) = decode_messages(whole, topic)
        metadata = whole.metadata
        envelope = ProducerMetadata(metadata.producer_name, metadata.compression)
        limit = len(chunks[0][1].payload)
        entries = encode_chunks(
            envelope, outgoing(message), metadata.publish_time, entry_bytes_max=LARGE, chunk_bytes_max=limit
        )
        built = [b"".join(map(memoryview, entry)) for entry in entries]
        if metadata.compression == NONE:
            assert built == [raw for raw, _ in chunks]
            same += 1
        else:
            ours = parse_entry(built[0], topic).metadata
            assert fields_around_codec(ours) == fields_around_codec(chunks[0][1].metadata)
            assert ours.total_chunk_msg_size == sum(len(parse_entry(entry, topic).payload) for entry in built)
            compressed += 1
    assert same > 5
    assert compressed > 3 or topic == "21-txn-mixed"


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


@settings(deadline=None)
@given(
    st.integers(0, 5000), st.sampled_from(COMPRESSIONS), st.integers(400, 900), st.integers(1, 900),
    st.none() | TEXT | st.binary(max_size=20), st.dictionaries(TEXT, TEXT, max_size=2),
)  # fmt: skip
@example(0, NONE, 400, 1, None, {})
@pytest.mark.thorough
def test_a_divided_message_is_assembled(
    size: int, kind: int, entry_max: int, chunk_max: int, key: str | bytes | None, properties: dict[str, str]
) -> None:
    message = OutgoingMessage(noise(size), 2**63 - 1, key, properties, 5, b"o")
    entries = divided(message, kind=kind, entry_max=entry_max, chunk_max=chunk_max)
    assert assembled(entries) == message
    parsed = [parse_entry(entry, "entry") for entry in entries]
    assert [entry_rows(entry.metadata) for entry in parsed] == [0] * (len(entries) - 1) + [1]
    assert all(len(entry) <= entry_max for entry in entries)
    assert all(len(entry.payload) <= chunk_max for entry in parsed)
    for number, entry in enumerate(parsed if len(parsed) > 1 else []):
        metadata = entry.metadata
        assert (metadata.uuid, metadata.chunk_id) == (f"p-{2**63 - 1}", number)
        assert not metadata.HasField("num_messages_in_batch")


def test_message_of_the_limit_is_one_entry_and_one_byte_more_is_two() -> None:
    at, above = (OutgoingMessage(b"x" * size, 7, "key") for size in (500, 501))
    assert [len(divided(message, chunk_max=500)) for message in (at, above)] == [1, 2]
    (whole,) = divided(at)
    assert not parse_entry(whole, "entry").metadata.HasField("uuid")
    assert divided(at, entry_max=len(whole)) == [whole]
    assert len(divided(at, entry_max=len(whole) - 1)) == 2


def test_what_is_compressed_below_the_limit_is_not_divided() -> None:
    message = OutgoingMessage(b"x" * 100_000, 7)
    for kind in COMPRESSIONS[1:]:
        assert assembled(divided(message, kind=kind, entry_max=9000, chunk_max=9000)) == message
        assert len(divided(message, kind=kind, entry_max=9000, chunk_max=9000)) == 1
    assert len(divided(message, entry_max=9000, chunk_max=9000)) > 11


def test_metadata_that_leave_no_room_are_refused() -> None:
    for value in (b"x" * 2000, None):
        message = OutgoingMessage(value, 0, properties={"a": "b" * 1000})
        with pytest.raises(Refused, match=r"key and properties take 1\d\d\d bytes of each entry, .* holds at most 900"):
            divided(message, entry_max=900)


@pytest.mark.parametrize("kind", [NONE, COMPRESSIONS[1]])
def test_message_that_no_reader_assembles_is_refused(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_encoder, "UNCOMPRESSED_BYTES_MAX", 1000)
    divided(OutgoingMessage(noise(900), 0), kind=kind, chunk_max=100)
    with pytest.raises(Refused, match="a message has 1001 bytes, readers assemble at most 1000 from chunks"):
        divided(OutgoingMessage(b"x" * 1001, 0), kind=kind, chunk_max=100)
    if kind != NONE:  # noise grows
        with pytest.raises(Refused, match=r"a message has 10\d\d bytes, readers assemble at most 1000 from chunks"):
            divided(OutgoingMessage(noise(1000), 0), kind=kind, chunk_max=100)
