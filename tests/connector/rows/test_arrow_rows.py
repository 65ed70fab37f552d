"""Goal: rows are read as they were written, with exactly the requested schema. Method: entries encoded and read."""

from __future__ import annotations

import base64
import json
from datetime import date

import pyarrow as pa
import pytest

from pyspark_ledger.connector.rows.arrow_rows import ArrowRows
from pyspark_ledger.connector.rows.shape import RowOptions, RowShape, row_shape
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata, encode_rows
from pyspark_ledger.ledger.message.columns import ColumnFit, schema_bytes
from pyspark_ledger.ledger.message.entry import ParsedEntry, encode_entry, parse_entry
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, Topic
from tests.rigs.entry import entry

TOPIC = Topic.of("public/default/persistent/orders")
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def parsed(batch: pa.RecordBatch, rows: int | None = None) -> ParsedEntry:
    metadata = arrow_metadata("p", 0, 1_000, batch.num_rows if rows is None else rows, 0, None)
    return parse_entry(b"".join(bytes(b) for b in encode_entry(metadata, encode_rows([batch], compression=None))), "x")


def rows(*entries: ParsedEntry, target: pa.Schema = COLUMNS, metadata_columns: int = 0) -> list[pa.RecordBatch]:
    own = len(target) - metadata_columns
    return shaped(RowShape(schema_bytes(target), own, rescues=False, raw=False), *entries)


def shaped(shape: RowShape, *entries: ParsedEntry) -> list[pa.RecordBatch]:
    placed = [(Position(1, number), entry) for number, entry in enumerate(entries)]
    return list(ArrowRows(TOPIC, shape).batches(placed))


def test_rows_come_out_with_exactly_the_target_schema() -> None:
    large = pa.record_batch({"id": pa.array(range(40_000)), "name": pa.array(["x" * 10] * 40_000)})
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
    with pytest.raises(Corrupt, match="holds 1 rows, its metadata state 2"):
        rows(parsed(pa.record_batch({"id": pa.array([1])}), rows=2))


def test_columns_that_nobody_asked_for_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = row_shape(COLUMNS, None, RowOptions(columns=("__position", "name")), "orders")
    assert shape.schema.names == ["name", "__position"]
    batch = pa.record_batch({"id": pa.array([1, 2]), "name": pa.array(["a", "b"])})
    asked: list[list[str]] = []
    fit = ColumnFit.fit
    monkeypatch.setattr(
        ColumnFit, "fit", lambda self, batch, where: asked.append(batch.schema.names) or fit(self, batch, where)
    )
    (found,) = shaped(shape, parsed(batch))
    assert asked == [["name"]]
    assert found.column("name").to_pylist() == ["a", "b"]
    assert [place["batchIndex"] for place in found.column("__position").to_pylist()] == [0, 1]
    (only,) = shaped(row_shape(COLUMNS, None, RowOptions(columns=("__publishTime",)), "orders"), parsed(batch))
    assert only.schema.names == ["__publishTime"]
    assert only.num_rows == 2


def test_entries_of_newer_columns_are_read_as_the_query_was_planned() -> None:
    shape = row_shape(COLUMNS, None, RowOptions(), "orders")
    newer = pa.record_batch({"id": pa.array([1]), "name": pa.array(["a"]), "more": pa.array([2.5])})
    older = pa.record_batch({"id": pa.array([0])})
    (found,) = shaped(shape, parsed(older), parsed(newer))
    assert found.to_pylist() == [{"id": 0, "name": None}, {"id": 1, "name": "a"}]


def test_what_cannot_be_decoded_is_rescued_with_reason_and_position() -> None:
    shape = row_shape(COLUMNS, None, RowOptions(rescue="_rescued_data", columns=("id", "__key")), "orders")
    good = parsed(pa.record_batch({"id": pa.array([1]), "name": pa.array(["a"])}))
    newer = parsed(pa.record_batch({"id": pa.array([2]), "more": pa.array([2.5]), "day": pa.array([date(2026, 1, 2)])}))
    message = parse_entry(entry(b"hello"), "p")
    bad = parsed(pa.record_batch({"id": pa.array(["seven"])}))
    (found,) = shaped(shape, good, newer, message, bad, good)
    assert found.schema.names == ["id", "_rescued_data", "__key"]
    assert found.column("id").to_pylist() == [1, 2, None, None, 1]
    texts = [text and json.loads(text) for text in found.column("_rescued_data").to_pylist()]
    assert texts[0] is texts[4] is None
    assert texts[1] == {"_position": "1:1:0", "_topic": TOPIC.text, "more": 2.5, "day": "2026-01-02"}
    assert texts[2]["_position"] == "1:2"
    assert base64.b64decode(texts[2]["payload"]) == b"hello"
    assert "holds a Pulsar payload" in texts[2]["_reason"]
    assert "column 'id' of entry 1:3 of" in texts[3]["_reason"]
    with pytest.raises(Refused, match="column 'id' of entry 1:0 of"):
        shaped(row_shape(COLUMNS, None, RowOptions(), "orders"), bad)
