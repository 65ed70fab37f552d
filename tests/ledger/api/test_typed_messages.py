"""Goal: messages are objects of a class by the payload schemas of their ledger, in both directions.

Method: a broker, and schemas of each type. Payloads are encoded here, or by the type's own library.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Annotated, Any, Literal

import fastavro
import msgspec
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported

AT = datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)


class Stop(msgspec.Struct):
    place: str
    at: datetime | None


class Event(msgspec.Struct):
    user: str
    at: datetime
    day: date
    share: float
    cents: Annotated[Decimal, pa.decimal128(9, 2)]
    raw: bytes
    kind: Literal["A", "B"]
    tags: list[str]
    by_name: dict[str, int | None]
    stop: Stop | None = None


def named(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
STOP = {"type": "record", "name": "Stop", "fields": [named("place", "string"), named("at", ["null", MICROS])]}
EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        named("user", "string"),
        named("at", {"type": "long", "logicalType": "timestamp-millis"}),
        named("day", {"type": "int", "logicalType": "date"}),
        named("share", "double"),
        named("cents", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        named("raw", "bytes"),
        named("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
        named("tags", {"type": "array", "items": "string"}),
        named("by_name", {"type": "map", "values": ["null", "int"]}),
        named("stop", ["null", STOP]),
        named("more", ["null", "string"]),
    ],
}  # fmt: skip
EVENTS = [
    Event("ada", AT, AT.date(), 0.5, Decimal("1.25"), b"\x00\xff", "A", [], {}, Stop("paris", AT)),
    Event(
        "bob", AT, AT.date(), float("inf"), Decimal("-7.00"), b"", "B", ["x"], {"k": 1, "n": None}, Stop("rome", None)
    ),
    Event("eve", AT, AT.date(), -1.0, Decimal(0), b"r", "B", ["x", "y"], {}),
]


def events(store: LedgerStore, kind: str, schema: Any = EVENT) -> Ledger[Event]:
    ledger = store.ledger("events")
    for part in ledger.partitions() if isinstance(ledger, PartitionedLedger) else [ledger]:
        part.register_payload_schemas(json.dumps({"type": kind, "schema": schema}))
    return store.ledger("events", Event)


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
@pytest.mark.parametrize("partitions", [0, 2])
def test_objects_are_sent_and_read(store: LedgerStore, kind: str, partitions: int) -> None:
    if partitions:
        store.create_partitioned("events", partitions)
    ledger = events(store, kind)
    with ledger.producer() as producer:
        for event in EVENTS:
            producer.send(event, key=event.user)
    assert sorted(ledger.rows(), key=lambda event: event.user) == EVENTS
    store.client.close()


def test_bytes_are_sent_as_they_are_and_avro_is_that_of_its_library(store: LedgerStore) -> None:
    ledger = events(store, "AVRO")
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(EVENT), msgspec.structs.asdict(EVENTS[0]) | {"stop": None})
    with ledger.producer() as producer:
        producer.send(stream.getvalue())
        producer.send(msgspec.structs.replace(EVENTS[0], stop=None))
    assert list(ledger.rows()) == [msgspec.structs.replace(EVENTS[0], stop=None)] * 2
    assert ledger.read()["value"].to_pylist() == [stream.getvalue()] * 2
    store.client.close()


def test_a_wrong_object_is_refused_and_sends_nothing(store: LedgerStore) -> None:
    ledger = events(store, "JSON")
    wrong = {"user": 1, "at": AT.replace(microsecond=1), "cents": Decimal("1.234"), "kind": "C", "tags": [None]}
    with ledger.producer() as producer:
        for name, value in wrong.items():
            with pytest.raises(
                Refused, match=rf"(field '{name}.* of class Event|cannot be encoded by schema version 0)"
            ):
                producer.send(msgspec.structs.replace(EVENTS[0], **{name: value}))
        with pytest.raises(Refused, match=r"it is 'text' .*expected Event"):
            producer.send("text")  # type: ignore[arg-type]
        assert producer.last_sequence_id == -1
    assert list(ledger.rows()) == []
    store.client.close()


def test_a_class_that_does_not_fit_the_payloads_is_refused(store: LedgerStore) -> None:
    early = store.ledger("events", Event)
    other = {**EVENT, "fields": [named("user", "long") if f["name"] == "user" else f for f in EVENT["fields"]]}  # type: ignore[index]
    with pytest.raises(
        Refused, match=r"field 'user' of class Event is str, and the column of ledger '.*/events' is int64"
    ):
        events(store, "JSON", other)
    for call in (lambda: list(early.rows()), early.producer, lambda: early.append(EVENTS)):
        with pytest.raises(Refused, match=r"field 'user' of class Event is str|has messages with a payload schema"):
            call()
    store.client.close()


def test_messages_without_a_schema_are_refused(store: LedgerStore) -> None:
    ledger = store.ledger("events", Event)
    store.ledger("events").append(b"{}")
    for call in (ledger.producer, lambda: list(ledger.rows())):
        with pytest.raises(
            Refused, match=r"ledger '.*/events' has messages and no payload schema, so RowType\(Event\)"
        ):
            call()
    store.client.close()


def test_a_wrong_payload_is_named_by_its_position(store: LedgerStore) -> None:
    ledger = events(store, "JSON")
    with ledger.producer() as producer:
        producer.send(EVENTS[0]).result()
        place = producer.send(b"no json").result()
    found = ledger.rows()
    with pytest.raises(
        Corrupt, match=rf"message {place.ledger_id}:{place.entry_id} of persistent://.* cannot be decoded"
    ):
        list(found)
    store.ledger("nulls").register_payload_schemas(json.dumps({"type": "JSON", "schema": EVENT}))
    nulls = store.ledger("nulls", Event)
    with nulls.producer() as producer:
        place = producer.send(None, key="k").result()
    with pytest.raises(Refused, match=rf"message {place.ledger_id}:{place.entry_id} of .*: field 'user' .* is null"):
        list(nulls.rows())
    store.client.close()


def test_payloads_of_several_versions_are_one_class(store: LedgerStore) -> None:
    first = {"type": "record", "name": "E", "fields": [named("id", "int")]}
    second = {**first, "fields": [named("id", "long"), {**named("name", "string"), "default": "old"}]}

    class Named(msgspec.Struct):
        id: int
        name: str

    ledger = store.ledger("events")
    ledger.register_payload_schemas(json.dumps([{"type": "AVRO", "schema": first}]))
    with ledger.producer() as producer:
        producer.send(b"\x02")
    ledger.register_payload_schemas(json.dumps([{"type": "AVRO", "schema": schema} for schema in (first, second)]))
    typed = store.ledger("events", Named)
    with typed.producer() as sender:
        sender.send(Named(2, "new"))
    assert list(typed.rows()) == [Named(1, "old"), Named(2, "new")]
    store.client.close()


class Shape(msgspec.Struct):
    name: str
    sides: list[int]


def test_protobuf_is_read_and_its_producer_refused_by_name(store: LedgerStore) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="shape.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Shape")
    message.field.add(name="name", number=1, label=1, type=9)
    message.field.add(name="sides", number=2, label=3, type=3)
    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    data = {"fileDescriptorSet": base64.b64encode(files).decode(), "rootMessageTypeName": "shop.Shape"}
    ledger = store.ledger("shapes")
    ledger.register_payload_schemas(json.dumps({"type": "PROTOBUF_NATIVE", "schema": json.dumps(data)}))
    with ledger.producer() as producer:
        producer.send(b"\x0a\x03box\x12\x02\x01\x02")  # name: "box", sides: [1, 2]
    typed = store.ledger("shapes", Shape)
    assert list(typed.rows()) == [Shape("box", [1, 2])]
    with pytest.raises(Unsupported, match=r"schema version 0 of ledger '.*/shapes' is of type PROTOBUF_NATIVE"):
        typed.producer()
    store.client.close()


class Pair(msgspec.Struct):
    key: str
    value: int


def test_a_separate_key_is_a_field(store: LedgerStore) -> None:
    pair = {
        "type": "KEY_VALUE",
        "schema": json.dumps({"key": {"type": "STRING", "schema": ""}, "value": {"type": "INT32", "schema": ""}}),
        "properties": {
            "kv.encoding.type": "SEPARATED",
            "key.schema.type": "STRING",
            "value.schema.type": "INT32",
        },
    }
    ledger = store.ledger("pairs")
    ledger.register_payload_schemas(json.dumps(pair))
    with ledger.producer() as producer:
        producer.send(b"\x00\x00\x00\x07", key=b"seven")
    assert list(store.ledger("pairs", Pair).rows()) == [Pair("seven", 7)]
    store.client.close()


class Rare(msgspec.Struct):
    gift: bool | None
    raw: bytes | None
    kind: str | None
    flags: list[bool | None]
    by_name: dict[str, bool | None]
    empty: int | None = None


class NoGift(msgspec.Struct):
    raw: bytes
    kind: str
    flags: list[bool]
    by_name: dict[str, bool]


RARE = {
    "type": "record",
    "name": "Rare",
    "fields": [
        named("gift", "boolean"),
        named("raw", {"type": "fixed", "name": "Two", "size": 2}),
        named("kind", ["null", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}]),
        named("flags", {"type": "array", "items": "boolean"}),
        named("by_name", {"type": "map", "values": "boolean"}),
        named("empty", "null"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_a_value_that_its_schema_does_not_allow_is_not_sent(store: LedgerStore, kind: str) -> None:
    store.ledger("rare").register_payload_schemas(json.dumps({"type": kind, "schema": RARE}))
    ledger, good = store.ledger("rare", Rare), Rare(True, b"ab", "A", [True], {"k": False})
    wrong = [
        ("gift", {"gift": None}, "null"), ("raw", {"raw": b"abc"}, "3 bytes, expected 2"),
        ("raw", {"raw": None}, "null"), ("kind", {"kind": "C"}, "'C', expected one of A, B"),
        (r"flags\.element", {"flags": [True, None]}, "null"), (r"by_name\.value", {"by_name": {"k": None}}, "null"),
        ("empty", {"empty": 1}, "1, expected null"),
    ]  # fmt: skip
    with ledger.producer() as producer:
        for field, change, words in wrong:
            with pytest.raises(Refused, match=rf"cannot be encoded by schema version 0 .*: field '{field}' .*{words}"):
                producer.send(msgspec.structs.replace(good, **change))
        producer.send(good)
        producer.send(msgspec.structs.replace(good, kind=None))
    with (
        store.ledger("rare", NoGift).producer() as other,
        pytest.raises(Refused, match="field 'gift' is null, expected boolean"),
    ):
        other.send(NoGift(b"ab", "A", [], {}))
    assert list(ledger.rows()) == [good, msgspec.structs.replace(good, kind=None)]
    store.client.close()


class Either(msgspec.Struct):
    member_int: int | None = None
    member_string: str | None = None


class Unions(msgspec.Struct):
    value: Either | None
    other: Either | None = None


def test_a_union_has_exactly_one_member(store: LedgerStore) -> None:
    fields = [named("value", ["int", "string"]), named("other", ["null", "int", "string"])]
    schema = {"type": "record", "name": "U", "fields": fields}
    store.ledger("unions").register_payload_schemas(json.dumps({"type": "AVRO", "schema": schema}))
    ledger = store.ledger("unions", Unions)
    good = [Unions(Either(1)), Unions(Either(None, "x"), Either(2))]
    with ledger.producer() as producer:
        for wrong, words in [
            (Unions(Either(1, "x")), "'value' has 2 members"), (Unions(Either()), "'value' has 0 members"),
            (Unions(None), "'value' is null"), (Unions(Either(1), Either()), "'other' has 0 members"),
        ]:  # fmt: skip
            with pytest.raises(Refused, match=words):
                producer.send(wrong)
        for each in good:
            producer.send(each)
    assert list(ledger.rows()) == good
    store.client.close()
