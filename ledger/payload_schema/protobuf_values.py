"""Protobuf payloads as columns: parsed all at once, taken apart field by field and not message by message.

    what is parsed at once:  0a length payload  0a length payload …       a message with the payloads as field 1

Rules: parsing is that of `google.protobuf`. Values of a field are taken from all messages by one call; lists and maps
are laid end to end, taken apart as one column, and cut by their lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from ledger.payload_schema.protobuf_types import (
    DURATION_NAME,
    ROWS,
    TIMESTAMP_NAME,
    UINT64,
    batch_class,
    is_map,
    is_repeated,
    map_sides,
    message_type,
)
from ledger.payload_schema.values import Values, decode_halving

_SECONDS, _NANOS = attrgetter("seconds"), attrgetter("nanos")


class ProtobufCodec:
    """Decodes messages of one descriptor; `columns` are the fields that are wanted, None for all."""

    def __init__(self, document: str, columns: Sequence[str] | None, where: str) -> None:
        self._class, self._message = batch_class(document, where)
        whole = message_type(self._message, where)
        self._columns = None if columns is None or not pa.types.is_struct(whole) else list(columns)
        self.type = whole if self._columns is None else pa.struct([whole.field(name) for name in self._columns])

    def decode(self, payloads: pa.Array) -> Values:
        """The values of payloads (binary, without nulls)."""
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
    left, digits = len(payload), bytearray(b"\x0a")
    while left > 0x7F:
        digits.append(left & 0x7F | 0x80)
        left >>= 7
    digits.append(left)
    return bytes(digits), payload


def _column(messages: list[Any], kind: Descriptor, wanted: pa.DataType, null: Any = None) -> pa.Array:
    """Messages as one column; where `null` says so, what is there means nothing."""
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
    items = _flat(chain.from_iterable(one.values() for one in values), value, wanted.item_type)
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=wanted)


def _flat(values: Iterable[Any], field: FieldDescriptor, wanted: pa.DataType) -> pa.Array:
    """Single values as a column."""
    if field.message_type is not None:
        return _column(list(values), field.message_type, wanted)
    if field.enum_type is not None:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
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
        raise ValueError(f"a time of {seconds[np.abs(seconds).argmax()]} seconds is beyond what {wanted} can state")
    found = pa.array(seconds * 10**6 + nanos // 1000, pa.int64(), mask=null)
    return found.cast(wanted)
