"""Goal: schemas are understood as they come and kept as the same bytes, and what is none is refused by name.

Method: every way to state one, golden bytes, round trips.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import (
    SCHEMA_BYTES_MAX,
    PayloadSchema,
    TopicSchemas,
    is_payload_schema,
    parse_schema_bytes,
    parse_schemas,
    schema_bytes_of,
)


def test_schemas_are_understood_as_they_come() -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    text = json.dumps(record)
    for said in (
        text,
        json.dumps({"type": "AVRO", "schema": text, "properties": {}}),
        json.dumps({"type": "AVRO", "data": record}),
        json.dumps({"version": 0, "schemaInfo": {"name": "t", "type": "AVRO", "schema": record}}),
        json.dumps({"getSchemaResponses": [{"version": 0, "type": "AVRO", "data": text, "properties": None}]}),
        json.dumps([record]),
    ):
        schemas = parse_schemas(said, "here")
        assert list(schemas.versions) == [0]
        assert PayloadDecoder(schemas).schema == pa.schema([("a", pa.int32())])
        assert parse_schemas(schemas.to_json(), "again") == schemas
    assert parse_schemas(" INT64 ", "here").versions[0].type == "INT64"


def test_schema_golden_bytes() -> None:
    schema = PayloadSchema("AVRO", '"int"', {"b": "2", "a": "1"})
    golden = b'{"data":"\\"int\\"","properties":{"a":"1","b":"2"},"type":"AVRO"}'
    assert schema_bytes_of(schema) == golden
    assert parse_schema_bytes(golden, "here") == schema
    assert is_payload_schema(golden)
    assert not is_payload_schema(b"\xff\xff\xff\xff")
    with pytest.raises(Refused, match="here is no payload schema"):
        parse_schema_bytes(golden[:-1], "here")


@given(
    st.dictionaries(
        st.integers(0, 2**62),
        st.builds(
            PayloadSchema,
            st.sampled_from(["AVRO", "INT8", "KEY_VALUE"]),
            st.text(max_size=9),
            st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_schemas_round_trip(versions: dict[int, PayloadSchema]) -> None:
    assert parse_schemas(TopicSchemas(versions).to_json(), "here") == TopicSchemas(versions)
    assert TopicSchemas(versions).newest == max(versions)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("int64", "here is 'int64', which is no JSON"),
        ("{}", "here has {} where a schema is expected"),
        ("[]", "here has no schema"),
        ('{"schemaInfo": 5}', "here has 5 as 'schemaInfo'"),
        ('{"type": "INT8", "properties": [1]}', "here has [1] as a schema's properties, expected an object"),
        ('{"type": "AVRO", "data": 5}', "here has 5 as a schema's definition, expected text"),
        ("x" * (SCHEMA_BYTES_MAX + 1), f"characters, schemas take at most {SCHEMA_BYTES_MAX}"),
        ('{"type": "AUTO_CONSUME"}', "type AUTO_CONSUME, which does not describe"),
        ('[{"version": -1, "type": "INT8"}]', "has -1 as a schema's version"),
        ('[{"version": 1, "type": "INT8"}, {"version": 1, "type": "INT16"}]', "states schema version 1 twice"),
        ('{"type": "AVRO", "data": "{"}', "is no Avro schema"),
        ('{"type": "PROTOBUF", "data": ""}', "of type PROTOBUF, which has no descriptor"),
        ('{"type": "PROTOBUF_NATIVE", "data": "{}"}', "is no Protobuf descriptor"),
        ('{"type": "KEY_VALUE", "data": ""}', "without the property 'key.schema.type'"),
        ('{"type": "record", "name": "T", "fields": [{"name": "t", "type": ["null", "T"]}]}', "contains itself, at t"),
        (
            '{"type": "record", "name": "T", "fields": [{"name": "t", "type": "Unknown"}]}',
            "refers to type 'Unknown' at t",
        ),
        ('{"type": "record", "name": "T", "fields": []}', "a record without fields"),
    ],
)
def test_what_is_no_schema_is_refused_by_name(said: str, words: str) -> None:
    with pytest.raises((Refused, Unsupported), match=words.replace("[", r"\[").replace("{", r"\{")):
        PayloadDecoder(parse_schemas(said, "here"), where="here")
