"""JSON payloads, by the Avro schema that Pulsar registers for them; read by `msgspec`.

Rules
- A field of another JSON type than the schema's makes its payload wrong; one that is missing, or that the schema does
  not know, does not. What nobody asked for is passed over in the text, without becoming objects.
- Bytes are base64, as Jackson writes them; times are numbers, as in Avro; an enum is its text.
- A union of several types cannot be told apart in plain JSON and is refused.
"""

from __future__ import annotations

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


class JsonCodec:
    """Decodes JSON texts as values of an Avro type."""

    def __init__(self, reader: AvroType, where: str) -> None:
        self.type = reader.column
        self._decoded = reader.decoded
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Types(where).of(reader.schema, "") | None)

    def decode(self, payloads: pa.Array) -> Values:
        """The values of payloads (binary, without nulls)."""
        return decode_halving(payloads.to_pylist(), self._decode, self.type)

    def _decode(self, payloads: Sequence[bytes]) -> pa.Array:
        return pa.array(list(map(self._decoder.decode, payloads)), self._decoded).cast(self.type)


class _Types:
    """What `msgspec` is told of each Avro type. Any of them may be null, as any field of a Java object may."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._named: dict[str, Any] = {}

    def of(self, schema: Any, path: str) -> Any:
        """The Python type of a rewritten Avro schema (`avro_types`)."""
        if isinstance(schema, str):
            return _SIMPLE[schema] if schema in _SIMPLE else self._named[schema]
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
