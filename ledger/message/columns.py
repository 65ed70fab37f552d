"""Conversion of record batches to another schema: columns are matched by name.

Rules
- A missing column becomes null. An unrequested column is left out.
- A column of another type is cast without loss or refused, naming the column and both types.
- Equal types are re-wrapped, never copied.
"""

from __future__ import annotations

import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused

_NAMED_MAX = 8


class ColumnFit:
    """Conversion of batches to `target`. Remembers the last schema, because schemas of one ledger rarely change."""

    def __init__(self, target: pa.Schema) -> None:
        self.target = target
        self._source: pa.Schema | None = None
        self._sources: list[int] = []
        self._same = False

    def fit(self, batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
        """Return the batch with exactly the target's columns. `where` names the batch in errors."""
        if self._source is None or not batch.schema.equals(self._source):
            self._plan(batch.schema, where)
        if self._same:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self.target)
        columns = [
            pa.nulls(batch.num_rows, field.type) if source < 0 else cast_column(batch.column(source), field, where)
            for source, field in zip(self._sources, self.target, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.target)

    def _plan(self, schema: pa.Schema, where: str) -> None:
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise Refused(f"{where} has more than one column {repeated[0]!r}", hint="Give each column its own name")
        self._source = schema
        self._sources = [schema.get_field_index(field.name) for field in self.target]
        self._same = list(schema.names) == list(self.target.names) and all(
            schema.field(i).type == field.type for i, field in enumerate(self.target)
        )


def cast_column(column: pa.Array, field: pa.Field, where: str) -> pa.Array:
    """Cast a column to the field's type. Raises Refused if a value would be lost or no cast exists."""
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
        raise Refused(
            f"column {field.name!r} of {where} is {column.type} and cannot become {field.type}: {wrong}",
            hint="Convert the column before it is written, or read with a schema that holds it",
        ) from wrong


def schema_bytes(schema: pa.Schema) -> bytes:
    """Serialize a schema for registration: names, types and nullability, without metadata."""
    return bytes(schema.remove_metadata().serialize())


def schema_from_bytes(data: bytes) -> pa.Schema:
    """Parse a schema. The inverse of `schema_bytes`."""
    return pa.ipc.read_schema(pa.py_buffer(data))


def require_columns(given: pa.Schema, registered: pa.Schema, ledger: str) -> None:
    """Raise Refused if a writer's columns differ from the ledger's, naming missing and new columns."""
    missing = [field for field in registered if field.name not in given.names]
    extra = [field for field in given if field.name not in registered.names]
    differs = [f"{_named(fields)} {word}" for word, fields in (("missing", missing), ("not in it", extra)) if fields]
    if differs:
        raise Refused(
            f"what is written to ledger {ledger!r} does not match its columns: {', and '.join(differs)}",
            hint="Write the ledger's columns, null where there is no value, or write to another ledger; "
            "in Spark option mergeSchema adds new ones",
        )


def _named(fields: list[pa.Field]) -> str:
    names = [f"{field.name!r} ({field.type})" for field in fields[:_NAMED_MAX]]
    return (
        f"column{'s'[: len(fields) - 1]} "
        + ", ".join(names)
        + (f" and {len(fields) - len(names)} more" if len(fields) > len(names) else "")
    )
