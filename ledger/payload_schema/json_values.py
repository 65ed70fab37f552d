"""JSON payloads, by the Avro schema that Pulsar registers for them; read by `msgspec`.

Rules
- A field of another JSON type than the schema's makes its payload wrong; one that is missing, or that the schema does
  not know, does not. What nobody asked for is passed over in the text, without becoming objects.
- Bytes are base64, as Jackson writes them; times are numbers, as in Avro; an enum is its text.
- Numbers that JSON has no spelling for are read as Jackson writes them, `"NaN"`, and as Python does, `NaN`.
- A union of several types cannot be told apart in plain JSON and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pyarrow as pa

from ledger.errors import Unsupported
from ledger.payload_schema.avro_types import AvroType
from ledger.payload_schema.values import Values, decode_halving

_SIMPLE: dict[str, Any] = {
    "null": None, "boolean": bool, "int": int, "long": int, "float": float, "double": float, "bytes": bytes,
    "string": str,
}  # fmt: skip
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


class JsonCodec:
    """Decodes JSON texts as values of an Avro type."""

    def __init__(self, reader: AvroType, where: str) -> None:
        self.type = reader.column
        self._decoded = reader.decoded
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Types(where).of(reader.schema, "") | None)
        self._rare: Any = _Types(where, floats=_Float).of(reader.schema, "") | None

    def decode(self, payloads: pa.Array) -> Values:
        """The values of payloads (binary, without nulls)."""
        return decode_halving(payloads.to_pylist(), self._decode, self.type)

    def _decode(self, payloads: Sequence[bytes]) -> pa.Array:
        try:
            found = list(map(self._decoder.decode, payloads))
        except msgspec.DecodeError as wrong:
            if len(payloads) > 1:
                raise  # and come back with each of those that are to blame
            found = [self._decode_rare(payloads[0], wrong)]
        return pa.array(found, self._decoded).cast(self.type)

    def _decode_rare(self, payload: bytes, wrong: Exception) -> Any:
        """A payload in which a number may be none; the first error is raised where it is wrong anyhow."""
        try:
            return msgspec.convert(json.loads(payload.decode()), self._rare, dec_hook=_as_float)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            raise wrong from None


class _Float(float):
    """A float, also one that JSON has no spelling for."""


def _as_float(kind: type, value: object) -> _Float:
    if kind is _Float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _Float(value)
    if kind is _Float and value in _NO_NUMBERS:
        return _Float(str(value))
    raise ValueError


class _Types:
    """What `msgspec` is told of each Avro type. Any of them may be null, as any field of a Java object may."""

    def __init__(self, where: str, floats: type[float] = float) -> None:
        self._where = where
        self._simple = _SIMPLE | {"float": floats, "double": floats}
        self._named: dict[str, Any] = {}

    def of(self, schema: Any, path: str) -> Any:
        """The Python type of a rewritten Avro schema (`avro_types`)."""
        if isinstance(schema, str):
            return self._simple[schema] if schema in self._simple else self._named[schema]
        if isinstance(schema, list):
            return self._union([branch for branch in schema if branch != "null"], path)
        if schema.get("logicalType") == "decimal":
            found: Any = Decimal
        elif schema["type"] == "record":
            fields = {one["name"]: self.of(one["type"], f"{path}.{one['name']}") | None for one in schema["fields"]}
            found = TypedDict("Record", fields, total=False)  # type: ignore[misc,no-redef]
        elif schema["type"] == "array":
            found = list[self.of(schema["items"], f"{path}[]") | None]  # type: ignore[misc]
        elif schema["type"] == "map":
            found = dict[str, self.of(schema["values"], f"{path}{{}}") | None]  # type: ignore[misc]
        else:
            found = str if schema["type"] == "enum" else bytes
        if "name" in schema:
            self._named[schema["name"]] = found
        return found

    def _union(self, branches: list[Any], path: str) -> Any:
        kinds = [self.of(branch, path) for branch in branches]
        if not kinds:
            return None
        if any(kind is not kinds[0] for kind in kinds):
            raise Unsupported(
                f"{self._where} has a union of several types at {path or 'its top'}, which JSON does not tell apart",
                hint="Read the values as they are, without a schema",
            )
        return kinds[0]
