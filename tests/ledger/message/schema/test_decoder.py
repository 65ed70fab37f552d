"""Goal: payloads become the columns of the newest schema, each by its own version, and what is none is named.

Method: tables of payloads of several versions and types, and payloads damaged at random.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import PayloadSchema, TopicSchemas
from tests.rigs.schema import ORDER, ROW, avro, decode, decoder


def test_only_columns_that_are_asked_for_are_decoded() -> None:
    wanted = ["before", "raw", "id"]
    for kind, payload in (
        ("AVRO", avro(ROW, ORDER)),
        ("JSON", b'{"id": 7, "at": "no time", "raw": "AAECAw==", "before": "NEW"}'),
    ):
        schema = ORDER if kind == "AVRO" else {**ORDER, "fields": [f for f in ORDER["fields"] if f["name"] != "either"]}
        found = decode(decoder(schema, kind, columns=wanted), [payload])
        assert not found.wrong
        assert found.batch.to_pylist() == [{"before": "NEW", "raw": b"\0\1\2\3", "id": 7}]
    with pytest.raises(Refused, match="the schema has no column 'nobody'"):
        decoder(ORDER, columns=["nobody"])


def test_older_avro_is_resolved_to_the_newest_version() -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "gone", "type": "string"}]}
    number = {"name": "number", "type": "long", "aliases": ["id"]}
    new = {"type": "record", "name": "R", "fields": [number, {"name": "more", "type": "string", "default": "-"}]}
    odd = {"type": "record", "name": "R", "fields": [{"name": "other", "type": "string"}]}
    schemas = TopicSchemas(
        {
            0: PayloadSchema("AVRO", json.dumps(old)),
            3: PayloadSchema("AVRO", json.dumps(odd)),
            4: PayloadSchema("STRING"),
            5: PayloadSchema("AVRO", json.dumps(new)),
        }
    )
    payloads = [
        avro({"number": 1, "more": "a"}, new), avro({"id": 2, "gone": "x"}, old), avro({"number": 3, "more": "c"}, new),
        b"text", avro({"other": "y"}, odd), avro({"id": 5, "gone": ""}, old), None,
        avro({"number": 8, "more": "h"}, new),
    ]  # fmt: skip
    found = decode(PayloadDecoder(schemas), payloads, [5, 0, -1, 4, 3, 0, 9, 9])
    assert found.batch.to_pylist() == [
        {"number": 1, "more": "a"}, {"number": 2, "more": "-"}, {"number": 3, "more": "c"},
        {"number": None, "more": None}, {"number": None, "more": None}, {"number": 5, "more": "-"},
        {"number": None, "more": None}, {"number": None, "more": None},
    ]  # fmt: skip
    assert set(found.wrong) == {3, 4, 7}
    assert found.wrong[3] == "schema version 4 is STRING, rows are read as version 5, AVRO"
    assert "number" in found.wrong[4]
    assert found.wrong[7] == "schema version 9 is not among those given (0, 3, 4, 5)"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_never_changes_what_another_payload_becomes(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["AVRO", "JSON"]))
    schema = {"type": "record", "name": "R", "fields": [{"name": "i", "type": "long"}, {"name": "s", "type": "string"}]}
    rows = data.draw(st.lists(st.fixed_dictionaries({"i": st.integers(-9, 9), "s": st.text(max_size=4)}), max_size=8))
    payloads = [avro(row, schema) if kind == "AVRO" else json.dumps(row).encode() for row in rows]
    damaged = data.draw(st.sets(st.integers(0, max(len(rows) - 1, 0)), max_size=len(rows)))
    for row in damaged:
        payloads[row] = data.draw(st.binary(max_size=12))
    reader = decoder(schema, kind)
    found = decode(reader, list(payloads))
    for row, payload in enumerate(payloads):
        alone = decode(reader, [payload])
        assert (row in found.wrong) == (0 in alone.wrong)
        assert found.batch.slice(row, 1).to_pylist() == alone.batch.to_pylist()
        if row not in damaged:
            assert found.batch.slice(row, 1).to_pylist() == [rows[row]]
