"""Goal: every row has its exact position and id. Method: vectorised ids compared with a byte-wise protobuf writer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, Topic, columns_of_entry, message_ids


def varint(value: int) -> bytes:
    digits = []
    while True:
        digits.append(value & 0x7F)
        value >>= 7
        if not value:
            return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])


def by_hand(position: Position, partition: int, index: int) -> bytes:
    """Return the protobuf message, encoded field by field."""
    written = b"\x08" + varint(position.ledger_id) + b"\x10" + varint(position.entry_id)
    if partition >= 0:
        written += b"\x18" + varint(partition)
    return written if index < 0 else written + b"\x20" + varint(index)


positions = st.lists(st.builds(Position, st.integers(0, 2**62), st.integers(0, 2**40)), min_size=1, max_size=5)


@given(
    positions,
    st.integers(-1, 300),
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([-1, 0, 1, 127, 128, 16383, 16384, 2**21, 2**31 - 1])), max_size=40
    ),
)
def test_ids_are_what_a_protobuf_writer_writes(
    positions: list[Position], partition: int, rows: list[tuple[int, int]]
) -> None:
    rows = [(owner % len(positions), index) for owner, index in rows]
    owner = np.array([owner for owner, _ in rows], dtype=np.int64)
    index = np.array([index for _, index in rows], dtype=np.int64)
    found = message_ids(partition, positions, owner, index).to_pylist()
    assert found == [by_hand(positions[owner], partition, index) for owner, index in rows]


def test_rows_of_an_arrow_entry() -> None:
    metadata = arrow_metadata("p", 3, 1_700_000_000_123, 200, 0, None)
    topic = Topic.of("public/default/persistent/orders-partition-2")
    rows = pa.record_batch({"n": pa.array(range(4))})
    columns = dict(zip(METADATA.names, columns_of_entry(topic, Position(3, 7), metadata, 126, rows), strict=True))
    for name, column in columns.items():
        assert column.type == METADATA.field(name).type, name
        assert len(column) == 4
    assert columns["__key"].null_count == 4
    assert columns["__eventTime"].null_count == 4
    assert columns["__topic"].to_pylist() == ["persistent://public/default/orders-partition-2"] * 4
    assert columns["__messageProperties"].to_pylist() == [[]] * 4
    assert columns["__publishTime"].cast("int64").to_pylist() == [1_700_000_000_123_000] * 4
    assert [row["batchIndex"] for row in columns["__position"].to_pylist()] == [126, 127, 128, 129]
    assert columns["__messageId"].to_pylist() == [by_hand(Position(3, 7), 2, row) for row in range(126, 130)]


def test_properties_of_an_arrow_entry_are_those_of_each_row() -> None:
    metadata = arrow_metadata("p", 3, 1, 3, 0, None)
    pairs = [("source", "till"), ("empty", ""), ("source", "again")]
    for key, value in pairs:
        metadata.properties.add(key=key, value=value)
    for rows in (0, 1, 3):
        batch = pa.record_batch({"n": pa.array(range(rows))})
        topic = Topic.of("public/default/persistent/x")
        (found,) = columns_of_entry(topic, Position(3, 7), metadata, 0, batch, ["__messageProperties"])
        found.validate(full=True)
        assert found.type == METADATA.field("__messageProperties").type
        assert found.to_pylist() == [pairs] * rows


def test_what_rows_were_written_with_goes_before_what_the_entry_says() -> None:
    metadata = arrow_metadata("p", 3, 1_700_000_000_123, 2, 0, None)
    metadata.partition_key = "of the entry"
    times = pa.array([None, 1_700_000_000_000_001], pa.timestamp("us", tz="UTC"))
    said = pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string()))
    rows = pa.record_batch({"n": [1, 2], "__key": ["k", None], "__eventTime": times, "__messageProperties": said})
    found = columns_of_entry(Topic.of("public/default/persistent/x"), Position(3, 7), metadata, 0, rows)
    columns = dict(zip(METADATA.names, found, strict=True))
    assert columns["__key"].to_pylist() == ["k", None]
    assert columns["__eventTime"].equals(times)
    assert columns["__messageProperties"].to_pylist() == [[("a", "b")], None]
    for name, column in columns.items():
        assert column.type == METADATA.field(name).type, name
    keyless = columns_of_entry(Topic.of("public/default/persistent/x"), Position(3, 7), metadata, 0, rows.select(["n"]))
    assert keyless[0].to_pylist() == ["of the entry"] * 2
