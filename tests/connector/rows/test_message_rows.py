"""Goal: batches have the same rows and errors as columns and message by message. Method: real and random batches.

Random batches have every field in any order and numbers of every length. Some have missing bytes or flipped bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.connector.rows.message_rows import Entry, PulsarRows
from pyspark_ledger.connector.rows.shape import RowOptions, row_shape
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.message.batch_columns.columns import columns_of
from pyspark_ledger.ledger.message.compression import LZ4, NONE, ZSTD, compress
from pyspark_ledger.ledger.message.entry import ParsedEntry, parse_entry
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import KeyValue, MessageMetadata
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, Topic
from tests.ledger.message.test_fixtures_pulsar import READ_ALIKE, walk
from tests.rigs.entry import item

TARGET = pa.schema([pa.field("value", pa.binary()), *METADATA])
TOPIC = Topic.of("public/default/persistent/a-partition-3")
SHAPE = row_shape(None, None, RowOptions(include_metadata=True), "a")


def table(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches), TARGET).combine_chunks()


def read(entries: list[Entry]) -> pa.Table:
    return table(PulsarRows(TOPIC, SHAPE).batches(entries))


def one_by_one(entries: list[Entry]) -> pa.Table:
    return table(PulsarRows(TOPIC, SHAPE)._groups._one_by_one(entries))


def outcome(way: Any, entries: list[Entry]) -> object:
    """Return the table, or the text of the error."""
    try:
        found = way(entries)
    except LedgerError as error:
        return type(error), error.message
    found.validate(full=True)
    for name in ("__publishTime", "__eventTime"):  # Python's own times end with the year 9999
        at = found.schema.get_field_index(name)
        found = found.set_column(at, name, found[name].cast(pa.int64()))
    return found.to_pylist()


@pytest.mark.parametrize("topic", READ_ALIKE)
def test_real_objects_give_the_same_rows_both_ways(topic: str) -> None:
    entries = [(Position(ledger_id, entry_id), parse_entry(data, topic)) for ledger_id, entry_id, data in walk(topic)]
    expected = one_by_one(entries)
    assert expected.num_rows
    assert read(entries).equals(expected)


def test_batches_of_a_real_producer_are_columns() -> None:
    entries = [parse_entry(data, "") for _, _, data in walk("02-lz4")]
    columns, taken = columns_of(entries)
    assert columns is not None
    assert taken == [True] * len(entries)
    assert len(columns.values) == 1000


PROPERTY = st.builds(KeyValue, key=st.text(max_size=3), value=st.text(max_size=200))
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.lists(PROPERTY, max_size=4),
        "partition_key": st.text(max_size=5) | st.just("k" * 130),
        "ordering_key": st.binary(max_size=5),
        "event_time": st.integers(0, 2**64 - 1) | st.integers(0, 2**42),
        "sequence_id": st.integers(0, 2**64 - 1) | st.integers(0, 9),
        "null_value": st.booleans(),
        "null_partition_key": st.booleans(),
        "partition_key_b64_encoded": st.booleans(),
    },
)
RARE = st.sampled_from(
    [b"", b"", b"", b"\x20\x01", b"\x20\x00", b"\x58\x05", b"\x18\x03", b"\x12\x01\xff", b"\x0a\x00"]
)
VALUE = st.binary(max_size=40) | st.integers(100, 40_000).map(bytes)


def packed(fields: dict[str, Any], value: bytes, more: bytes) -> bytes:
    fields = {k: v for k, v in fields.items() if k != "event_time" or v < 2**63}
    return item(value, more, **fields)


def batch(plain: bytes, count: int, kind: int = NONE, **fields: Any) -> ParsedEntry:
    said = MessageMetadata(
        producer_name="p", sequence_id=4, publish_time=1_700_000_000_000, num_messages_in_batch=count,
        uncompressed_size=len(plain), compression=kind, **fields,
    )  # fmt: skip
    return ParsedEntry(None, said, memoryview(compress(kind, plain)))


BATCH = st.builds(
    lambda items, kind, event: batch(
        b"".join(packed(*one) for one in items), len(items), kind, **({"event_time": event} if event else {})
    ),
    st.lists(st.tuples(ITEM, VALUE, RARE), min_size=1, max_size=5),
    st.sampled_from([NONE, LZ4, ZSTD]),
    st.integers(0, 2**41),
)


def placed(entries: list[ParsedEntry]) -> list[Entry]:
    return [(Position(7, 100 * number), entry) for number, entry in enumerate(entries)]


@pytest.mark.thorough
@settings(deadline=None, max_examples=300)
@given(st.lists(BATCH, min_size=1, max_size=6))
def test_random_batches_give_the_same_both_ways(entries: list[ParsedEntry]) -> None:
    assert outcome(read, placed(entries)) == outcome(one_by_one, placed(entries))


@pytest.mark.thorough
@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(ITEM, VALUE), min_size=1, max_size=4), st.data())
def test_damaged_batches_are_refused_in_the_same_words(items: list[tuple[dict[str, Any], bytes]], data: Any) -> None:
    plain = bytearray(b"".join(packed(fields, value, b"") for fields, value in items))
    at = data.draw(st.integers(0, min(len(plain), 300) - 1))
    change = data.draw(st.sampled_from(["cut", "flip", "more"]))
    if change == "cut":
        del plain[-at:]
    elif change == "flip":
        plain[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        plain += b"\0"
    entries = placed([batch(bytes(plain), len(items)), batch(packed({}, b"whole", b""), 1)])
    assert outcome(read, entries) == outcome(one_by_one, entries)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2**21])
def test_values_of_every_length_of_size(size: int) -> None:
    plain = packed({"event_time": size}, bytes(size), b"") + packed({}, b"next", b"")
    entries = [batch(plain, 2)]
    _, taken = columns_of(entries)
    assert taken == [size < 2**14]
    assert [len(value) for value in read(placed(entries))["value"].to_pylist()] == [size, 4]


@pytest.mark.parametrize("later", [{"partition_key": "k"}, {"properties": [KeyValue(key="a", value="b" * 300)]}])
def test_a_later_message_with_more_metadata_is_a_column(later: dict[str, Any]) -> None:
    plain = packed({}, b"first", b"")
    mixed = plain * 3 + packed({**later, "ordering_key": b"o" * 300}, b"later", b"") + plain
    entries = [batch(plain * 9, 9), batch(mixed, 5), batch(packed(later, b"key", b"") + plain, 2), batch(plain, 1)]
    _, taken = columns_of(entries)
    assert taken == [True] * 4
    assert read(placed(entries)).equals(one_by_one(placed(entries)))


def test_what_is_no_batch_stands_between_batches_in_order() -> None:
    single = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    marker = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, marker_type=21)
    compacted = packed({}, b"gone", b"\x20\x01") + packed({}, b"c", b"")
    entries = placed([
        batch(packed({}, b"a", b""), 1),
        ParsedEntry(None, single, memoryview(b"b")),
        ParsedEntry(None, marker, memoryview(b"")),
        batch(compacted, 2),
        batch(packed({}, b"d", b"") * 3, 3),
    ])  # fmt: skip
    assert read(entries)["value"].to_pylist() == [b"a", b"b", b"c", b"d", b"d", b"d"]
    assert read(entries).equals(one_by_one(entries))
    assert read(entries * 9)["value"].to_pylist() == [b"a", b"b", b"c", b"d", b"d", b"d"] * 9


def test_a_batch_that_states_more_than_it_holds_asks_for_no_memory() -> None:
    entries = placed([batch(packed({}, b"a", b""), 2**31 - 1)])
    assert outcome(read, entries) == outcome(one_by_one, entries)


def test_long_reads_come_in_parts() -> None:
    entries = placed([batch(packed({}, bytes(1000), b"") * 100, 100)] * 400)
    parts = list(PulsarRows(TOPIC, SHAPE).batches(entries))
    assert sum(part.num_rows for part in parts) == 40_000
    assert max(part.num_rows for part in parts) <= 16 * 1024
    assert max(part.nbytes for part in parts) < 8 * 1024 * 1024


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(st.sampled_from([0, 5, 5, 5, 127, 128]), min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.sampled_from([5, 300]), max_size=1),
    st.integers(0, 7),
    st.integers(0, 40),
)
@pytest.mark.thorough
def test_messages_of_one_size_or_several_are_the_same_both_ways(
    sizes: list[list[int]], last: list[int], stated_more: int, flipped: int
) -> None:
    values = [[bytes([65 + number]) * size for number, size in enumerate(one * 3 + last)] for one in sizes]
    plain = [b"".join(packed({}, value, b"") for value in one) for one in values]
    entries = placed([batch(data, len(one)) for data, one in zip(plain, values, strict=True)])
    assert read(entries)["value"].to_pylist() == [value for one in values for value in one]
    assert [all(columns_of([entry for _, entry in entries])[1])] == [True]
    damaged = bytearray(plain[0])
    damaged[min(flipped, len(damaged) - 1)] ^= 1 << stated_more
    wrong = placed([batch(bytes(damaged), len(values[0]) + stated_more % 2), *(entry for _, entry in entries)])
    assert outcome(read, wrong) == outcome(one_by_one, wrong)
