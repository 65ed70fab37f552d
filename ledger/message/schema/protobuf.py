"""Decoder of Protobuf payloads to columns. Pulsar registers a descriptor for a schema of type PROTOBUF_NATIVE:

    {"fileDescriptorSet": base64 of a FileDescriptorSet, "rootMessageTypeName": "shop.Order", …}

Types of columns:

    int32 sint32 sfixed32 → int32 · int64 … → int64 · uint32 fixed32 → int64 · uint64 fixed64 → decimal(20, 0)
    float double bool string bytes → the same · enum → its name as text, or its number if the number has no name
    message → struct · repeated → list · map → map · google.protobuf.Timestamp → timestamp(us, UTC)
    google.protobuf.Duration → duration(us)

All payloads are joined to one message, whose field 1 repeats. `0a` is the tag of field 1 in hexadecimal:

    0a length payload  0a length payload …

Rules
- An unset field is null if Protobuf distinguishes it from a default value. Otherwise it has its default value.
- A recursive message cannot be a column, and is refused. The error names the path.
- `google.protobuf` parses the joined message with one call. Columns are then built field by field, not row by row.
- The lists or maps of a field are concatenated, converted as one column, and split again by their lengths.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.message.schema.values import Values, decode_halving

UTC, DURATION, UINT64 = pa.timestamp("us", tz="UTC"), pa.duration("us"), pa.decimal128(20, 0)
TIMESTAMP_NAME, DURATION_NAME = "google.protobuf.Timestamp", "google.protobuf.Duration"
_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: UINT64,
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
ROWS = "rows"  # the name of field 1 in the joined message


def batch_class(document: str, where: str) -> tuple[Any, Descriptor]:
    """Return the class of the joined message, and the descriptor of the payloads' message. Raises Refused."""
    try:
        given = msgspec.json.decode(document)
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(given["fileDescriptorSet"], validate=True))
        root = str(given["rootMessageTypeName"])
    except (*JSON_FAULTS, KeyError, TypeError, DecodeError) as wrong:
        raise Refused(
            f"{where} is no Protobuf descriptor: {type(wrong).__name__}: {json_fault(wrong)}",
            hint='Give {"fileDescriptorSet": base64 of the file of `protoc --include_imports --descriptor_set_out`, '
            '"rootMessageTypeName": …} as the data of a PROTOBUF_NATIVE schema',
        ) from wrong
    pool = descriptor_pool.DescriptorPool()
    try:
        _add(pool, list(files.file))
        wanted = pool.FindMessageTypeByName(root)
        holder = descriptor_pb2.FileDescriptorProto(name="ledger/rows.proto", package="ledger.payload", syntax="proto3")
        holder.dependency.append(wanted.file.name)
        message = holder.message_type.add(name="Rows")
        message.field.add(name=ROWS, number=1, label=3, type=11, type_name=f".{root}")
        pool.Add(holder) if hasattr(pool, "Add") else pool.AddSerializedFile(holder.SerializeToString())
        joined = pool.FindMessageTypeByName("ledger.payload.Rows")
    except (KeyError, TypeError, ValueError) as wrong:
        names = ", ".join(
            f"{file.package}.{message.name}".strip(".") for file in files.file for message in file.message_type
        )
        raise Refused(f"{where} has no usable message {root!r} ({wrong}); it describes {names or 'none'}") from wrong
    return _class_of(pool, joined), wanted


def _class_of(pool: Any, descriptor: Descriptor) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # type: ignore[attr-defined]  # until 4.21


def _add(pool: Any, files: list[Any]) -> None:
    """Add the files to the pool (Protobuf's set of known types), each after the files that it imports."""
    known = {file.name: file for file in files}

    def add(file: Any) -> None:
        for name in file.dependency:
            if name in known:
                add(known.pop(name))
        pool.AddSerializedFile(file.SerializeToString())

    while known:
        add(known.pop(next(iter(known))))


def is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


def map_sides(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    sides = cast("Descriptor", field.message_type).fields_by_name
    return sides["key"], sides["value"]


def is_repeated(field: FieldDescriptor) -> bool:
    repeated: bool | None = getattr(field, "is_repeated", None)
    if repeated is not None:
        return repeated
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)  # type: ignore[attr-defined]  # protobuf before 6


def message_type(message: Descriptor, where: str, path: str = "", inside: tuple[str, ...] = ()) -> pa.DataType:
    """Return the Arrow type of a message. Raises Unsupported if a message is recursive or has no fields."""
    if message.full_name == TIMESTAMP_NAME:
        return UTC
    if message.full_name == DURATION_NAME:
        return DURATION
    if message.full_name in inside:
        raise Unsupported(
            f"{where} has a message {message.full_name} that contains itself, at {path}, and cannot be a column",
            hint="Read the values without a schema, as bytes",
        )
    if not message.fields:
        raise Unsupported(f"{where} has a message without fields at {path or 'its top'}, which has no columns")
    inside = (*inside, message.full_name)
    return pa.struct(
        [
            pa.field(field.name, field_type(field, where, f"{path}.{field.name}".strip("."), inside))
            for field in message.fields
        ]
    )


def field_type(field: FieldDescriptor, where: str, path: str, inside: tuple[str, ...]) -> pa.DataType:
    if is_map(field):
        key, value = map_sides(field)
        return pa.map_(single_type(key, where, path, inside), single_type(value, where, path, inside))
    single = single_type(field, where, path, inside)
    return pa.list_(pa.field("element", single)) if is_repeated(field) else single


def single_type(field: FieldDescriptor, where: str, path: str, inside: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        return message_type(field.message_type, where, path, inside)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    return _SCALARS[field.cpp_type]


_SECONDS, _NANOS = attrgetter("seconds"), attrgetter("nanos")


class ProtobufCodec:
    """Decoder of payloads by one descriptor. `columns` are the requested fields, None for all."""

    def __init__(self, document: str, columns: Sequence[str] | None, where: str) -> None:
        self._class, self._message = batch_class(document, where)
        whole = message_type(self._message, where)
        self._columns = None if columns is None or not pa.types.is_struct(whole) else list(columns)
        self.type = whole if self._columns is None else pa.struct([whole.field(name) for name in self._columns])

    def decode(self, payloads: pa.Array) -> Values:
        return decode_halving(payloads.to_pylist(), self._decode, self.type)

    def _decode(self, payloads: Sequence[bytes]) -> pa.Array:
        try:
            found = self._class.FromString(b"".join(chain.from_iterable(map(_framed, payloads))))
        except DecodeError as wrong:
            raise ValueError(str(wrong)) from wrong
        if not found.IsInitialized():
            raise ValueError("a required field is missing")
        rows = list(getattr(found, ROWS))
        if len(rows) != len(payloads):
            raise ValueError("the payload is not one message")
        return _column(rows, self._message, self.type)


def _framed(payload: bytes) -> tuple[bytes, bytes]:
    rest, head = len(payload), bytearray(b"\x0a")
    while rest > 0x7F:
        head.append(rest & 0x7F | 0x80)
        rest >>= 7
    head.append(rest)
    return bytes(head), payload


def _column(messages: list[Any], kind: Descriptor, wanted: pa.DataType, null: Any = None) -> pa.Array:
    """Return messages as one column. Row i is null if `null[i]` is set."""
    if kind.full_name in {TIMESTAMP_NAME, DURATION_NAME}:
        return _moments(messages, wanted, null)
    fields = [kind.fields_by_name[field.name] for field in wanted]
    columns = [_field(messages, field, into.type) for field, into in zip(fields, wanted, strict=True)]
    mask = None if null is None else pa.array(null)
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=mask)


def _field(messages: list[Any], field: FieldDescriptor, wanted: pa.DataType) -> pa.Array:
    values = list(map(attrgetter(field.name), messages))
    if is_map(field):
        return _maps(values, field, wanted)
    if is_repeated(field):
        flat = _flat(chain.from_iterable(values), field, wanted.value_type)
        return pa.ListArray.from_arrays(_offsets(values), flat, type=wanted)
    if not field.has_presence:
        return _flat(values, field, wanted)
    null = np.fromiter((not message.HasField(field.name) for message in messages), np.bool_, len(messages))
    if field.message_type is not None:
        return _column(values, field.message_type, wanted, null)
    flat = _flat(values, field, wanted)
    return flat.take(pa.array(np.arange(len(flat)), mask=null)) if null.any() else flat


def _maps(values: list[Any], field: FieldDescriptor, wanted: pa.DataType) -> pa.Array:
    key, value = map_sides(field)
    keys = _flat(chain.from_iterable(values), key, wanted.key_type)
    items = _flat(chain.from_iterable(entries.values() for entries in values), value, wanted.item_type)
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=wanted)


def _flat(values: Iterable[Any], field: FieldDescriptor, wanted: pa.DataType) -> pa.Array:
    if field.message_type is not None:
        return _column(list(values), field.message_type, wanted)
    if field.enum_type is not None:
        names = {number: symbol.name for number, symbol in field.enum_type.values_by_number.items()}
        return pa.array([names.get(number, str(number)) for number in values], wanted)
    return pa.array(list(map(Decimal, values)) if wanted == UINT64 else list(values), wanted)


def _offsets(values: list[Any]) -> pa.Array:
    edges = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=edges[1:])
    return pa.array(edges)


def _moments(messages: list[Any], wanted: pa.DataType, null: Any) -> pa.Array:
    count = len(messages)
    seconds = np.fromiter(map(_SECONDS, messages), np.int64, count)
    nanos = np.fromiter(map(_NANOS, messages), np.int64, count)
    if count and np.abs(seconds).max() > 2**63 // 10**6 - 1:
        raise ValueError(f"a time of {seconds[np.abs(seconds).argmax()]} seconds is outside of the range of {wanted}")
    found = pa.array(seconds * 10**6 + nanos // 1000, pa.int64(), mask=null)
    return found.cast(wanted)
