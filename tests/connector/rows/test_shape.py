"""Goal: a read has the requested columns, or is refused by column. Method: shapes of schemas and options."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from pyspark_ledger.connector.rows.shape import RowOptions, load_schemas, row_shape
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.schema.documents import parse_schemas
from pyspark_ledger.ledger.rows.metadata_columns import METADATA

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us"))])
AVRO = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]}
)


def test_shapes_hold_rows_then_what_was_rescued_then_metadata() -> None:
    shape = row_shape(COLUMNS, None, RowOptions(include_metadata=True, rescue="_rescued_data"), "orders")
    assert shape.schema.names == [*COLUMNS.names, "_rescued_data", *METADATA.names]
    assert shape.rows == COLUMNS
    assert shape.metadata == METADATA.names
    assert pickle.loads(pickle.dumps(shape)) == shape  # noqa: S301  # as Spark does
    assert row_shape(None, None, RowOptions(), "clicks").schema == pa.schema([("value", pa.binary())])


def test_columns_pick_in_their_order_and_metadata_comes_last() -> None:
    wishes = RowOptions(columns=("__position", "at", "__key", "id"))
    assert row_shape(COLUMNS, None, wishes, "orders").schema.names == ["at", "id", "__position", "__key"]
    with pytest.raises(
        Refused, match=r"option 'columns' names 'nobody', but ledger 'orders' has no such column.*id, name, at"
    ):
        row_shape(COLUMNS, None, RowOptions(columns=("id", "nobody")), "orders")


def test_row_shape_takes_payload_schema_from_option_before_registry() -> None:
    registered = parse_schemas("INT64", "x")
    assert row_shape(None, registered, RowOptions(), "clicks").schema == pa.schema([("value", pa.int64())])
    shape = row_shape(None, registered, RowOptions(payload_schema=AVRO, columns=("s",)), "clicks")
    assert shape.schema == pa.schema([("s", pa.string())])
    with pytest.raises(Refused, match="ledger 'orders' has the columns id, name, at, 'payloadSchema' is for messages"):
        row_shape(COLUMNS, None, RowOptions(payload_schema=AVRO), "orders")


def test_a_payload_schema_is_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schemas.json"
    file.write_text(json.dumps({"getSchemaResponses": [{"version": 3, "type": "AVRO", "data": AVRO}]}))
    assert load_schemas(str(file)) == load_schemas(f"file:{file}")
    assert list(load_schemas(str(file)).versions) == [3]
    assert load_schemas(AVRO).versions[0].type == "AVRO"
    with pytest.raises(
        Refused, match=r"'/no/such\.json', which is no JSON, no primitive type and no file.*No such file"
    ):
        load_schemas("/no/such.json")


def test_names_that_cannot_be_told_apart_are_refused() -> None:
    columns = pa.schema([("__key", pa.string())])
    assert row_shape(columns, None, RowOptions(), "x").schema.names == ["__key"]
    with pytest.raises(Refused, match=r"'__key'.*metadata column"):
        row_shape(columns, None, RowOptions(include_metadata=True), "x")
    with pytest.raises(Refused, match=r"'id' of ledger 'orders'.*rescue column"):
        row_shape(COLUMNS, None, RowOptions(rescue="id"), "orders")
    with pytest.raises(Refused, match=r"'id' of ledger 'orders'.*rescue column, 'ID'"):
        row_shape(COLUMNS, None, RowOptions(rescue="ID"), "orders")
    with pytest.raises(Refused, match=r"'__Key'.*metadata column.*'__key'"):
        row_shape(pa.schema([("__Key", pa.string())]), None, RowOptions(include_metadata=True), "x")


def test_a_query_keeps_the_columns_that_it_was_planned_with() -> None:
    now = row_shape(COLUMNS, None, RowOptions(rescue="_r"), "orders")
    planned = row_shape(pa.schema(list(COLUMNS)[:1]), None, RowOptions(rescue="_r"), "orders").spark_schema("orders")
    kept = now.for_schema(planned, "orders")
    assert kept.schema.names == ["id", "_r"]
    assert kept.known == ("id",)
    assert now.for_schema(now.spark_schema("orders"), "orders") == now
    middle = row_shape(pa.schema([COLUMNS.field("id"), COLUMNS.field("at")]), None, RowOptions(), "orders")
    grown = row_shape(COLUMNS, None, RowOptions(), "orders").for_schema(middle.spark_schema("orders"), "orders")
    assert grown.schema == middle.schema
    for given in (
        StructType().add("name", StringType()).add("id", LongType()).add("_r", StringType()),
        StructType().add("id", StringType()).add("_r", StringType()),
        StructType().add("_r", StringType()),
        StructType().add("id", LongType()),
    ):
        with pytest.raises(Refused, match=r"Call load"):
            now.for_schema(given, "orders")
