"""Goal: JSON payloads are read by their Avro schema as each client writes them, and what is none is wrong alone.

Method: texts as Jackson and Python write them, round trips, and texts that are damaged or nested too deeply.
"""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Unsupported
from pyspark_ledger.ledger.message.schema.avro import avro_type
from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import PayloadSchema, TopicSchemas
from pyspark_ledger.ledger.message.schema.json_codec import JsonCodec
from tests.rigs.schema import EXPECTED, ORDER, decode, decoder

NUMBERS = {"type": "record", "name": "R", "fields": [{"name": "i", "type": "long"}, {"name": "s", "type": "string"}]}


@given(st.lists(st.fixed_dictionaries({"i": st.integers(-(2**63), 2**63 - 1), "s": st.text(max_size=9)})))
def test_json_round_trip(rows: list[dict[str, Any]]) -> None:
    codec = JsonCodec(avro_type(json.dumps(NUMBERS), "a schema"), "a schema")
    found = codec.decode(pa.array([json.dumps(row).encode() for row in rows], pa.binary()))
    assert (found.array.to_pylist(), found.wrong) == (rows, {})


JSON_ORDER = {**ORDER, "fields": [one for one in ORDER["fields"] if one["name"] != "either"]}


def test_json_by_its_avro_schema() -> None:
    text = (
        b'{"id": 7, "who": "ann", "price": 12.5, "at": 1767323045006, "day": 20455, "tags": ["a", "b"], "new": {},'
        b'\n "by": {"k": 1777942923000004}, "kind": "USED", "before": "NEW", "raw": "AAECAw=="}'
    )
    found = decode(decoder(JSON_ORDER, "JSON"), [text, b'{"id": 1}', None, b"null"])
    assert not found.wrong
    rows = found.batch.to_pylist()
    assert rows[0] == {name: value for name, value in EXPECTED.items() if name != "either"}
    assert rows[1] == {**dict.fromkeys(rows[0]), "id": 1}
    assert rows[2] == rows[3] == dict.fromkeys(rows[0])
    with pytest.raises(Unsupported, match=r"union of several types at \.either"):
        decoder(ORDER, "JSON")


def test_json_that_is_none_makes_its_own_row_wrong_and_no_other() -> None:
    payloads = [
        b'{"id": 1}', b'{"id": 2}, {"id": 3}', b"", b'{"id": 4', b'"], ["', b'{"id": "5"}', b"[]", b'{"id": 6}',
        b'{"id": 99999999999999999999}', b'{"tags": ["a"]}', b"\xff", b'{"id": 7}], [{"id": 8}',
    ]  # fmt: skip
    found = decode(decoder(JSON_ORDER, "JSON"), list(payloads))
    assert found.batch["id"].to_pylist() == [1, *[None] * 6, 6, *[None] * 4]
    assert set(found.wrong) == set(range(len(payloads))) - {0, 7, 9}


def test_json_reads_numbers_that_json_cannot_spell_as_clients_write_them() -> None:
    fields = [
        {"name": "f", "type": ["null", "float"]}, {"name": "l", "type": {"type": "array", "items": "double"}},
        {"name": "i", "type": "int"}, {"name": "s", "type": "string"},
    ]  # fmt: skip
    payloads = [
        b'{"f": "NaN", "l": [1, "-Infinity"], "i": 3, "s": "NaN"}',  # Jackson
        b'{"f": NaN, "l": [Infinity], "i": 4}',  # Python
        b'{"f": "nan"}', b'{"f": 1.5, "i": "NaN"}', b'{"f": true}', b'{"i": NaN}', b'{"f": NaN',
    ]  # fmt: skip
    found = decode(decoder({"type": "record", "name": "R", "fields": fields}, "JSON"), list(payloads))
    rows = found.batch.to_pylist()
    assert [str(row["f"]) for row in rows[:3]] == ["nan", "nan", "None"]
    assert [row["l"] for row in rows[:2]] == [[1.0, float("-inf")], [float("inf")]]
    assert [(row["i"], row["s"]) for row in rows[:2]] == [(3, "NaN"), (4, None)]
    assert set(found.wrong) == {2, 3, 4, 5, 6}


def test_json_reads_java_times_and_python_enums_as_clients_write_them() -> None:
    fields = [
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {
            "name": "local",
            "type": {"type": "array", "items": {"type": "long", "logicalType": "local-timestamp-millis"}},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ]
    payloads = [
        (
            b'{"at": 1700000000.123456789, "day": [2026, 2, 28], '
            b'"local": [[2026, 2, 28, 1, 2], [1969, 12, 31, 23, 59, 59, 1000000]]}'
        ),
        b'{"at": 1700000000123456, "day": 20512, "local": [1772240520000, -999], "kind": "A"}',
        b'{"at": -0.5, "kind": 2}',
        b'{"day": [2026, 2, 30]}', b'{"day": [2026]}', b'{"at": "now"}', b'{"local": [["x"]]}', b'{"kind": true}',
        b'{"at": 1e999999999}',
    ]  # fmt: skip
    found = decode(decoder({"type": "record", "name": "R", "fields": fields}, "JSON"), list(payloads))
    assert set(found.wrong) == {3, 4, 5, 6, 7, 8}
    first, second, third, *_ = found.batch.to_pylist()
    assert first["kind"] is None
    assert {**first, "kind": "A"} == second
    assert (third["at"].microsecond, third["at"].year, third["kind"]) == (500_000, 1969, "2")


def test_a_deep_value_of_a_message_is_wrong_and_its_neighbours_are_read() -> None:
    record = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]}'
    reader = PayloadDecoder(TopicSchemas({0: PayloadSchema("JSON", record)}), where="a schema")
    payloads = [b'{"id": 1}', ('{"id": 2, "strange": ' + "[" * 100_000 + "]" * 100_000 + "}").encode(), b'{"id": 3}']
    found = reader.decode(pa.array(payloads, pa.binary()))
    assert found.batch.column("id").to_pylist() == [1, None, 3]
    assert list(found.wrong) == [1]
    assert "nested too deeply" in found.wrong[1]


def test_days_are_days() -> None:
    assert EXPECTED["day"] - date(1970, 1, 1) == timedelta(days=20455)
