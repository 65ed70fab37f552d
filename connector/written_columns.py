"""The columns that a write ends up with: those of its ledger, or more where `mergeSchema` allows it.

Rules: a type never changes, and a column never goes. What cannot be written is refused before anything is registered or
staged. Of two writers that add columns at once each finds what the other has added, and adds its own behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from connector.schema import grown_columns, require_writable
from ledger.columns import schema_bytes, schema_from_bytes
from ledger.payload_registry import require_columns_registered
from ledger.protocol import RegisterSchema, SchemaVersion

if TYPE_CHECKING:
    import msgspec
    from pyspark.sql.types import StructType

Ask = Callable[[str, "msgspec.Struct"], Any]
"""A call of the broker's protocol: an action and its request."""
_ROUNDS_MAX = 100


def settled_columns(ask: Ask, given: StructType, found: SchemaVersion, ledger: str, *, merge: bool) -> SchemaVersion:
    """The registered columns to write rows of this Spark schema with; `found` are those that the ledger has."""
    require_columns_registered(found, ledger)
    if not merge:
        require_writable(given, schema_from_bytes(found.arrow_schema), ledger)
        return found
    for _ in range(_ROUNDS_MAX):
        registered = schema_from_bytes(found.arrow_schema)
        columns = grown_columns(given, registered, ledger)
        if columns.equals(registered):
            return found
        found = ask("schema.register", RegisterSchema(ledger, schema_bytes(columns), found.version))
    raise AssertionError(f"{_ROUNDS_MAX} others added columns to {ledger} meanwhile")
