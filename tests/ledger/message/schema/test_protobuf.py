"""Goal: Protobuf messages are the columns of their descriptor.

Method: messages that `google.protobuf` wrote, golden bytes, and descriptors that are none.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2

from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import PayloadSchema, TopicSchemas
from pyspark_ledger.ledger.message.schema.protobuf import ProtobufCodec, batch_class
from tests.rigs.schema import decode


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


UNSET = {
    "id": 0, "big": Decimal(0), "name": "", "data": b"", "kind": "NEW", "line": None, "lines": [], "tags": [], "by": [],
    "at": None, "small": 0,
}  # fmt: skip


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


def described(kind: str, root: str = "shop.A") -> str:
    """The document of a message `shop.A` with one field `n` of a type, or with none."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/duration.proto")
    message = file.message_type.add(name="A")
    if kind == "int32":
        message.field.add(name="n", number=1, label=1, type=5)
    elif kind:
        message.field.add(name="n", number=1, label=1, type=11, type_name=kind)
    duration = descriptor_pb2.FileDescriptorProto()
    duration_pb2.DESCRIPTOR.CopyToProto(duration)
    kept = descriptor_pb2.FileDescriptorSet(file=[file, duration])
    return json.dumps(
        {"fileDescriptorSet": base64.b64encode(kept.SerializeToString()).decode(), "rootMessageTypeName": root}
    )


def test_protobuf_golden_bytes() -> None:
    codec = ProtobufCodec(described("int32"), None, "a schema")
    found = codec.decode(pa.array([b"\x08\x07", b"\x08" + b"\xff" * 9 + b"\x01", b"\x08\x07" * 100, b"\x08"]))
    assert found.array.to_pylist() == [{"n": 7}, {"n": -1}, {"n": 7}, None]
    assert set(found.wrong) == {3}
    codec = ProtobufCodec(described(".google.protobuf.Duration"), None, "a schema")
    assert codec.type == pa.struct([("n", pa.duration("us"))])
    (row,) = codec.decode(pa.array([b"\x0a\x05\x08\x01\x10\xe8\x07"])).array.to_pylist()
    assert row == {"n": timedelta(seconds=1, microseconds=1)}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (described(".shop.A"), "has a message shop.A that contains itself, at n"),
        (described(""), "has a message without fields at its top"),
        (described("int32", root="shop.B"), r"has no usable message 'shop.B' .*it describes shop.A"),
        (described(".shop.Gone"), "has no usable message 'shop.A'"),
        ('{"fileDescriptorSet": "?", "rootMessageTypeName": "A"}', "is no Protobuf descriptor"),
        ("[]", "is no Protobuf descriptor"),
    ],
)
def test_protobuf_descriptor_without_columns_is_refused(document: str, words: str) -> None:
    with pytest.raises((Refused, Unsupported), match=f"here {words}"):
        ProtobufCodec(document, None, "here")
