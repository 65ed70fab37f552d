"""Payload schemas that are offloaded with a segment, so that a reader of the bucket can decode its messages.

A segment is one file of a ledger. All versions of the schema that the ledger has at the time of the offload are
included. Entries with typed columns need none of these, because each contains its own schema.
"""

from __future__ import annotations

import logging

from pyspark_ledger.ledger.message.schema.documents import (
    SCHEMA_BYTES_MAX,
    TopicSchemas,
    is_payload_schema,
    parse_schema_bytes,
)
from pyspark_ledger.ledger.metadata.records import Metadata

_log = logging.getLogger(__name__)


def schemas_to_offload(metadata: Metadata, name: str) -> str:
    """Return the registered payload schemas as JSON, or an empty text without schemas."""
    newest, body = metadata.schema(name, -1)
    if newest < 0 or not is_payload_schema(body):
        return ""
    where = f"the schema of ledger {name!r}"
    bodies = {version: metadata.schema(name, version)[1] for version in range(newest + 1)}
    schemas = {version: parse_schema_bytes(schema, where) for version, schema in bodies.items()}
    text = TopicSchemas(schemas).to_json()
    if len(text) > SCHEMA_BYTES_MAX:
        _log.warning("%s has %d characters, at most %d can be offloaded", where, len(text), SCHEMA_BYTES_MAX)
        return ""
    return text
