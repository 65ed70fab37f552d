"""Goal: an Avro schema is the columns it says, and its datums are read by their writer's schema.

Method: datums that `fastavro` and Pulsar's own client wrote, golden bytes, and schemas that are none.
"""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.message.batch_decoder import decode_messages
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.message.schema.avro import AvroCodec, avro_type, pruned
from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import parse_schemas
from tests.ledger.message.test_fixtures_pulsar import ROOT, walk
from tests.rigs.schema import EXPECTED, ORDER, ROW, avro, decode, decoder

NUMBERS = {"type": "record", "name": "R", "fields": [{"name": "i", "type": "long"}, {"name": "s", "type": "string"}]}
GOLDEN = bytes.fromhex("0d046869")


def codec(schema: Any) -> AvroCodec:
    known = avro_type(json.dumps(schema), "a schema")
    return AvroCodec(known, known, "a schema", resolves=False)


def test_avro_golden_bytes() -> None:
    assert avro({"i": -7, "s": "hi"}, NUMBERS) == GOLDEN
    assert codec(NUMBERS).decode(pa.array([GOLDEN])).array.to_pylist() == [{"i": -7, "s": "hi"}]


@given(st.lists(st.fixed_dictionaries({"i": st.integers(-(2**63), 2**63 - 1), "s": st.text(max_size=9)})))
def test_avro_round_trip(rows: list[dict[str, Any]]) -> None:
    found = codec(NUMBERS).decode(pa.array([avro(row, NUMBERS) for row in rows], pa.binary()))
    assert (found.array.to_pylist(), found.wrong) == (rows, {})


def test_avro_datum_that_is_cut_or_too_long_is_wrong() -> None:
    found = codec(NUMBERS).decode(pa.array([GOLDEN[:-1], GOLDEN, GOLDEN + b"x", b""]))
    assert [row is not None for row in found.array.to_pylist()] == [False, True, False, False]
    assert set(found.wrong) == {0, 2, 3}


def test_avro_types_become_columns() -> None:
    found = decode(decoder(ORDER), [avro(ROW, ORDER), avro({**ROW, "who": None, "either": None}, ORDER)])
    assert not found.wrong
    assert found.batch.schema.field("price").type == pa.decimal128(9, 2)
    assert found.batch.schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert found.batch.to_pylist() == [EXPECTED, {**EXPECTED, "who": None, "either": None}]


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        (["int", "long"], pa.int64()),
        (["null", "float", "double"], pa.float64()),
        (["null"], pa.null()),
        ({"type": "int", "logicalType": "time-millis"}, pa.int32()),
        ({"type": "long", "logicalType": "time-micros"}, pa.int64()),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9}, pa.decimal128(9, 0)),
        ({"type": "array", "items": ["null", "int"]}, pa.list_(pa.field("element", pa.int32()))),
    ],
)
def test_avro_type_is_its_column(schema: Any, column: pa.DataType) -> None:
    assert avro_type(json.dumps(schema), "a schema").column == column


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, "decimal of precision 39 and scale 0"),
        ({"type": "array"}, "a type without 'items' at its top"),
        ({"type": "record", "name": 7, "fields": []}, "has 7 as the name of a type"),
        ({"items": "int"}, "expected an Avro type"),
        ("Unknown", "refers to type 'Unknown' at its top"),
    ],
)
def test_avro_type_refuses_what_has_no_column(schema: Any, words: str) -> None:
    with pytest.raises((Refused, Unsupported), match=f"here .*{words}"):
        avro_type(json.dumps(schema), "here")


def test_pruned_spells_a_named_type_where_it_is_met_first() -> None:
    found = pruned(avro_type(json.dumps(ORDER), "a schema"), ["before", "kind", "id"])
    before, kind, number = found.schema["fields"]
    assert before["type"] == ["null", {"type": "enum", "name": "shop.Kind", "symbols": ["NEW", "USED"]}]
    assert (kind["type"], number["type"]) == ("shop.Kind", "long")
    assert found.column == pa.struct([("before", pa.string()), ("kind", pa.string()), ("id", pa.int64())])


def test_a_topic_of_a_real_pulsar_with_two_versions() -> None:
    schemas = parse_schemas((ROOT / "06-avro-evolution" / "schemas.json").read_bytes(), "schemas.json")
    messages = [
        message
        for ledger, entry, data in walk("06-avro-evolution")
        for message in decode_messages(parse_entry(data, ""), f"{ledger}:{entry}")
    ]
    payloads = [bytes(message.value or b"") for message in messages]
    versions = [struct.unpack(">q", message.schema_version or b"")[0] for message in messages]
    assert set(versions) == {0, 1}
    found = decode(PayloadDecoder(schemas), list(payloads), versions)
    assert not found.wrong
    readers = {v: fastavro.parse_schema(json.loads(schemas.versions[v].data)) for v in (0, 1)}
    wanted = [
        fastavro.schemaless_reader(io.BytesIO(payload), readers[version], readers[1])
        for payload, version in zip(payloads, versions, strict=True)
    ]
    assert found.batch.to_pylist() == wanted
