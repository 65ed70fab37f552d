"""What the rows of several ledgers have in common: the columns of one read, or that all of them are messages. Pure.

Rules: ledgers get columns each by itself, so a read has the columns of all; where two have one with different types,
they are no one read. Ledgers of messages have one payload schema, or none. One that nobody wrote to says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from ledger.columns import schema_from_bytes
from ledger.errors import Refused
from ledger.payload_schema.documents import is_payload_schema
from ledger.protocol import SchemaOfMany

_APART = "Read them separately and use unionByName()"


def shared_columns(
    found: Sequence[SchemaOfMany], written: Collection[str], *, any_schema: bool = False
) -> pa.Schema | None:
    """The columns of ledgers whose newest schemas these are; None for messages. `written` are those with entries.

    With `any_schema`, payload schemas may differ: the reader brings one.
    """
    known = [one for one in found if one.version >= 0]
    typed = [one for one in known if is_payload_schema(one.arrow_schema)]
    columns = [one for one in known if not is_payload_schema(one.arrow_schema)]
    with_columns = {name for one in columns for name in one.names}
    messages = sorted({name for one in typed for name in one.names} | (set(written) - with_columns))
    if columns and messages:
        raise Refused(
            f"ledger {messages[0]} holds messages, {columns[0].names[0]} has columns: they cannot be one read",
            hint="Read them separately",
        )
    if len(typed) > 1 and not any_schema:
        raise Refused(
            f"the payload schemas of {typed[0].names[0]} and {typed[1].names[0]} differ",
            hint="Read them separately, or name the schema by option 'payloadSchema'",
        )
    return _united(columns) if columns else None


def _united(columns: Sequence[SchemaOfMany]) -> pa.Schema:
    fields: dict[str, pa.Field] = {}
    first: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for one in sorted(columns, key=lambda one: min(one.names)):
        for field in schema_from_bytes(one.arrow_schema):
            known = fields.setdefault(field.name, field)
            owner = first.setdefault(field.name, one.names[0])
            other = spelled.setdefault(field.name.lower(), field.name)
            if other != field.name and first[other] != owner:
                raise Refused(
                    f"column {other!r} of {first[other]} is {field.name!r} in {owner}: they cannot be one read, for "
                    "Spark ignores case",
                    hint=_APART,
                )
            if known.type != field.type:
                raise Refused(
                    f"column {field.name!r} is {known.type} in {owner} and {field.type} in {one.names[0]}: they cannot "
                    f"be one read",
                    hint=_APART,
                )
    return pa.schema(list(fields.values()))
