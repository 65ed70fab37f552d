"""Goal: payloads become typed rows, and undecodable payloads are reported. Method: encoded and real entries."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from pyspark_ledger.connector.rows.message_rows import Entry, PulsarRows
from pyspark_ledger.connector.rows.shape import RowOptions, RowShape, row_shape
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Unsupported
from pyspark_ledger.ledger.message.compression import LZ4, compress
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.message.schema.documents import parse_schemas
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.rows.metadata_columns import Topic
from tests.ledger.message.test_fixtures_pulsar import ROOT, lines, walk
from tests.rigs.entry import entry as single
from tests.rigs.entry import item

TOPIC = Topic.of("public/fx/persistent/orders")


def shape(payload_schema: str, **wishes: Any) -> RowShape:
    return row_shape(None, parse_schemas(payload_schema, "x"), RowOptions(**wishes), "orders")


def read(wanted: RowShape, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    found = list(PulsarRows(TOPIC, wanted).batches(entries))
    for batch in found:
        batch.validate(full=True)
    return pa.Table.from_batches(found, wanted.schema).to_pylist()


def batch(*payloads: bytes, version: bytes = b"") -> bytes:
    plain = b"".join(map(item, payloads))
    more = {"schema_version": version} if version else {}
    return single(
        compress(LZ4, plain), compression=LZ4, uncompressed_size=len(plain), num_messages_in_batch=len(payloads), **more
    )


def placed(*entries: bytes) -> list[Entry]:
    return [(Position(3, number), parse_entry(entry, "")) for number, entry in enumerate(entries)]


def test_a_real_topic_of_two_schema_versions_becomes_columns() -> None:
    text = (ROOT / "06-avro-evolution" / "schemas.json").read_text(encoding="utf-8")
    wanted = shape(text, include_metadata=True)
    assert wanted.rows.names == ["id", "who", "amount", "currency", "tags"]
    entries = [(Position(ledger, entry), parse_entry(data, "")) for ledger, entry, data in walk("06-avro-evolution")]
    rows = read(wanted, entries)
    expected = lines("06-avro-evolution", "expected.jsonl.gz", sorted({at.ledger_id for at, _ in entries}))
    assert len(rows) == len(expected)
    for row, told in zip(rows, expected, strict=True):
        place = row["__position"]
        assert (place["ledgerId"], place["entryId"], place["batchIndex"]) == (
            told["id"]["ledger"], told["id"]["entry"], told["id"]["batchIndex"],
        )  # fmt: skip
        assert row["__key"] == told["key"]
    assert {row["currency"] for row in rows} > {"EUR"}
    narrow = read(shape(text, columns=("currency", "__key")), entries)
    assert narrow == [{"currency": row["currency"], "__key": row["__key"]} for row in rows]


def test_what_cannot_be_decoded_fails_by_ledger_position_and_reason() -> None:
    entries = placed(batch(struct.pack(">q", 1), b"four", struct.pack(">q", 3)))
    with pytest.raises(
        Corrupt, match=r"message 3:0:1 of persistent://public/fx/orders cannot be decoded: 4 bytes, INT64 takes 8"
    ):
        read(shape("INT64"), entries)
    with pytest.raises(Corrupt, match=r"message 3:1 of .* schema version 7 is not among those given \(0\)"):
        read(shape("INT64"), placed(single(bytes(8)), single(bytes(8), schema_version=struct.pack(">q", 7))))


def test_or_it_is_rescued_and_the_rest_is_read() -> None:
    wanted = shape("INT64", rescue="_rescued_data", columns=("value", "__position"))
    encrypted = single(b"secret", encryption_keys=[{"key": "fxkey", "value": b"k"}])
    entries = placed(
        batch(struct.pack(">q", 1), b"four"),
        single(struct.pack(">q", 2), schema_version=b"odd"),
        encrypted,
        single(b"cut", compression=LZ4, uncompressed_size=50),
        single(b"", null_value=True),
        single(struct.pack(">q", 5)),
    )
    rows = read(wanted, entries)
    assert [row["value"] for row in rows] == [1, None, None, None, None, None, 5]
    told = [row["_rescued_data"] and json.loads(row["_rescued_data"]) for row in rows]
    assert [index for index, text in enumerate(told) if text] == [1, 2, 3, 4]
    assert told[1] == {
        "_reason": "4 bytes, INT64 takes 8", "_position": "3:0:1", "_topic": TOPIC.text,
        "payload": base64.b64encode(b"four").decode(),
    }  # fmt: skip
    assert "is not among those given" in told[2]["_reason"]
    assert "is encrypted with key 'fxkey'" in told[3]["_reason"]
    assert base64.b64decode(told[3]["payload"]) == b"secret"
    assert told[4]["_position"] == "3:3"
    assert [row["__position"]["entryId"] for row in rows] == [0, 0, 1, 2, 3, 4, 5]
    with pytest.raises(Unsupported, match="encrypted"):
        read(shape("INT64"), entries[2:])


def test_without_schemas_only_entries_can_be_undecodable() -> None:
    rows = read(row_shape(None, None, RowOptions(rescue="_r"), "x"), placed(single(b"a"), single(b"", compression=9)))
    assert rows[0] == {"value": b"a", "_r": None}
    assert rows[1]["value"] is None
    assert "compressed by codec 9" in json.loads(rows[1]["_r"])["_reason"]


def test_keys_that_lie_beside_their_values() -> None:
    said = {"type": "KEY_VALUE", "data": "{}", "properties": {
        "key.schema.type": "INT32", "value.schema.type": "STRING", "kv.encoding.type": "SEPARATED"}}  # fmt: skip
    wanted = shape(json.dumps(said), rescue="_r")
    key = base64.b64encode(struct.pack(">i", 7)).decode()
    entries = placed(
        single(b"seven", partition_key=key, partition_key_b64_encoded=True),
        single(b"none"),
        single(b"", partition_key=key, partition_key_b64_encoded=True, null_value=True),
        single(b"bad", partition_key="?", partition_key_b64_encoded=True),
    )
    rows = read(wanted, entries)
    assert [(row["key"], row["value"]) for row in rows] == [(7, "seven"), (None, "none"), (7, None), (None, "bad")]
    assert [bool(row["_r"]) for row in rows] == [False, False, False, True]


def test_avro_of_mixed_versions_in_one_group() -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    new = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "-"}],
    }
    text = json.dumps([{"version": 0, "type": "AVRO", "data": old}, {"version": 1, "type": "AVRO", "data": new}])

    def avro(row: object, schema: object) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
        return out.getvalue()

    entries = placed(
        *[
            entry
            for number in range(50)
            for entry in (
                batch(avro({"a": number}, old), avro({"a": -number}, old), version=struct.pack(">q", 0)),
                single(avro({"a": number, "b": "x"}, new), schema_version=struct.pack(">q", 1)),
            )
        ]
    )
    rows = read(shape(text), entries)
    assert rows == [
        row
        for number in range(50)
        for row in ({"a": number, "b": "-"}, {"a": -number, "b": "-"}, {"a": number, "b": "x"})
    ]


def test_every_real_topic_is_read_as_bytes_as_before() -> None:
    for topic in ("02-lz4", "10-tombstones-delayed", "15-keyvalue-inline"):
        entries = [(Position(ledger, entry), parse_entry(data, "")) for ledger, entry, data in walk(topic)]
        rows = read(row_shape(None, None, RowOptions(columns=("value",)), "x"), entries)
        sizes = [
            told["size"] for told in lines(topic, "expected.jsonl.gz", sorted({at.ledger_id for at, _ in entries}))
        ]
        assert [len(row["value"] or b"") for row in rows] == sizes


def test_an_error_is_one_of_ours() -> None:
    with pytest.raises(LedgerError, match="arrow"):
        row_shape(pa.schema([("a", pa.int64())]), None, RowOptions(columns=("arrow",)), "x")
