"""Schemas of a Pulsar topic, by version, as Pulsar's schema registry describes them.

A description is the name of a primitive type, or JSON in one of these forms:

    STRING                                                            the name of a primitive type, in capitals
    {"type": "record", "name": …}                                     an Avro schema
    {"type": "AVRO", "schema": "…", "properties": {}}                 the input of `pulsar-admin schemas upload`
    {"version": 3, "type": "AVRO", "data": "…", "properties": {}}     an answer of the registry; or {"schemaInfo": …}
    {"getSchemaResponses": [ … ]}   or   [ … ]                        a list, numbered from 0 if it has no versions

Rules
- A type is one of Pulsar's names. `data` is text: an Avro schema for AVRO and JSON, the descriptor for PROTOBUF_NATIVE,
  the schemas of key and value for KEY_VALUE. It is empty for a primitive type.
- Any other description is refused. The error names the description's origin and the unexpected text.
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
_SHOWN = 60  # an error shows this many characters of an unexpected text
SCHEMA_BYTES_MAX = 4 * 1024 * 1024


class PayloadSchema(msgspec.Struct, frozen=True):
    """Schema of payloads: Pulsar's name of its type, its definition as text, and its properties in the registry."""

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
        """Return the schemas as JSON. Equal schemas give equal text. `parse_schemas` parses the text."""
        responses = [
            {"version": version, "type": schema.type, "data": schema.data, "properties": schema.properties}
            for version, schema in sorted(self.versions.items())
        ]
        return msgspec.json.encode({"getSchemaResponses": responses}, order="sorted").decode()


def parse_schemas(text: str | bytes, where: str) -> TopicSchemas:
    """Parse a description of schemas. Raises Refused naming `where`."""
    description = text.decode(errors="replace") if isinstance(text, bytes) else text
    if len(description) > SCHEMA_BYTES_MAX:
        raise Refused(f"{where} has {len(description)} characters, schemas take at most {SCHEMA_BYTES_MAX}")
    description = description.strip()
    if description in PRIMITIVES:
        return TopicSchemas({0: PayloadSchema(description)})
    try:
        document = msgspec.json.decode(description)
    except JSON_FAULTS as wrong:
        raise Refused(
            f"{where} is {description[:_SHOWN]!r}, which is no JSON ({json_fault(wrong)}) and no primitive type",
            hint=f"Give Pulsar's schemas.json, an Avro schema, or one of {', '.join(PRIMITIVES)}",
        ) from wrong
    responses = document.get("getSchemaResponses") if isinstance(document, dict) else document
    documents = responses if isinstance(responses, list) else [document]
    if not documents:
        raise Refused(f"{where} has no schema", hint="Give no schema to read values as bytes")
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
    """Serialize a schema for the registry, as JSON. Equal schemas give equal bytes."""
    return msgspec.json.encode(schema, order="sorted")


def is_payload_schema(body: bytes) -> bool:
    """Return whether registered bytes are a payload schema. An Arrow schema of columns begins with ff ff ff ff."""
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
        raise Refused(f"{where} has a schema of type {kind}, which does not describe the payload")
    if isinstance(kind, (str, dict, list)) and kind:
        return number, PayloadSchema("AVRO", msgspec.json.encode(document).decode())
    raise Refused(f"{where} has {_shown(document)} where a schema is expected", hint="A schema states its 'type'")


def _text(document: Mapping[str, Any], where: str) -> str:
    """Return the definition of a schema as text. A definition that is JSON is serialized."""
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
