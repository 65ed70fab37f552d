"""Goal: entries of messages are byte for byte as Pulsar's Java client builds them. Method: real entries of that client
are decoded and encoded again. Everything else goes through the reader, and both encoders are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message import batch_encoder
from pyspark_ledger.ledger.message.batch_decoder import Message, decode_messages
from pyspark_ledger.ledger.message.batch_encoder import (
    OutgoingMessage,
    ProducerMetadata,
    batch_edges,
    encode_columns,
    encode_messages,
    encode_ordinary,
    require_columns,
)
from pyspark_ledger.ledger.message.compression import LZ4, NONE, SNAPPY, ZLIB, ZSTD
from pyspark_ledger.ledger.message.entry import ParsedEntry, entry_rows, parse_entry, stamp_prefix
from pyspark_ledger.ledger.message.outgoing.batch_items import join_columns
from pyspark_ledger.ledger.metadata.pulsar_value import parse_ledger_info
from pyspark_ledger.ledger.segment.reader import walk_segment

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "pulsar"
# Topics with entries of the Java client. Those of other clients in them lack what it always writes.
JAVA = ("06-avro-evolution", "10-tombstones-delayed", "13-broker-entry-metadata", "11-transactions")
COMPRESSIONS = (NONE, LZ4, ZLIB, ZSTD, SNAPPY)
PUBLISHED = 1_700_000_000_000


def real_entries(topic: str) -> Iterator[tuple[bytes, ParsedEntry]]:
    info = parse_ledger_info((FIXTURES / topic / "managed-ledger-info.bin").read_bytes(), topic)
    entries = {ledger.ledgerId: ledger.entries for ledger in info.ledgerInfo}
    for path in sorted((FIXTURES / topic / "objects").glob("*-ledger-*[0-9]")):
        ledger_id = int(path.name.rpartition("-")[2])
        for frame in walk_segment(path.read_bytes(), ledger_id, where=topic, entries=entries[ledger_id]):
            yield bytes(frame.entry), parse_entry(frame.entry, topic)


def outgoing(message: Message) -> OutgoingMessage:
    return OutgoingMessage(
        None if message.value is None else bytes(message.value),
        message.sequence_id,
        message.key_bytes if message.key_is_base64 else message.key,
        message.properties,
        message.event_time,
        message.ordering_key,
    )


@pytest.mark.parametrize("topic", JAVA)
def test_real_entries_of_the_java_client_are_built_again_byte_for_byte(topic: str) -> None:
    singles = batches = 0
    for entry, parsed in real_entries(topic):
        metadata = parsed.metadata
        delayed = metadata.HasField("deliver_at_time") or metadata.HasField("marker_type")
        if delayed or metadata.HasField("txnid_most_bits"):
            continue  # not built here
        messages = [outgoing(message) for message in decode_messages(parsed, topic)]
        version = metadata.schema_version if metadata.HasField("schema_version") else None
        envelope = ProducerMetadata(metadata.producer_name, metadata.compression, version)
        built = b"".join(map(memoryview, encode_messages(envelope, messages, metadata.publish_time)))
        stamp = b"" if parsed.stamp is None else stamp_prefix(parsed.stamp)
        if metadata.compression == NONE and (len(messages) > 1 or not metadata.HasField("num_messages_in_batch")):
            assert stamp + built == entry
            singles, batches = singles + (len(messages) == 1), batches + (len(messages) > 1)
        else:
            again = parse_entry(built, topic)
            assert [outgoing(message) for message in decode_messages(again, topic)] == messages
    assert singles > 10
    assert batches or topic == "11-transactions"


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
MESSAGE = st.fixed_dictionaries(
    {"value": st.none() | st.binary(max_size=300)},
    optional={
        "key": TEXT | st.binary(max_size=200),
        "event_time_ms": st.integers(0, 2**63 - 1),
        "ordering_key": st.binary(max_size=5),
        "properties": st.dictionaries(TEXT, TEXT, max_size=2),
    },
)


def numbered(given_messages: list[dict[str, Any]], first: int) -> list[OutgoingMessage]:
    return [OutgoingMessage(sequence_id=first + i, **fields) for i, fields in enumerate(given_messages)]


@settings(deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=6), st.sampled_from(COMPRESSIONS), st.integers(0, 2**63 - 10))
def test_what_is_built_is_read_back(given_messages: list[dict[str, Any]], kind: int, first: int) -> None:
    messages = numbered(given_messages, first)
    entry = b"".join(map(memoryview, encode_messages(ProducerMetadata("p", kind, b"v"), messages, PUBLISHED)))
    parsed = parse_entry(entry, "entry")
    found = decode_messages(parsed, "entry")
    assert [outgoing(message) for message in found] == messages
    assert entry_rows(parsed.metadata) == len(messages)
    assert parsed.metadata.HasField("num_messages_in_batch") == (len(messages) > 1)
    if len(messages) > 1:
        assert parsed.metadata.highest_sequence_id == messages[-1].sequence_id
    for message in found:
        assert (message.producer, message.publish_time, message.schema_version) == ("p", PUBLISHED, b"v")


PLAIN = st.tuples(st.none() | st.binary(max_size=300), st.none() | TEXT, st.integers(0, 2**63 - 1))


@settings(deadline=None)
@given(st.lists(PLAIN, min_size=2, max_size=9), st.booleans(), st.integers(0, 2**63 - 10))
def test_columns_give_the_bytes_of_protobuf(plain: list[Any], as_bytes: bool, first: int) -> None:
    keys = [key if key is None or not as_bytes else key.encode() for _, key, _ in plain]
    messages = [
        OutgoingMessage(value, first + i, keys[i], event_time_ms=time) for i, (value, _, time) in enumerate(plain)
    ]
    by_protobuf = b"".join(map(batch_encoder._item, messages))
    assert bytes(memoryview(batch_encoder._plain(messages))) == by_protobuf
    whole = encode_messages(ProducerMetadata("p"), messages, PUBLISHED)
    ((columns, count),) = encode_columns(
        ProducerMetadata("p"),
        pa.array([value for value, _, _ in plain], pa.binary()),
        first,
        PUBLISHED,
        keys=pa.array(keys, pa.binary() if as_bytes else pa.string()),
        event_times_ms=pa.array([time for _, _, time in plain], pa.int64()),
    )
    assert count == len(plain)
    assert b"".join(map(memoryview, columns)) == b"".join(map(memoryview, whole))


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(1, 40), st.integers(0, 5), st.sampled_from([0, 100, 127, 16370, 2**21 - 9]))
def test_values_of_one_size_give_the_bytes_of_protobuf(size: int, count: int, skipped: int, first: int) -> None:
    column = pa.array([bytes([i]) * size for i in range(count + skipped)], pa.binary()).slice(skipped)
    messages = [OutgoingMessage(value, first + i) for i, value in enumerate(column.to_pylist())]
    data, offsets = join_columns(
        column.cast(pa.large_binary()),
        np.arange(first, first + count, dtype=np.uint64),
        None,
        np.zeros(count, np.uint64),
        is_base64=False,
    )
    assert bytes(memoryview(data)) == b"".join(map(batch_encoder._item, messages))
    assert offsets[-1] == len(memoryview(data))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=300), st.none() | TEXT), min_size=1, max_size=40),
    st.sampled_from([0, 100, 127, 16370, 2**21 - 9, 2**63 - 50]),
    st.sampled_from(COMPRESSIONS),
)
@pytest.mark.thorough
def test_ordinary_messages_give_the_bytes_of_protobuf(
    plain: list[tuple[bytes, str | None]], first: int, kind: int
) -> None:
    values, keys = [value for value, _ in plain], [key for _, key in plain]
    envelope = ProducerMetadata("p", kind)
    built = b"".join(map(memoryview, encode_ordinary(envelope, values, keys, first, PUBLISHED)))
    messages = [OutgoingMessage(value, first + i, key) for i, (value, key) in enumerate(plain)]
    payload = parse_entry(built, "entry").payload
    if kind == NONE and len(plain) > 1:
        assert bytes(payload) == b"".join(map(batch_encoder._item, messages))
    assert built == b"".join(map(memoryview, encode_messages(envelope, messages, PUBLISHED)))


def test_many_values_are_cut_into_batches_and_numbered_on() -> None:
    values = pa.array([b"x" * size for size in (10, 10, 10, 50, 1, 1, 1, 1)])
    built = list(encode_columns(ProducerMetadata("p", LZ4), values, 40, PUBLISHED, max_messages=3, max_bytes=30))
    assert [count for _, count in built] == [3, 1, 3, 1]
    found = [
        message
        for entry, _ in built
        for message in decode_messages(parse_entry(b"".join(map(memoryview, entry)), "entry"), "entry")
    ]
    assert [message.sequence_id for message in found] == list(range(40, 48))
    assert [bytes(message.value or b"") for message in found] == values.to_pylist()


def test_a_slice_of_a_column_is_only_that_slice() -> None:
    values = pa.array([b"a", None, b"ccc", b"dd", b"e"]).slice(1, 3)
    keys = pa.array(["1", "2", None, "4", "5"]).slice(1, 3)
    ((entry, _),) = encode_columns(ProducerMetadata("p"), values, 0, PUBLISHED, keys=keys)
    found = decode_messages(parse_entry(b"".join(map(memoryview, entry)), "entry"), "entry")
    assert [(m.key, None if m.value is None else bytes(m.value)) for m in found] == [
        ("2", None),
        (None, b"ccc"),
        ("4", b"dd"),
    ]


@settings(deadline=None)
@given(st.lists(st.integers(0, 20)), st.integers(1, 5), st.integers(1, 25))
def test_edges_are_those_of_filling_one_batch_after_the_other(sizes: list[int], messages: int, size: int) -> None:
    edges, held = [0], 0
    for at, length in enumerate(sizes):
        if at > edges[-1] and (held + length > size or at - edges[-1] >= messages):
            edges.append(at)
            held = 0
        held += length
    wanted = [*edges, len(sizes)] if sizes else [0]
    assert batch_edges(np.array(sizes, dtype=np.int64), messages, size) == wanted


def test_columns_of_other_types_or_lengths_are_refused() -> None:
    one = pa.array([b"a"])
    for values, keys, times, said in (
        (pa.array([1]), None, None, "values are int64, expected binary or text"),
        (one, pa.array(["a", "b"]), None, "1 values and 2 keys were given"),
        (one, pa.array([1.5]), None, "keys are double, expected binary or text"),
        (one, None, pa.array([-5]), "an event time is -5"),
        (pa.array([b"x" * 10_000]), None, None, "takes up to 10590 bytes, an entry of this ledger holds at most 9000"),
        (pa.array([b"x" * 501]), None, None, "a value of the column has 501 bytes, chunk_max_bytes is 500"),
    ):
        with pytest.raises(Refused, match=said):
            require_columns(values, keys, times, 9000, 500)
    with pytest.raises(Refused, match="no message"):
        encode_messages(ProducerMetadata("p"), [], PUBLISHED)
