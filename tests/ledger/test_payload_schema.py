"""Goal: payloads become the columns that their schema says, and what is none is named. Method: tables and real bytes.

Avro is written by `fastavro`, Protobuf by `google.protobuf`, JSON by hand; the topics of `tests/fixtures/pulsar` were
written by Pulsar's own clients.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.entry import parse_entry
from ledger.errors import Refused, Unsupported
from ledger.payload_schema.decoder import Decoded, PayloadDecoder
from ledger.payload_schema.documents import PayloadSchema, TopicSchemas, parse_schemas
from ledger.payload_schema.protobuf_types import batch_class
from ledger.pulsar_payload import decode_messages
from tests.ledger.test_fixtures_pulsar import ROOT, walk

UTC_US, LOCAL_US = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "by", "type": {"type": "map", "values": {"type": "long", "logicalType": "local-timestamp-micros"}}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "USED"]}},
        {"name": "before", "type": ["null", "Kind"], "default": None},
        {"name": "either", "type": ["null", "string", "long", {"type": "record", "name": "P", "fields": [
            {"name": "x", "type": "int"}]}]},
        {"name": "raw", "type": {"type": "fixed", "name": "Four", "size": 4}},
    ],
}  # fmt: skip
ROW = {
    "id": 7, "who": "ann", "price": Decimal("12.50"), "at": datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC),
    "day": date(2026, 1, 2), "tags": ["a", "b"], "by": {"k": datetime(2026, 5, 5, 1, 2, 3, 4)},  # noqa: DTZ001
    "kind": "USED", "before": "NEW", "either": {"x": 3}, "raw": b"\0\1\2\3",
}  # fmt: skip
EXPECTED = {
    **ROW,
    "by": [("k", datetime(2026, 5, 5, 1, 2, 3, 4))],  # noqa: DTZ001
    "either": {"member_string": None, "member_long": None, "member_P": {"x": 3}},
}


def avro(row: object, schema: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return out.getvalue()


def decoder(schema: Any, kind: str = "AVRO", **more: Any) -> PayloadDecoder:
    return PayloadDecoder(TopicSchemas({0: PayloadSchema(kind, json.dumps(schema))}), **more)


def decode(reader: PayloadDecoder, payloads: list[bytes | None], versions: list[int] | None = None) -> Decoded:
    stated = None if versions is None else np.array(versions, dtype=np.int64)
    found = reader.decode(pa.array(payloads, pa.binary()), stated)
    found.batch.validate(full=True)
    assert found.batch.num_rows == len(payloads)
    return found


def test_avro_types_become_columns() -> None:
    found = decode(decoder(ORDER), [avro(ROW, ORDER), avro({**ROW, "who": None, "either": None}, ORDER)])
    assert not found.wrong
    assert found.batch.schema.field("price").type == pa.decimal128(9, 2)
    assert found.batch.schema.field("at").type == UTC_US
    assert found.batch.to_pylist() == [EXPECTED, {**EXPECTED, "who": None, "either": None}]


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


def test_key_values_of_a_real_pulsar() -> None:
    schemas = parse_schemas((ROOT / "15-keyvalue-inline" / "schemas.json").read_bytes(), "schemas.json")
    payloads = [
        None if message.value is None else bytes(message.value)
        for ledger, entry, data in walk("15-keyvalue-inline")
        for message in decode_messages(parse_entry(data, ""), f"{ledger}:{entry}")
    ]
    found = decode(PayloadDecoder(schemas), payloads)
    assert not found.wrong
    assert found.batch.schema == pa.schema([("key", pa.string()), ("value", pa.int64())])
    keys, values = found.batch["key"].to_pylist(), found.batch["value"].to_pylist()
    assert keys[:2] == ["key0", "key1"]
    assert values[:3] == [1, 2, 4]
    assert None in keys or None in values
    only = decode(PayloadDecoder(schemas, ["value"]), payloads)
    assert only.batch.to_pydict() == {"value": values}


def key_value(kinds: tuple[str, str], data: object, **properties: str) -> TopicSchemas:
    said = {"key.schema.type": kinds[0], "value.schema.type": kinds[1], **properties}
    return TopicSchemas({0: PayloadSchema("KEY_VALUE", json.dumps(data), said)})


def test_key_values_inline_and_apart() -> None:
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    schemas = key_value(("AVRO", "INT32"), {"key": point, "value": ""})
    one = b"\0\0\0\1\x06" + b"\0\0\0\4\0\0\0\x09"
    found = decode(
        PayloadDecoder(schemas), [one, b"\xff\xff\xff\xff" * 2, None, one[:-1], b"", b"\0\0\0\1\x06\0\0\0\1\0"]
    )
    assert found.batch.to_pydict() == {"key": [{"x": 3}, None, None, None, None, None], "value": [9] + [None] * 5}
    assert set(found.wrong) == {3, 4, 5}
    assert found.wrong[5] == "value: 1 bytes, INT32 takes 4"
    apart = PayloadDecoder(
        key_value(("STRING", "JSON"), {"value": json.dumps(point)}, **{"kv.encoding.type": "SEPARATED"})
    )
    assert apart.needs_keys
    decoded = apart.decode(pa.array([b'{"x": 1}', None], pa.binary()), None, pa.array([b"a", b"b"]))
    assert decoded.batch.to_pylist() == [{"key": "a", "value": {"x": 1}}, {"key": "b", "value": None}]


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        ("BOOLEAN", b"\1", True),
        ("INT8", b"\xff", -1),
        ("INT16", b"\1\0", 256),
        ("INT32", struct.pack(">i", -5), -5),
        ("INT64", struct.pack(">q", 2**60), 2**60),
        ("FLOAT", struct.pack(">f", 1.5), 1.5),
        ("DOUBLE", struct.pack(">d", -2.25), -2.25),
        ("STRING", "héllo".encode(), "héllo"),
        ("BYTES", b"\0\xff", b"\0\xff"),
        ("DATE", struct.pack(">q", 86_400_001), datetime(1970, 1, 2, 0, 0, 0, 1000, tzinfo=UTC)),
        ("TIME", struct.pack(">q", 1), datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
        ("TIMESTAMP", struct.pack(">q", -1), datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
        ("INSTANT", struct.pack(">qi", 2, 3999), datetime(1970, 1, 1, 0, 0, 2, 3, tzinfo=UTC)),
        ("LOCAL_DATE", struct.pack(">q", -1), date(1969, 12, 31)),
        ("LOCAL_TIME", struct.pack(">q", 77), 77),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 1, 5000), datetime(1970, 1, 2, 0, 0, 0, 5)),  # noqa: DTZ001
    ],
)
def test_primitives(kind: str, payload: bytes, value: object) -> None:
    reader = PayloadDecoder(TopicSchemas({0: PayloadSchema(kind)}))
    found = decode(reader, [payload, None, payload])
    assert not found.wrong
    assert found.batch.to_pydict() == {"value": [value, None, value]}
    if kind not in {"STRING", "BYTES"}:
        short = decode(reader, [payload, payload + b"x", b"", payload])
        assert short.batch["value"].to_pylist() == [value, None, None, value]
        assert short.wrong[2] == f"0 bytes, {kind} takes {len(payload)}"


def test_a_primitive_that_its_column_cannot_state_is_wrong() -> None:
    for kind, payload in (
        ("STRING", b"\xff"), ("TIMESTAMP", struct.pack(">q", 2**62)), ("LOCAL_DATE", struct.pack(">q", 2**40)),
        ("INSTANT", struct.pack(">qi", 2**62, 0)), ("LOCAL_DATE_TIME", struct.pack(">qq", 0, -1)),
        ("LOCAL_TIME", struct.pack(">q", -1)),
    ):  # fmt: skip
        found = decode(PayloadDecoder(TopicSchemas({0: PayloadSchema(kind)})), [payload])
        assert found.batch.to_pydict() == {"value": [None]}
        assert kind in found.wrong[0]


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


def test_numbers_that_json_cannot_spell_are_read_as_pulsars_clients_write_them() -> None:
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


def test_times_of_java_and_enums_of_python_are_read_as_their_clients_write_them() -> None:
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


def proto_schema() -> tuple[TopicSchemas, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="USED", number=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="ByEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".shop.Line")
    line = file.message_type.add(name="Line")
    line.field.add(name="n", number=1, label=1, type=5)
    for number, (name, label, of, type_name) in enumerate(
        [
            ("id", 1, 3, ""), ("big", 1, 4, ""), ("name", 1, 9, ""), ("data", 1, 12, ""), ("kind", 1, 14, ".shop.Kind"),
            ("line", 1, 11, ".shop.Line"), ("lines", 3, 11, ".shop.Line"), ("tags", 3, 9, ""),
            ("by", 3, 11, ".shop.Order.ByEntry"), ("at", 1, 11, ".google.protobuf.Timestamp"), ("small", 1, 13, ""),
        ],
        1,
    ):  # fmt: skip
        order.field.add(name=name, number=number, label=label, type=of, type_name=type_name or None)
    from google.protobuf import timestamp_pb2

    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    files = descriptor_pb2.FileDescriptorSet(file=[file, stamp])
    data = json.dumps(
        {
            "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
            "rootMessageTypeName": "shop.Order",
            "rootFileDescriptorName": "shop.proto",
        }
    )
    rows, _ = batch_class(data, "")
    return TopicSchemas({0: PayloadSchema("PROTOBUF_NATIVE", data)}), rows


def test_protobuf_by_its_descriptor() -> None:
    schemas, rows = proto_schema()
    full = rows().rows.add(id=-7, big=2**64 - 1, name="ann", data=b"\xff", kind=1, tags=["a", "b"], small=2**32 - 1)
    full.line.n = 3
    full.lines.add(n=1)
    full.lines.add(n=2)
    full.by["k"].n = 5
    full.at.seconds, full.at.nanos = 1, 2000
    strange = rows().rows.add(kind=9)
    payloads = [full.SerializeToString(), b"", None, b"\xff\xff", strange.SerializeToString(), b"\x1a\x02\xff\xfe"]
    found = decode(PayloadDecoder(schemas), payloads)
    assert set(found.wrong) == {3, 5}
    assert found.batch.to_pylist() == [
        {
            "id": -7, "big": Decimal(2**64 - 1), "name": "ann", "data": b"\xff", "kind": "USED", "line": {"n": 3},
            "lines": [{"n": 1}, {"n": 2}], "tags": ["a", "b"], "by": [("k", {"n": 5})],
            "at": datetime(1970, 1, 1, 0, 0, 1, 2, tzinfo=UTC), "small": 2**32 - 1,
        },
        UNSET, dict.fromkeys(UNSET), dict.fromkeys(UNSET), {**UNSET, "kind": "9"}, dict.fromkeys(UNSET),
    ]  # fmt: skip
    assert decode(PayloadDecoder(schemas, ["tags"]), payloads[:2]).batch.to_pylist() == [
        {"tags": ["a", "b"]},
        {"tags": []},
    ]


UNSET = {
    "id": 0, "big": Decimal(0), "name": "", "data": b"", "kind": "NEW", "line": None, "lines": [], "tags": [], "by": [],
    "at": None, "small": 0,
}  # fmt: skip


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


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("int64", "here is 'int64', which is no JSON"),
        ("{}", "here has {} where a schema is expected"),
        ("[]", "here holds no schema"),
        ('{"type": "AUTO_CONSUME"}', "type AUTO_CONSUME, which says nothing"),
        ('[{"version": -1, "type": "INT8"}]', "has -1 as a schema's version"),
        ('[{"version": 1, "type": "INT8"}, {"version": 1, "type": "INT16"}]', "states schema version 1 twice"),
        ('{"type": "AVRO", "data": "{"}', "is no Avro schema"),
        ('{"type": "PROTOBUF", "data": ""}', "of type PROTOBUF, which states no descriptor"),
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


def test_days_are_days() -> None:
    assert EXPECTED["day"] - date(1970, 1, 1) == timedelta(days=20455)
