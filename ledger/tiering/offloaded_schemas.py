"""Payload schemas that are offloaded with a segment, so that readers of the bucket need no registry.

Rules: they are all registered versions of the managed ledger at the time of the offload. Entries of columns carry their
own schema.
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
    """Return the registered payload schemas as JSON; empty if there are none."""
    newest, body = metadata.schema(name, -1)
    if newest < 0 or not is_payload_schema(body):
        return ""
    where = f"the schema of ledger {name!r}"
    bodies = {version: metadata.schema(name, version)[1] for version in range(newest + 1)}
    text = TopicSchemas({version: parse_schema_bytes(one, where) for version, one in bodies.items()}).to_json()
    if len(text) > SCHEMA_BYTES_MAX:
        _log.warning("%s has %d characters and does not go with the ledger", where, len(text))
        return ""
    return text
