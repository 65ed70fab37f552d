"""Decoder of JSON payloads. Pulsar registers an Avro schema for them. `msgspec` parses the JSON.

Rules
- If a field has another JSON type than in the schema, the payload cannot be decoded. A missing field is null, and an
  unknown field is ignored. Fields that are not requested are skipped in the text.
- Bytes are base64, as Java's JSON library Jackson writes them. Times are numbers, as in Avro. An enum is text.
- If the fast decoder fails, a slow decoder accepts other forms of Pulsar's clients. Jackson writes `"NaN"`, and Python
  writes `NaN` and numbers for enums. Jackson writes a `java.time` instant as seconds with a fraction, and a date or
  local time as a list of its parts.
- A union of several types is refused, because JSON does not name the type of a value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from types import NoneType
from typing import Any, TypedDict

import msgspec
import pyarrow as pa

from pyspark_ledger.ledger.errors import Unsupported
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.message.schema.avro import AvroType
from pyspark_ledger.ledger.message.schema.values import Values, decode_halving

_SIMPLE: dict[str, Any] = {
    "null": NoneType, "boolean": bool, "int": int, "long": int, "float": float, "double": float, "bytes": bytes,
    "string": str,
}  # fmt: skip
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_EPOCH, _DAY_S = date(1970, 1, 1), 24 * 3600
_PER_SECOND = {"ms": 10**3, "us": 10**6}


class JsonCodec:
    """Decoder of JSON texts to values of an Avro type."""

    def __init__(self, reader: AvroType, where: str) -> None:
        self.type = reader.column
        self._decoded = reader.decoded
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Types(where).of(reader.schema, "") | None)
        self._rare: Any = _Types(where, enum=_Symbol).of(reader.schema, "") | None

    def decode(self, payloads: pa.Array) -> Values:
        return decode_halving(payloads.to_pylist(), self._decode, self.type)

    def _decode(self, payloads: Sequence[bytes]) -> pa.Array:
        try:
            found = list(map(self._decoder.decode, payloads))
        except JSON_FAULTS:
            found = list(map(self._decode_rare, payloads))
        return pa.array(found, self._decoded).cast(self.type)

    def _decode_rare(self, payload: bytes) -> Any:
        """Decode a payload that may contain the other forms. For a wrong payload, raises the fast decoder's error."""
        try:
            return self._decoder.decode(payload)
        except JSON_FAULTS as wrong:
            try:
                plain = _plain(json.loads(payload.decode(), parse_float=Decimal), self._decoded)
                return msgspec.convert(plain, self._rare, dec_hook=_symbol)
            except (*JSON_FAULTS, TypeError, ArithmeticError):
                raise ValueError(json_fault(wrong)) from None


class _Symbol(str):
    """Symbol of an enum."""

    __slots__ = ()


def _symbol(kind: type, value: object) -> _Symbol:
    if kind is _Symbol and isinstance(value, (str, int)) and not isinstance(value, bool):
        return _Symbol(value)
    raise ValueError


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value whose times and numbers have the forms of Avro."""
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {field.name: _plain(value[field.name], field.type) for field in kind if field.name in value}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    if pa.types.is_map(kind) and isinstance(value, dict):
        return {key: _plain(item, kind.item_type) for key, item in value.items()}
    return _single(value, kind)


def _single(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_floating(kind) and (isinstance(value, Decimal) or value in _NO_NUMBERS):
        return float(value)
    if pa.types.is_date32(kind) and isinstance(value, list):
        return (date(*value) - _EPOCH).days
    if pa.types.is_timestamp(kind) and isinstance(value, Decimal):
        return int(
            value.quantize(Decimal("1e-9")) * _PER_SECOND[kind.unit]
        )  # a JSON number may be too large for a float
    if pa.types.is_timestamp(kind) and isinstance(value, list):
        return _local(value, _PER_SECOND[kind.unit])
    return value


def _local(parts: list[int], per_second: int) -> int:
    """Return a local time from year, month, day, hour, minute and, if they are not 0, second and nanosecond."""
    *parts, nanos = parts if len(parts) == 7 else [*parts, 0]
    since = datetime(*parts) - datetime(1970, 1, 1)  # type: ignore[arg-type]  # noqa: DTZ001 — local
    return (since.days * _DAY_S + since.seconds) * per_second + nanos * per_second // 10**9


class _Types:
    """Conversion of Avro types to Python types for `msgspec`. Every value may be null, as any Java object."""

    def __init__(self, where: str, enum: type[str] = str) -> None:
        self._where = where
        self._enum = enum
        self._named: dict[str, Any] = {}

    def of(self, schema: Any, path: str) -> Any:
        """Return the Python type of a schema that `avro_type` rewrote."""
        if isinstance(schema, str):
            return _SIMPLE[schema] if schema in _SIMPLE else self._named[schema]
        if isinstance(schema, list):
            return self._union([branch for branch in schema if branch != "null"], path)
        if schema.get("logicalType") == "decimal":
            found: Any = Decimal
        elif schema["type"] == "record":
            fields = {
                field["name"]: self.of(field["type"], f"{path}.{field['name']}") | None for field in schema["fields"]
            }
            found = TypedDict("Record", fields, total=False)  # type: ignore[misc,no-redef]
        elif schema["type"] == "array":
            found = list[self.of(schema["items"], f"{path}[]") | None]  # type: ignore[misc]
        elif schema["type"] == "map":
            found = dict[str, self.of(schema["values"], f"{path}{{}}") | None]  # type: ignore[misc]
        else:
            found = self._enum if schema["type"] == "enum" else bytes
        if "name" in schema:
            self._named[schema["name"]] = found
        return found

    def _union(self, branches: list[Any], path: str) -> Any:
        kinds = [self.of(branch, path) for branch in branches]
        if not kinds:
            return NoneType
        if any(kind is not kinds[0] for kind in kinds):
            raise Unsupported(
                f"{self._where} has a union of several types at {path or 'its top'}, and JSON does not name the type",
                hint="Read the values without a schema, as bytes",
            )
        return kinds[0]
