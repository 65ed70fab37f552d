"""Goal: the messages of an entry, exactly, or a refusal. Method: entries built by hand in every shape, and damage."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata
from pyspark_ledger.ledger.message.batch_columns.columns import columns_of, even_columns
from pyspark_ledger.ledger.message.batch_decoder import ChunkAssembler, Message, decode_messages
from pyspark_ledger.ledger.message.compression import LZ4, NAMES, NONE, SNAPPY, ZLIB, ZSTD, compress
from pyspark_ledger.ledger.message.entry import BrokerStamp, ParsedEntry, parse_message
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata, SingleMessageMetadata
from tests.rigs import entry as entries

WHERE = "entry 3:17"
ALL = (NONE, LZ4, ZLIB, ZSTD, SNAPPY)


def metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=40, publish_time=1000, **fields)


@dataclass
class Item:
    value: bytes = b""
    fields: dict[str, Any] = field(default_factory=dict)

    def packed(self) -> bytes:
        return entries.item(self.value, **self.fields)


def batch(*items: Item, kind: int = NONE, stamp: BrokerStamp | None = None, **fields: Any) -> ParsedEntry:
    plain = b"".join(item.packed() for item in items)
    fields = {"num_messages_in_batch": len(items), "uncompressed_size": len(plain), "compression": kind} | fields
    return ParsedEntry(stamp, metadata(**fields), memoryview(compress(kind, plain)))


def values(messages: list[Message]) -> list[bytes | None]:
    return [None if message.value is None else bytes(message.value) for message in messages]


ITEM = st.builds(
    Item,
    st.binary(max_size=30),
    st.fixed_dictionaries(
        {},
        optional={
            "partition_key": st.text(max_size=5),
            "ordering_key": st.binary(max_size=5),
            "event_time": st.integers(0, 2**63),
            "sequence_id": st.integers(0, 2**64 - 1),
            "null_value": st.booleans(),
            "compacted_out": st.booleans(),
        },
    ),
)


@settings(deadline=None)
@given(st.lists(ITEM, min_size=1, max_size=6), st.sampled_from(ALL))
def test_a_batch_gives_its_items(items: list[Item], kind: int) -> None:
    kept = [(number, item) for number, item in enumerate(items) if not item.fields.get("compacted_out")]
    found = decode_messages(batch(*items, kind=kind), WHERE)
    assert [message.batch_index for message in found] == [number for number, _ in kept]
    for message, (_, item) in zip(found, kept, strict=True):
        said = item.fields
        assert message.value == (None if said.get("null_value") else item.value)
        assert message.key == said.get("partition_key")
        assert message.ordering_key == said.get("ordering_key")
        assert message.event_time == said.get("event_time", 0)
        assert message.sequence_id == said.get("sequence_id", 40)
        assert (message.producer, message.publish_time) == ("p", 1000)


@pytest.mark.parametrize("kind", ALL, ids=NAMES)
def test_a_single_message(kind: int) -> None:
    said = metadata(compression=kind, uncompressed_size=600, partition_key="k", ordering_key=b"o", event_time=9)
    said.properties.add(key="a", value="1")
    said.properties.add(key="a", value="2")
    said.schema_version = b"\0" * 8
    parsed = ParsedEntry(BrokerStamp(1234, 8), said, memoryview(compress(kind, b"abc" * 200)))
    (message,) = decode_messages(parsed, WHERE)
    assert values([message]) == [b"abc" * 200]
    assert (message.batch_index, message.key, message.key_bytes) == (-1, "k", b"k")
    assert (message.ordering_key, message.event_time, message.sequence_id) == (b"o", 9, 40)
    assert (message.properties, message.schema_version) == ({"a": "2"}, b"\0" * 8)
    assert (message.broker_time, message.index) == (1234, 7)


def test_a_field_that_says_one_makes_a_batch() -> None:
    assert decode_messages(batch(Item(b"x")), WHERE)[0].batch_index == 0


def test_an_uncompressed_value_is_a_view_of_the_entry() -> None:
    payload = bytearray(b"abc")
    (message,) = decode_messages(ParsedEntry(None, metadata(), memoryview(payload)), WHERE)
    assert message.value is not None
    assert message.value.obj is payload


def test_null_is_not_empty() -> None:
    assert values(decode_messages(ParsedEntry(None, metadata(), memoryview(b"")), WHERE)) == [b""]
    assert values(decode_messages(ParsedEntry(None, metadata(null_value=True), memoryview(b"")), WHERE)) == [None]
    assert values(decode_messages(batch(Item(), Item(b"", {"null_value": True})), WHERE)) == [b"", None]


def test_an_item_without_a_key_has_not_the_keys_of_the_batch() -> None:
    parsed = batch(Item(b"x"), partition_key="of the batch", ordering_key=b"of the batch", event_time=7)
    parsed.metadata.properties.add(key="of", value="the batch")
    (message,) = decode_messages(parsed, WHERE)
    assert (message.key, message.ordering_key, message.properties, message.event_time) == (None, None, {}, 7)


def test_base64_keys_are_bytes() -> None:
    text = base64.b64encode(b"\xff\x00key").decode()
    item = Item(b"x", {"partition_key": text, "partition_key_b64_encoded": True})
    (message,) = decode_messages(batch(item), WHERE)
    assert (message.key, message.key_is_base64, message.key_bytes) == (text, True, b"\xff\x00key")
    (message,) = decode_messages(batch(Item(b"x", {"partition_key": "é"})), WHERE)
    assert message.key_bytes == "é".encode()
    assert decode_messages(batch(Item()), WHERE)[0].key_bytes is None
    for wrong in ("abc", "a!==", "é==="):
        item = Item(b"x", {"partition_key": wrong, "partition_key_b64_encoded": True})
        with pytest.raises(Corrupt, match="marked as base64"):
            _ = decode_messages(batch(item), WHERE)[0].key_bytes


def test_index_counts_back_from_the_last_message() -> None:
    items = [Item(b"a"), Item(b"b", {"compacted_out": True}), Item(b"c")]
    found = decode_messages(batch(*items, stamp=BrokerStamp(5, 103)), WHERE)
    assert [(m.batch_index, m.index, m.broker_time) for m in found] == [(0, 100, 5), (2, 102, 5)]
    assert decode_messages(batch(*items, stamp=BrokerStamp(5, 0)), WHERE)[0].index is None


def test_markers_hold_no_message() -> None:
    assert decode_messages(ParsedEntry(None, metadata(marker_type=21), memoryview(b"")), WHERE) == []
    assert decode_messages(ParsedEntry(None, metadata(marker_type=0), memoryview(b"x")), WHERE) == []


def test_encrypted_entries_are_refused_by_the_names_of_their_keys() -> None:
    said = metadata()
    said.encryption_keys.add(key="mine", value=b"wrapped")
    said.encryption_keys.add(key="yours", value=b"wrapped")
    with pytest.raises(Unsupported, match="entry 3:17 is encrypted with key 'mine', 'yours'") as refused:
        decode_messages(ParsedEntry(None, said, memoryview(b"cipher")), WHERE)
    assert "wrapped" not in str(refused.value)


def test_other_payloads_are_refused() -> None:
    with pytest.raises(Refused, match="entry 3:17 holds Arrow rows"):
        decode_messages(ParsedEntry(None, arrow_metadata("p", 1, 2, 3, 4), memoryview(b"")), WHERE)
    with pytest.raises(Unsupported, match="entry 3:17 is compressed by codec 7"):
        decode_messages(ParsedEntry(None, metadata(compression=7), memoryview(b"")), WHERE)
    with pytest.raises(Unsupported, match="entry 3:17 states 30 bytes before LZ4 compression, at most 29 are read"):
        decode_messages(batch(Item(b"x" * 24), kind=LZ4), WHERE, max_bytes=29)


@pytest.mark.parametrize("batched", [True, False])
def test_record_batches_of_kafka_are_unsupported_by_name(batched: bool) -> None:
    stated = metadata(**({"num_messages_in_batch": 3} if batched else {}))
    stated.properties.add(key="entry.format", value="kafka")
    parsed = ParsedEntry(None, stated, memoryview(bytes(61)))
    with pytest.raises(Unsupported, match=r"entry 3:17 was stored by KoP with entry.format=kafka"):
        decode_messages(parsed, WHERE)
    assert columns_of([parsed]) == (None, [False])
    assert even_columns([parsed]) is None


def test_other_values_of_the_property_are_messages() -> None:
    for found in ("pulsar", "mixed_kafka"):  # KoP states `kafka` also with entryFormat=mixed_kafka
        stated = metadata()
        stated.properties.add(key="entry.format", value=found)
        assert values(decode_messages(ParsedEntry(None, stated, memoryview(b"x")), WHERE)) == [b"x"]


def test_a_batch_that_disagrees_with_itself_is_corrupt() -> None:
    two = [Item(b"one"), Item(b"two")]
    size = len(batch(*two).payload)
    for count, told in (
        (1, f"end at byte {size // 2} of {size}"),
        (3, f"ends at byte {size}, message 2"),
        (0, "of 0"),
        (-1, "of -1"),
    ):
        with pytest.raises(Corrupt, match=f"{WHERE}.*{told}"):
            decode_messages(batch(*two, num_messages_in_batch=count), WHERE)
    whole = batch(*two)
    for cut in range(size):
        with pytest.raises(Corrupt, match=WHERE):
            decode_messages(ParsedEntry(None, whole.metadata, whole.payload[:cut]), WHERE)
    head = SingleMessageMetadata(payload_size=-1).SerializeToString()
    negative = memoryview(len(head).to_bytes(4, "big") + head)
    with pytest.raises(Corrupt, match="message 0 of 1 states -1 bytes"):
        decode_messages(ParsedEntry(None, metadata(num_messages_in_batch=1), negative), WHERE)


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(-2, 5))
def test_any_bytes_are_read_or_refused(data: bytes, count: int) -> None:
    parsed = ParsedEntry(None, metadata(num_messages_in_batch=count), memoryview(data))
    try:
        decode_messages(parsed, WHERE)
    except Corrupt as refused:
        assert WHERE in refused.message  # noqa: PT017  # most bytes are refused, some are not


@pytest.mark.parametrize("place", ["producer", "key", "property", "value", "key of an item"])
def test_a_text_that_is_no_utf8_is_corrupt(place: str) -> None:
    said = MessageMetadata(producer_name="p~" if place == "producer" else "p", sequence_id=1, publish_time=1)
    payload = b""
    if place == "key":
        said.partition_key = "k~"
    elif place in {"property", "value"}:
        said.properties.add(key="k~" if place == "property" else "k", value="v~" if place == "value" else "v")
    elif place == "key of an item":
        said.num_messages_in_batch = 1
        payload = Item(b"", {"partition_key": "k~"}).packed()
    damaged = MessageMetadata.SerializeToString(said).replace(b"~", b"\xff")
    with pytest.raises(Corrupt, match=WHERE):
        read_damaged(damaged, payload.replace(b"~", b"\xff"))


def read_damaged(head: bytes, payload: bytes) -> None:
    """A protobuf runtime refuses such metadata when it parses them, another runtime when it uses them."""
    parsed, _ = parse_message(MessageMetadata, memoryview(head), 0, len(head), WHERE)
    decode_messages(ParsedEntry(None, parsed, memoryview(payload)), WHERE)


def chunks(uuid: str, *parts: bytes, **fields: Any) -> list[ParsedEntry]:
    said = {"uuid": uuid, "num_chunks_from_msg": len(parts), "total_chunk_msg_size": sum(map(len, parts))} | fields
    return [
        ParsedEntry(BrokerStamp(number, number + 1), metadata(chunk_id=number, **said), memoryview(part))
        for number, part in enumerate(parts)
    ]


def assembled(assembler: ChunkAssembler, *entries: ParsedEntry) -> list[bytes | None]:
    found = [assembler.add(entry, WHERE) for entry in entries]
    return [value for whole in found if whole for value in values(decode_messages(whole, WHERE))]


def test_a_chunk_alone_is_not_delivered() -> None:
    with pytest.raises(Unsupported, match="entry 3:17 is chunk 1 of 2 of message 'u'"):
        decode_messages(chunks("u", b"a", b"b")[1], WHERE)


def test_chunks_make_a_message_where_the_last_one_stands() -> None:
    a, b = chunks("a", b"1", b"2", b"3"), chunks("b", b"x", b"y")
    assembler = ChunkAssembler()
    single = ParsedEntry(None, metadata(), memoryview(b"single"))
    assert assembled(assembler, a[0], b[0], a[1], single, b[1], a[2]) == [b"single", b"xy", b"123"]
    assert not assembler._parts
    whole = [assembler.add(entry, WHERE) for entry in a][-1]
    assert whole is not None
    assert whole.stamp == a[2].stamp


def test_compressed_chunks_are_joined_before_they_are_inflated() -> None:
    packed = compress(ZLIB, b"ledger" * 50)
    parts = chunks("u", packed[:9], packed[9:], compression=ZLIB, uncompressed_size=300)
    assert assembled(ChunkAssembler(), *parts) == [b"ledger" * 50]


def test_chunks_that_come_twice_or_never() -> None:
    a = chunks("a", b"1", b"2", b"3")
    assert assembled(ChunkAssembler(), a[0], a[1], a[1], a[0], a[1], a[2]) == [b"123"]
    assert assembled(ChunkAssembler(), a[0], a[2]) == []
    assert assembled(ChunkAssembler(), a[1], a[2]) == []
    assert assembled(ChunkAssembler(), a[0], a[1], a[0], a[2], *a) == [b"123"]


def test_chunks_of_two_producers_may_share_a_uuid() -> None:
    a, b = chunks("u", b"1", b"2"), chunks("u", b"x", b"y")
    for entry in b:
        entry.metadata.producer_name = "q"
    assert assembled(ChunkAssembler(), a[0], b[0], a[1], b[1]) == [b"12", b"xy"]


def test_chunks_that_wait_are_bounded_and_refused_without_a_change() -> None:
    a = chunks("a", b"12", b"34")
    assembler = ChunkAssembler(max_bytes=4)
    assert assembled(assembler, a[0]) == []
    with pytest.raises(Unsupported, match=r"of 2 unfinished messages to 5 bytes, at most 4 are kept in memory"):
        assembler.add(chunks("b", b"xyz", b"")[0], WHERE)
    assert len(assembler._parts) == 1
    assert assembled(assembler, a[1]) == [b"1234"]


def test_chunks_that_disagree_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="have 2 bytes, stated are 9"):
        assembled(ChunkAssembler(), *chunks("u", b"1", b"2", total_chunk_msg_size=9))
    with pytest.raises(Corrupt, match="entry 3:17 is chunk 5 of 2 of message 'u'"):
        ChunkAssembler().add(
            chunks("u", b"1", b"2", num_chunks_from_msg=2)[0]._replace(
                metadata=metadata(uuid="u", num_chunks_from_msg=2, chunk_id=5)
            ),
            WHERE,
        )
