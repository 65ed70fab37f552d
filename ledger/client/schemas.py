"""Registered schemas of a ledger: the columns of its rows, or the schemas of its messages' payloads.

    a registered schema:   a schema in Arrow's binary format (first byte ff), or a payload schema as JSON (first byte {)

Rules
- The first registered schema decides whether a ledger has messages, or rows with columns.
- A message names the version of its payload's schema. Versions count from 0 without a gap. A read needs all versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.message.columns import schema_from_bytes, unreadable_schema
from pyspark_ledger.ledger.message.schema.documents import (
    TopicSchemas,
    is_payload_schema,
    parse_schema_bytes,
    schema_bytes_of,
)
from pyspark_ledger.ledger.message.schema.registration import readable_versions
from pyspark_ledger.ledger.protocol.actions import GetSchema, RegisterSchema, SchemaVersion
from pyspark_ledger.ledger.protocol.request import Ask
from pyspark_ledger.ledger.rows.row_type import RowType

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client


def columns_of(version: int, schema: bytes, ledger: str) -> pa.Schema | None:
    """Return the columns of a registered schema; None for a payload schema, and for version -1 (no schema)."""
    return None if version < 0 or is_payload_schema(schema) else schema_from_bytes(schema, ledger)


def registered_columns(ask: Ask, ledger: str) -> pa.Schema | None:
    """Return the columns of a ledger; None for a ledger of messages, or before the first append."""
    newest = ask(GetSchema(ledger))
    return columns_of(newest.version, newest.arrow_schema, ledger)


def registered_rows(ask: Ask, ledger: str) -> tuple[pa.Schema | None, TopicSchemas | None]:
    """Return the columns of a ledger, or the schemas of its payloads; both None if nothing is registered."""
    newest = ask(GetSchema(ledger))
    if newest.version < 0:
        return None, None
    if not is_payload_schema(newest.arrow_schema):
        return schema_from_bytes(newest.arrow_schema, ledger), None
    bodies = [ask(GetSchema(ledger, version)).arrow_schema for version in range(newest.version)]
    bodies.append(newest.arrow_schema)
    if readable_versions(ledger, bodies) < len(bodies):
        raise unreadable_schema(ledger, "it is no payload schema, or the ledger has columns")
    where = f"the schema of ledger {ledger!r}"
    return None, TopicSchemas({version: parse_schema_bytes(body, where) for version, body in enumerate(bodies)})


def require_fits(ask: Ask, row_type: RowType[Any], ledger: str) -> None:
    """Raise Refused if a type does not fit the columns of a ledger, or of its payloads, that are registered."""
    try:
        columns, schemas = registered_rows(ask, ledger)
    except NotFound:  # the first append creates the ledger
        return
    if schemas is not None:
        from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder

        columns = PayloadDecoder(schemas, where=f"the schema of ledger {ledger!r}").schema
    if columns is not None:
        row_type.require_fits(columns, ledger)


def require_columns_registered(found: SchemaVersion, ledger: str) -> None:
    """Raise Refused if the ledger has messages with a payload schema, and so no columns."""
    if found.version >= 0 and is_payload_schema(found.arrow_schema):
        raise Refused(
            f"ledger {ledger} has messages with a payload schema (version {found.version}), rows were given",
            hint="Write rows to another ledger",
        )


def register_payload_schemas(client: Client, ledger: str, schemas: TopicSchemas) -> int:
    """Register in a ledger the missing versions of the schemas of a Pulsar topic. Return the newest version.

    Raises Refused if a version differs from the version that is registered.
    """
    wanted = sorted(schemas.versions)
    if wanted != list(range(len(wanted))):
        raise Refused(
            f"schema versions {', '.join(map(str, wanted))} were given for ledger {ledger}, expected all from 0 on",
            hint="Register all versions of the Pulsar topic, or read with option 'payloadSchema'",
        )
    for version in wanted:
        body = schema_bytes_of(schemas.versions[version])
        found = client.ask(RegisterSchema(ledger, body, version - 1))
        if found.version > version:
            found = client.ask(GetSchema(ledger, version))
        if found.version != version or found.arrow_schema != body:
            raise Refused(
                f"schema version {version} of ledger {ledger} differs from the version that is registered already",
                hint="Use the registered schema for this version, or register yours as the next version",
            )
    return wanted[-1]
