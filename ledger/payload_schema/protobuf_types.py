"""Protobuf messages as columns, by the descriptor that Pulsar registers for PROTOBUF_NATIVE.

    {"fileDescriptorSet": base64 of a FileDescriptorSet, "rootMessageTypeName": "shop.Order", …}

    int32 sint32 sfixed32 → int32 · int64 … → int64 · uint32 fixed32 → int64 · uint64 fixed64 → decimal(20, 0)
    float double bool string bytes → themselves · enum → its name as text, the number of one that has none
    message → struct · repeated → list · map → map · google.protobuf.Timestamp → timestamp(us, UTC)
    google.protobuf.Duration → duration(us)

Rules: a field without presence has its value, also the default one; a field with presence that is not set is null. A
message that contains itself is refused, naming the path.
"""

from __future__ import annotations

import base64
from typing import Any, cast

import msgspec
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from ledger.errors import Refused, Unsupported
from ledger.json_faults import JSON_FAULTS, json_fault

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
ROWS = "rows"  # the field of the message that holds many of them


def batch_class(document: str, where: str) -> tuple[Any, Descriptor]:
    """A message class with a repeated field `rows` of the described message, and the descriptor of that."""
    try:
        given = msgspec.json.decode(document)
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(given["fileDescriptorSet"], validate=True))
        root = str(given["rootMessageTypeName"])
    except (*JSON_FAULTS, KeyError, TypeError, DecodeError) as wrong:
        raise Refused(
            f"{where} is no Protobuf descriptor: {type(wrong).__name__}: {json_fault(wrong)}",
            hint='Give {"fileDescriptorSet": base64 of `protoc --include_imports --descriptor_set_out`, '
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
        found = pool.FindMessageTypeByName("ledger.payload.Rows")
    except (KeyError, TypeError, ValueError) as wrong:
        names = ", ".join(f"{file.package}.{one.name}".strip(".") for file in files.file for one in file.message_type)
        raise Refused(f"{where} has no usable message {root!r} ({wrong}); it describes {names or 'none'}") from wrong
    return _class_of(pool, found), wanted


def _class_of(pool: Any, descriptor: Descriptor) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # type: ignore[attr-defined]  # before 4.22


def _add(pool: Any, files: list[Any]) -> None:
    """Add the files, each after those that it imports."""
    known = {file.name: file for file in files}

    def add(file: Any) -> None:
        for name in file.dependency:
            if name in known:
                add(known.pop(name))
        pool.AddSerializedFile(file.SerializeToString())

    while known:
        add(known.pop(next(iter(known))))


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map."""
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


def map_sides(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """The fields of a map's key and of its value."""
    sides = cast("Descriptor", field.message_type).fields_by_name
    return sides["key"], sides["value"]


def is_repeated(field: FieldDescriptor) -> bool:
    """Whether a field holds many values."""
    said: bool | None = getattr(field, "is_repeated", None)
    if said is not None:
        return said
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)  # type: ignore[attr-defined]  # protobuf before 6


def message_type(message: Descriptor, where: str, path: str = "", inside: tuple[str, ...] = ()) -> pa.DataType:
    """The Arrow type of a message; raises Unsupported for what has no columns."""
    if message.full_name == TIMESTAMP_NAME:
        return UTC
    if message.full_name == DURATION_NAME:
        return DURATION
    if message.full_name in inside:
        raise Unsupported(
            f"{where} has a message {message.full_name} that contains itself, at {path}, which no column can hold",
            hint="Read the values as they are, without a schema",
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
    """The Arrow type of a field."""
    if is_map(field):
        key, value = map_sides(field)
        return pa.map_(single_type(key, where, path, inside), single_type(value, where, path, inside))
    single = single_type(field, where, path, inside)
    return pa.list_(pa.field("element", single)) if is_repeated(field) else single


def single_type(field: FieldDescriptor, where: str, path: str, inside: tuple[str, ...]) -> pa.DataType:
    """The Arrow type of one value of a field."""
    if field.message_type is not None:
        return message_type(field.message_type, where, path, inside)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    return _SCALARS[field.cpp_type]
