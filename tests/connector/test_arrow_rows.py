"""Goal: rows come out as they went in, of exactly the schema asked for. Method: entries encoded and read back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connector.arrow_rows import ArrowRows, joined
from connector.metadata_columns import Topic
from connector.schema import METADATA
from ledger.arrow_payload import arrow_metadata, encode_rows
from ledger.entry import ParsedEntry, encode_entry, parse_entry
from ledger.errors import Corrupt, Refused
from ledger.position import Position
from ledger.proto.pulsar_messages_pb2 import MessageMetadata

TOPIC = Topic.of("public/default/persistent/orders")
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def parsed(batch: pa.RecordBatch, rows: int | None = None) -> ParsedEntry:
    metadata = arrow_metadata("p", 0, 1_000, batch.num_rows if rows is None else rows, 0, None)
    return parse_entry(b"".join(bytes(b) for b in encode_entry(metadata, encode_rows([batch], compression=None))), "x")


def rows(*entries: ParsedEntry, target: pa.Schema = COLUMNS, metadata_columns: int = 0) -> list[pa.RecordBatch]:
    placed = [(Position(1, number), entry) for number, entry in enumerate(entries)]
    return list(ArrowRows(TOPIC, target, metadata_columns).batches(placed))


def test_rows_come_out_with_exactly_the_target_schema() -> None:
    large = pa.record_batch({"id": pa.array(range(100_000)), "name": pa.array(["x" * 10] * 100_000)})
    (found,) = rows(parsed(large))
    assert found.schema.equals(COLUMNS, check_metadata=True)
    assert found.to_pydict() == large.to_pydict()


def test_columns_are_matched_by_name_cast_and_filled_with_null() -> None:
    (found,) = rows(parsed(pa.record_batch({"gone": pa.array([1.5]), "id": pa.array([7], pa.int32())})))
    assert found.to_pylist() == [{"id": 7, "name": None}]


def test_an_impossible_cast_names_column_and_both_types() -> None:
    with pytest.raises(Refused, match=r"column 'id' of entry 1:0 of persistent://.* is string and cannot become int64"):
        rows(parsed(pa.record_batch({"id": pa.array(["seven"])})))


def test_small_batches_are_joined_in_order() -> None:
    entries = [parsed(pa.record_batch({"id": pa.array([n]), "name": pa.array([str(n)])})) for n in range(500)]
    found = rows(*entries)
    assert len(found) == 1
    assert found[0].column("id").to_pylist() == list(range(500))


def test_joining_keeps_order_around_large_batches() -> None:
    def batch(first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})

    parts = [batch(0, 10), batch(10, 100_000), batch(100_010, 5), batch(100_015, 5), batch(100_020, 90_000)]
    found = list(joined(parts, parts[0].schema))
    assert [b.num_rows for b in found] == [10, 100_000, 10, 90_000]
    assert pa.Table.from_batches(found).column("n").to_pylist() == list(range(190_020))


def test_metadata_counts_rows_over_all_batches_of_an_entry() -> None:
    target = pa.schema([*COLUMNS, *METADATA])
    entry = parsed(pa.record_batch({"id": pa.array([1, 2]), "name": pa.array(["a", "b"])}))
    (found,) = rows(entry, entry, target=target, metadata_columns=len(METADATA))
    assert found.schema.equals(target, check_metadata=True)
    places = found.column("__position").to_pylist()
    assert [(at["ledgerId"], at["entryId"], at["batchIndex"]) for at in places] == [
        (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1),
    ]  # fmt: skip


def test_markers_give_no_rows_and_messages_are_refused() -> None:
    marker = MessageMetadata(producer_name="m", sequence_id=0, publish_time=1, marker_type=21)
    assert rows(parse_entry(b"".join(encode_entry(marker)), "m")) == []
    message = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    with pytest.raises(Refused, match=r"entry 1:0 of .* holds a Pulsar payload, the ledger has the columns id, name"):
        rows(parse_entry(b"".join(encode_entry(message, b"hello")), "p"))


def test_a_row_count_that_disagrees_is_corruption() -> None:
    with pytest.raises(Corrupt, match="holds 1 rows, its metadata states 2"):
        rows(parsed(pa.record_batch({"id": pa.array([1])}), rows=2))
