"""Schemas of a topic, as Pulsar's registry states them, version by version.

These descriptions are accepted, in JSON except a bare name:

    STRING                                                            a primitive's name, in capitals
    {"type": "record", "name": …}                                     a bare Avro schema
    {"type": "AVRO", "schema": "…", "properties": {}}                 the input of `pulsar-admin schemas upload`
    {"version": 3, "type": "AVRO", "data": "…", "properties": {}}     an answer of the registry; or {"schemaInfo": …}
    {"getSchemaResponses": [ … ]}   or   [ … ]                        several, each with its version, else from 0 on

Rules
- A type is one of Pulsar's names. `data` is text: an Avro schema for AVRO and JSON, the descriptor for PROTOBUF_NATIVE,
  the schemas of both sides for KEY_VALUE, nothing for a primitive.
- Any other description is refused, naming its origin and the unexpected text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault

PRIMITIVES = (
    "BYTES", "STRING", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP",
    "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME",
)  # fmt: skip
STRUCTURED = ("AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE")
_SHOWN = 60  # characters of an unexpected text in an error
SCHEMA_BYTES_MAX = 4 * 1024 * 1024


class PayloadSchema(msgspec.Struct, frozen=True):
    """Schema: its type by Pulsar's name, its definition as text, and its other properties in the registry."""

    type: str
    data: str = ""
    properties: dict[str, str] = {}


class TopicSchemas(msgspec.Struct, frozen=True):
    """All schemas of a topic by version, at least one."""

    versions: dict[int, PayloadSchema]

    @property
    def newest(self) -> int:
        return max(self.versions)

    def to_json(self) -> str:
        """Return the canonical text, which is equal for equal schemas. `parse_schemas` reads it."""
        told = [
            {"version": version, "type": schema.type, "data": schema.data, "properties": schema.properties}
            for version, schema in sorted(self.versions.items())
        ]
        return msgspec.json.encode({"getSchemaResponses": told}, order="sorted").decode()


def parse_schemas(text: str | bytes, where: str) -> TopicSchemas:
    """Parse a description of schemas. Raises Refused naming `where`."""
    said = text.decode(errors="replace") if isinstance(text, bytes) else text
    if len(said) > SCHEMA_BYTES_MAX:
        raise Refused(f"{where} has {len(said)} characters, schemas take at most {SCHEMA_BYTES_MAX}")
    said = said.strip()
    if said in PRIMITIVES:
        return TopicSchemas({0: PayloadSchema(said)})
    try:
        given = msgspec.json.decode(said)
    except JSON_FAULTS as wrong:
        raise Refused(
            f"{where} is {said[:_SHOWN]!r}, which is no JSON ({json_fault(wrong)}) and no primitive type",
            hint=f"Give Pulsar's schemas.json, an Avro schema, or one of {', '.join(PRIMITIVES)}",
        ) from wrong
    listed = given.get("getSchemaResponses") if isinstance(given, dict) else given
    documents = listed if isinstance(listed, list) else [given]
    if not documents:
        raise Refused(f"{where} holds no schema", hint="Leave it out to read values as they are")
    versions: dict[int, PayloadSchema] = {}
    for number, document in enumerate(documents):
        version, schema = _document(document, number, where)
        if version in versions and versions[version] != schema:
            raise Refused(f"{where} states schema version {version} twice, and differently")
        versions[version] = schema
    return TopicSchemas(versions)


def parse_schema(document: object, where: str) -> PayloadSchema:
    return _document(document, 0, where)[1]


def schema_bytes_of(schema: PayloadSchema) -> bytes:
    """Serialize a schema for the registry: JSON, the same bytes for the same schema."""
    return msgspec.json.encode(schema, order="sorted")


def is_payload_schema(body: bytes) -> bool:
    """Return whether registered bytes are a payload schema, not columns: an Arrow schema begins with ff ff ff ff."""
    return body[:1] == b"{"


def parse_schema_bytes(body: bytes, where: str) -> PayloadSchema:
    """Parse a schema. The inverse of `schema_bytes_of`."""
    try:
        return parse_schema(msgspec.json.decode(body), where)
    except JSON_FAULTS as wrong:
        raise Refused(f"{where} is no payload schema: {json_fault(wrong)}") from wrong


def _document(document: object, number: int, where: str) -> tuple[int, PayloadSchema]:
    if isinstance(document, str) and document in PRIMITIVES:
        return number, PayloadSchema(document)
    if not isinstance(document, dict):
        raise Refused(f"{where} has {_shown(document)} where a schema is expected")
    inner = document.get("schemaInfo", document)
    if not isinstance(inner, dict):
        raise Refused(f"{where} has {_shown(inner)} as 'schemaInfo', where a schema is expected")
    version = document.get("version", number)
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise Refused(f"{where} has {_shown(version)} as a schema's version, expected a whole number from 0")
    kind = inner.get("type")
    if kind in PRIMITIVES or kind in STRUCTURED:
        return version, PayloadSchema(str(kind), _text(inner, where), _properties(inner, where))
    if kind in {"NONE", "AUTO_CONSUME", "AUTO_PUBLISH", "AUTO"}:
        raise Refused(f"{where} has a schema of type {kind}, which says nothing of the payload")
    if isinstance(kind, (str, dict, list)) and kind:
        return number, PayloadSchema("AVRO", msgspec.json.encode(document).decode())
    raise Refused(f"{where} has {_shown(document)} where a schema is expected", hint="A schema states its 'type'")


def _text(document: Mapping[str, Any], where: str) -> str:
    """Return the definition, also if it is given as JSON instead of text."""
    data = document.get("data", document.get("schema", ""))
    if isinstance(data, (dict, list)):
        return msgspec.json.encode(data).decode()
    if data is None:
        return ""
    if not isinstance(data, str):
        raise Refused(f"{where} has {_shown(data)} as a schema's definition, expected text")
    return data


def _properties(document: Mapping[str, Any], where: str) -> dict[str, str]:
    given = document.get("properties") or {}
    if not isinstance(given, dict):
        raise Refused(f"{where} has {_shown(given)} as a schema's properties, expected an object")
    return {
        str(name): value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in given.items()
    }


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN]
