"""Goal: no schema stops the readers of a ledger. Method: bytes of each kind, before a schema is stored and after."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message.columns import schema_bytes, schema_from_bytes
from pyspark_ledger.ledger.message.schema.documents import SCHEMA_BYTES_MAX, PayloadSchema, schema_bytes_of
from pyspark_ledger.ledger.message.schema.registration import (
    NESTING_MAX,
    nesting,
    readable_versions,
    require_schema,
    require_successor,
)

COLUMNS = pa.schema([("a", pa.int32()), ("b", pa.map_(pa.string(), pa.list_(pa.float64())))])
GOOD, TEXT = schema_bytes(COLUMNS), schema_bytes_of(PayloadSchema("STRING"))
AVRO = schema_bytes_of(PayloadSchema("AVRO", '{"type": "record", "name": "r", "fields": []}'))
BAD_NAME = GOOD.replace(b"\x01\x00\x00\x00a\x00", b"\x01\x00\x00\x00\xff\x00")
BAD_AVRO = schema_bytes_of(PayloadSchema("AVRO", '{"type": '))
BAD = (b"", b"garbage", b"\xff\xff\xff\xff", b"{", b'{"type": "NONE"}', b'{"a": ' * 5000, GOOD[:-9], BAD_NAME, BAD_AVRO)


def nested(depth: int) -> pa.DataType:
    kind: pa.DataType = pa.int64()
    while nesting(kind) < depth:
        kind = pa.list_(kind) if nesting(kind) % 2 else pa.struct([("a", kind), ("b", pa.string())])
    return kind


def test_sound_schemas_are_taken() -> None:
    for body in (GOOD, TEXT, AVRO, schema_bytes(pa.schema([])), schema_bytes(pa.schema([("deep", nested(20))]))):
        require_schema(body, "orders")


@pytest.mark.parametrize("body", BAD)
def test_bytes_that_no_reader_can_use_are_refused(body: bytes) -> None:
    assert body != GOOD
    with pytest.raises(Refused, match="orders"):
        require_schema(body, "orders")
    if body[:1] != b"{":
        with pytest.raises(Corrupt, match=r"orders.*ledger restore-schema orders"):
            schema_from_bytes(body, "orders")


def test_size_depth_and_repeated_names_are_bounded() -> None:
    with pytest.raises(Refused, match=f"has {SCHEMA_BYTES_MAX + 1} bytes, at most {SCHEMA_BYTES_MAX} are allowed"):
        require_schema(bytes(SCHEMA_BYTES_MAX + 1), "orders")
    deep = pa.schema([("a", pa.int64()), ("deep", nested(NESTING_MAX + 1))])
    with pytest.raises(Refused, match=r"column 'deep' for ledger 'orders' nests \d+ types, at most 64 are allowed"):
        require_schema(schema_bytes(deep), "orders")
    with pytest.raises(Refused, match="more than one column 'a'"):
        require_schema(schema_bytes(pa.schema([("a", pa.int64()), ("a", pa.int64())])), "orders")


def test_columns_only_grow_and_keep_their_kind() -> None:
    wider = pa.schema([("a", pa.int64()), COLUMNS.field("b"), ("c", pa.string())])
    require_successor(schema_bytes(wider), "orders", [GOOD])
    require_successor(schema_bytes_of(PayloadSchema("INT64")), "orders", [TEXT])
    require_successor(GOOD, "orders", [])
    for body, versions, said in (
        (
            schema_bytes(wider.remove(2)),
            [GOOD, schema_bytes(wider)],
            "has column 'c', which the schema to register lacks",
        ),
        (schema_bytes(COLUMNS.set(0, pa.field("a", pa.string()))), [GOOD], "is int32, and cannot become string"),
        (TEXT, [GOOD], "has rows with columns"),
        (GOOD, [TEXT], "has messages with a payload schema"),
        (b"garbage", [], "neither Arrow columns"),
    ):
        with pytest.raises(Refused, match=said):
            require_successor(body, "orders", versions)


@pytest.mark.parametrize(
    ("versions", "left"),
    [
        ([], 0),
        ([GOOD, GOOD], 2),
        ([GOOD, b"garbage"], 1),
        ([GOOD, b"garbage", b"{", TEXT], 1),
        ([b"garbage", b"garbage"], 0),
        ([TEXT, TEXT, GOOD], 2),
        ([b"garbage", GOOD], 2),
    ],
)
def test_only_unusable_versions_at_the_end_are_deleted(versions: list[bytes], left: int) -> None:
    assert readable_versions("orders", versions) == left
