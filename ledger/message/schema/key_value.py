"""Key-value schema of Pulsar: a schema for keys and a schema for values.

    INLINE     key-length i32, key, value-length i32, value          the whole payload; a length of -1 means null
    SEPARATED  value                                                 the whole payload; the key is the message's key

The columns are `key` and `value`, each decoded with its own schema.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.message.byte_ranges import Bytes, Flags, Integers, cut, ranges_of
from pyspark_ledger.ledger.message.schema.documents import PRIMITIVES, PayloadSchema

_ENCODINGS = ("INLINE", "SEPARATED")


def is_separated(schema: PayloadSchema, where: str) -> bool:
    """Return whether keys are beside the payloads. Raises Refused for an unknown encoding."""
    encoding = schema.properties.get("kv.encoding.type", "INLINE")
    if encoding not in _ENCODINGS:
        raise Refused(f"{where} states the key-value encoding {encoding!r}, expected {' or '.join(_ENCODINGS)}")
    return encoding == "SEPARATED"


def both_sides(schema: PayloadSchema, where: str) -> tuple[PayloadSchema, PayloadSchema]:
    try:
        given = msgspec.json.decode(schema.data or "{}")
    except JSON_FAULTS as wrong:
        raise Refused(f"{where} is a key-value schema whose data is no JSON: {json_fault(wrong)}") from wrong
    if not isinstance(given, dict):
        raise Refused(f"{where} is a key-value schema whose data is {schema.data[:60]!r}, expected an object")
    return _side("key", given, schema.properties, where), _side("value", given, schema.properties, where)


def _side(side: str, given: dict[str, Any], properties: dict[str, str], where: str) -> PayloadSchema:
    kind = properties.get(f"{side}.schema.type")
    if kind is None:
        raise Refused(f"{where} is a key-value schema without the property '{side}.schema.type'")
    data = given.get(side, "")
    text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
    try:
        inner = msgspec.json.decode(properties.get(f"{side}.schema.properties") or "{}", type=dict[str, str])
    except JSON_FAULTS as wrong:
        raise Refused(f"{where} has no object of texts as '{side}.schema.properties': {json_fault(wrong)}") from wrong
    return PayloadSchema(kind, "" if kind in PRIMITIVES else text, inner)


def split_inline(payloads: pa.Array) -> tuple[pa.Array, pa.Array, dict[int, str]]:
    """Split INLINE payloads. Returns binary columns of keys and values, and the reason by row of each wrong payload."""
    data, starts, ends = ranges_of(payloads)
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    key_length, key_at, sound = _part(padded, starts, ends)
    key_end = np.where(sound, key_at + np.maximum(key_length, 0), starts)
    value_length, value_at, has_value = _part(padded, key_end, ends)
    value_end = value_at + np.maximum(value_length, 0)
    sound &= has_value & (value_end == ends)
    wrong = {
        row: f"{int(ends[row] - starts[row])} bytes that are not a key and a value with their lengths"
        for row in np.flatnonzero(~sound).tolist()
    }
    keys = cut(padded, key_at, key_end, ~sound | (key_length < 0))
    return keys, cut(padded, value_at, value_end, ~sound | (value_length < 0)), wrong


def _part(data: Bytes, starts: Integers, ends: Integers) -> tuple[Integers, Integers, Flags]:
    """Read the lengths of keys or values at `starts`.

    Returns the lengths (-1 for null), the starts of the bytes, and whether the bytes end within their payloads.
    """
    inside = starts + 4 <= ends
    at = np.where(inside, starts, 0)
    length = data[at[:, None] + np.arange(4)].view(">i4").reshape(-1).astype(np.int64)
    return length, starts + 4, inside & (length >= -1) & (starts + 4 + np.maximum(length, 0) <= ends)
