"""Rules for the schemas that a ledger registers. The broker checks them before it stores a schema.

    version      0            1            2             a schema is Arrow columns, or a payload schema as JSON
    columns      a            a, b         a, b, c       columns only grow: none is removed or becomes narrower

Rules
- Every reader parses the newest schema of its ledger. So one bad schema would stop all readers.
- The size and the depth of a schema are bounded, because each reader and Spark's planner walk it.
- All versions of a ledger are columns, or all are payload schemas.
- An earlier version of this package stored any bytes. A version that no reader can use is deleted on request only.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.message.columns import schema_from_bytes, widens
from pyspark_ledger.ledger.message.schema.documents import (
    SCHEMA_BYTES_MAX,
    PayloadSchema,
    is_payload_schema,
    parse_schema_bytes,
)

NESTING_MAX = 64


def require_schema(body: bytes, ledger: str) -> None:
    """Raise Refused unless bytes are Arrow columns or a payload schema, of limited size and depth."""
    if len(body) > SCHEMA_BYTES_MAX:
        raise Refused(f"the schema for ledger {ledger!r} has {len(body)} bytes, at most {SCHEMA_BYTES_MAX} are allowed")
    if is_payload_schema(body):
        _require_definition(parse_schema_bytes(body, f"the schema for ledger {ledger!r}"), ledger)
        return
    try:
        columns = schema_from_bytes(body)
    except Corrupt as wrong:
        raise Refused(
            f"the schema for ledger {ledger!r} is neither Arrow columns nor a payload schema: {len(body)} bytes",
            hint="Register the bytes of pyarrow.Schema.serialize()",
        ) from wrong
    seen = set[str]()
    for field in columns:
        if field.name in seen:
            raise Refused(
                f"the schema for ledger {ledger!r} has more than one column {field.name!r}",
                hint="Give each column its own name",
            )
        seen.add(field.name)
        depth = nesting(field.type)
        if depth > NESTING_MAX:
            raise Refused(
                f"column {field.name!r} for ledger {ledger!r} nests {depth} types, at most {NESTING_MAX} are allowed",
                hint="Store the value as JSON text",
            )


def require_successor(body: bytes, ledger: str, versions: Sequence[bytes]) -> None:
    """Raise Refused unless a schema may follow the registered `versions` of a ledger."""
    require_schema(body, ledger)
    if not versions:
        return
    if is_payload_schema(body) != is_payload_schema(versions[0]):
        held = "messages with a payload schema" if is_payload_schema(versions[0]) else "rows with columns"
        raise Refused(
            f"ledger {ledger!r} has {held}, the schema to register is of the other kind", hint="Use another ledger"
        )
    if not is_payload_schema(body):
        _require_growth(schema_from_bytes(body), schema_from_bytes(versions[-1], ledger), ledger)


def readable_versions(ledger: str, versions: Sequence[bytes]) -> int:
    """Return the number of versions that are left without the newest ones that no reader can use."""
    count = len(versions)
    while count:
        try:
            require_schema(versions[count - 1], ledger)
        except Refused:
            count -= 1
            continue
        if is_payload_schema(versions[count - 1]) == is_payload_schema(versions[0]):
            break
        count -= 1
    return count


def nesting(kind: pa.DataType) -> int:
    """Return how many types a type nests: 1 for a number, 2 for a list of numbers."""
    depth, fields = 1, [kind.field(i) for i in range(kind.num_fields)]
    while fields:  # no recursion, because the type comes from a client
        depth += 1
        fields = [field.type.field(i) for field in fields for i in range(field.type.num_fields)]
    return depth


def _require_definition(schema: PayloadSchema, ledger: str) -> None:
    """Raise Refused if a definition that is JSON cannot be parsed. A reader builds the decoder of its values."""
    if schema.type in ("AVRO", "JSON") and schema.data:
        try:
            msgspec.json.decode(schema.data)
        except JSON_FAULTS as wrong:
            raise Refused(f"the {schema.type} schema for ledger {ledger!r} is no JSON: {json_fault(wrong)}") from wrong


def _require_growth(columns: pa.Schema, newest: pa.Schema, ledger: str) -> None:
    names = set(columns.names)
    for field in newest:
        if field.name not in names:
            raise Refused(
                f"ledger {ledger!r} has column {field.name!r}, which the schema to register lacks",
                hint="Columns of a ledger are never removed: register all of them",
            )
        kind = columns.field(field.name).type
        if kind != field.type and not widens(field.type, kind):
            raise Refused(
                f"column {field.name!r} of ledger {ledger!r} is {field.type}, and cannot become {kind}",
                hint="The type of a column only becomes wider",
            )
