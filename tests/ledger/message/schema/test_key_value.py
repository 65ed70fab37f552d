"""Goal: keys and values are taken from payloads as their encoding says.

Method: golden bytes, round trips, topics of a real Pulsar, and schemas that are none.
"""

from __future__ import annotations

import json
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.batch_decoder import decode_messages
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import PayloadSchema, TopicSchemas, parse_schemas
from pyspark_ledger.ledger.message.schema.key_value import both_sides, is_separated, split_inline
from tests.ledger.message.test_fixtures_pulsar import ROOT, walk
from tests.rigs.schema import decode


def key_value(kinds: tuple[str, str], data: object, **properties: str) -> TopicSchemas:
    said = {"key.schema.type": kinds[0], "value.schema.type": kinds[1], **properties}
    return TopicSchemas({0: PayloadSchema("KEY_VALUE", json.dumps(data), said)})


def inline(*parts: bytes | None) -> bytes:
    return b"".join(b"\xff\xff\xff\xff" if part is None else struct.pack(">i", len(part)) + part for part in parts)


def test_inline_golden_bytes() -> None:
    golden = bytes.fromhex("000000016bffffffff")
    assert inline(b"k", None) == golden
    keys, values, wrong = split_inline(pa.array([golden]))
    assert (keys.to_pylist(), values.to_pylist(), wrong) == ([b"k"], [None], {})


PART = st.none() | st.binary(max_size=9)


@given(st.lists(st.tuples(PART, PART)))
def test_inline_round_trip(pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    keys, values, wrong = split_inline(pa.array([inline(*pair) for pair in pairs], pa.binary()))
    assert (list(zip(keys.to_pylist(), values.to_pylist(), strict=True)), wrong) == (pairs, {})


def test_inline_payload_that_does_not_fit_its_lengths_is_wrong() -> None:
    good = inline(b"k", b"v")
    damaged = [good + b"x", good[:-1], good[:5], b"", b"\xff\xff\xff\xfe" + good[4:], good[:5] + b"\x7f" + good[6:]]
    keys, values, wrong = split_inline(pa.array([good, *damaged]))
    assert (keys.to_pylist(), values.to_pylist()) == ([b"k", *[None] * 6], [b"v", *[None] * 6])
    assert wrong[1] == "11 bytes that are not a key and a value with their lengths"
    assert set(wrong) == set(range(1, 7))


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
    ("data", "properties", "words"),
    [
        ("{", {}, "whose data is no JSON"),
        ("[]", {}, r"whose data is '\[\]', expected an object"),
        ("", {}, "without the property 'key.schema.type'"),
        (
            "",
            {"key.schema.type": "INT8", "key.schema.properties": "[]"},
            "no object of texts as 'key.schema.properties'",
        ),
    ],
)
def test_both_sides_refuse_what_states_none(data: str, properties: dict[str, str], words: str) -> None:
    with pytest.raises(Refused, match=f"here .*{words}"):
        both_sides(PayloadSchema("KEY_VALUE", data, properties), "here")


def test_an_encoding_that_does_not_exist_is_refused() -> None:
    schemas = [PayloadSchema("KEY_VALUE", "", {"kv.encoding.type": said}) for said in ("INLINE", "SEPARATED", "BOTH")]
    assert [is_separated(schema, "here") for schema in schemas[:2]] == [False, True]
    with pytest.raises(Refused, match="the key-value encoding 'BOTH', expected INLINE or SEPARATED"):
        is_separated(schemas[2], "here")


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
