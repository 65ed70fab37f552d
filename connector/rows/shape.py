"""Shape of a read: its columns, how they are decoded, and the union of the columns of several ledgers.

    columns of a batch:   row columns …   [ rescue column ]   metadata columns …

A *rescue column* has undecodable values as JSON text. Row columns have the data of the rows. Metadata columns describe
the rows, for example by key and position.

Rules
- A shape is created on the driver and pickled into every task.
- The row columns are the registered columns of the ledger. A ledger of messages has the column `value`, or the columns
  of its payload schemas. Option `payloadSchema` takes precedence over the schemas that are registered with the ledger.
- Option `columns` selects columns and their order. Metadata columns are always last. A column that is not selected is
  not decoded.
- Spark fixes the columns when a query is planned. Columns that are added to a ledger later are not read. So the schema
  that Spark passes to the reader may lack columns of the ledger. A row column of this schema may have a wider type than
  in the ledger. Every other difference is refused.
- A read returns the union of all ledgers' columns, each with its widest type. If two types of a column have no common
  wider type, their ledgers cannot be read together.
- Ledgers of messages in one read must have the same payload schema, or no payload schema. Ledgers without entries are
  ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.connector.schema import (
    REDELIVERY_COUNT,
    arrow_schema,
    nullable_type,
    require_same_schema,
    spark_schema,
)
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.columns import common_type, schema_bytes, schema_from_bytes
from pyspark_ledger.ledger.message.schema.documents import (
    PRIMITIVES,
    SCHEMA_BYTES_MAX,
    TopicSchemas,
    is_payload_schema,
    parse_schemas,
)
from pyspark_ledger.ledger.protocol.actions import SchemaOfMany
from pyspark_ledger.ledger.rows.message_groups import RAW
from pyspark_ledger.ledger.rows.metadata_columns import METADATA

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_PATH_CHARS_MAX = 4096
_SCHEMA_HINT = "Give the text of schemas.json, its path on the driver, or a type such as STRING"
_FILE = "file:"


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Options of the rows. `columns` is None for all columns.

    `rescue` is the name of the rescue column. If it is empty, an undecodable value fails the read. `redelivery_count`
    adds a last column with the number of earlier deliveries of the row.
    """

    include_metadata: bool = False
    columns: tuple[str, ...] | None = None
    rescue: str = ""
    payload_schema: str = ""
    redelivery_count: bool = False


@dataclass(frozen=True, slots=True)
class RowShape:
    """Columns of a read. `known` are all columns that the ledger had when the read was planned.

    `target` is the serialized `schema`. `raw` is set for messages, decoded or not. If `rescues_columns` is set, the
    rescue column also has the values of columns that were added after planning. If `redelivery_count` is set, the task
    adds a last column with the number of earlier deliveries. `schema` does not contain this column.
    """

    target: bytes
    row_columns: int
    rescues: bool
    raw: bool
    schemas: str = ""
    known: tuple[str, ...] = ()
    redelivery_count: bool = False
    rescues_columns: bool = True

    @property
    def schema(self) -> pa.Schema:
        """Exact schema of the batches."""
        return schema_from_bytes(self.target)

    @property
    def rows(self) -> pa.Schema:
        """Row columns."""
        return pa.schema(list(self.schema)[: self.row_columns])

    @property
    def metadata(self) -> list[str]:
        return list(self.schema.names[self.row_columns + self.rescues :])

    def spark_schema(self, ledger: str) -> StructType:
        """Return the columns as Spark's schema."""
        count = [REDELIVERY_COUNT] if self.redelivery_count else []
        return spark_schema(pa.schema([*self.schema, *count]), ledger)

    def with_places(self) -> RowShape:
        """Return this shape with `__position` as the last column."""
        return replace(self, target=schema_bytes(pa.schema([*self.schema, METADATA.field("__position")])))

    def with_rescue_column(self) -> RowShape:
        """Return this shape with a rescue column, which has no values of columns that were added later."""
        fields = list(self.schema)
        fields.insert(self.row_columns, pa.field("", pa.string()))
        return replace(self, target=schema_bytes(pa.schema(fields)), rescues=True, rescues_columns=False)

    def for_schema(self, user_schema: StructType, ledger: str) -> RowShape:
        """Return this shape with the columns of Spark's schema, which may lack columns that were added later."""
        own = self.schema
        rows, extra = own.names[: self.row_columns], own.names[self.row_columns :]
        if self.redelivery_count:
            extra = [*extra, REDELIVERY_COUNT.name]
        row_names = user_schema.names[: len(user_schema.names) - len(extra)]
        planned = [name for name in rows if name in row_names]
        if not self.raw and 0 < len(row_names) < len(rows) and user_schema.names == [*planned, *extra]:
            fields = [*(own.field(name) for name in planned), *list(own)[self.row_columns :]]
            fewer = replace(
                self, target=schema_bytes(pa.schema(fields)), row_columns=len(planned), known=tuple(planned)
            )
            return fewer.with_types_of(user_schema, ledger)
        return self.with_types_of(user_schema, ledger)

    def with_types_of(self, user_schema: StructType, ledger: str) -> RowShape:
        """Return this shape with the column types of a schema. Raises Refused if the schema has other columns."""
        require_same_schema(user_schema, self.spark_schema(ledger), ledger, self.row_columns)
        wider, fields = arrow_schema(nullable_type(user_schema)), list(self.schema)
        fields[: self.row_columns] = list(wider)[: self.row_columns]
        return replace(self, target=schema_bytes(pa.schema(fields)))


def row_shape(
    registered: pa.Schema | None,
    schemas: TopicSchemas | None,
    row_options: RowOptions,
    ledger: str,
    *,
    more: pa.Schema | None = None,
) -> RowShape:
    """Return the shape of a ledger's rows.

    `registered` are the columns of the ledger. They are None for messages, which may have `schemas`. `more` are
    metadata columns in addition to the metadata columns of every read. Raises Refused for unknown columns, and for two
    columns of one name.
    """
    if row_options.payload_schema:
        if registered is not None:
            raise Refused(
                f"ledger {ledger!r} has the columns {', '.join(registered.names)}, 'payloadSchema' is for messages",
                hint="Remove the option, because the ledger's columns are registered",
            )
        schemas = load_schemas(row_options.payload_schema)
    metadata_fields = pa.schema([*METADATA, *(more or ())])
    rows, metadata = _available(registered, schemas, ledger), list(metadata_fields.names)
    if row_options.columns is None:
        selected, selected_metadata = rows.names, metadata if row_options.include_metadata else []
    else:
        _require_known(row_options.columns, [*rows.names, *metadata], ledger)
        selected = [name for name in row_options.columns if name in rows.names]
        selected_metadata = [name for name in row_options.columns if name in metadata]
        selected_metadata += [
            name for name in metadata if row_options.include_metadata and name not in selected_metadata
        ]
    fields = [rows.field(name) for name in selected]
    rescue = [pa.field(row_options.rescue, pa.string())] if row_options.rescue else []
    _require_distinct(selected, [*([row_options.rescue] if row_options.rescue else []), *selected_metadata], ledger)
    target = pa.schema([*fields, *rescue, *(metadata_fields.field(name) for name in selected_metadata)])
    exact = arrow_schema(spark_schema(target, ledger))
    text = schemas.to_json() if schemas is not None and registered is None else ""
    has_count = row_options.redelivery_count
    if has_count:
        _require_distinct(exact.names, [REDELIVERY_COUNT.name], ledger)
    return RowShape(
        schema_bytes(exact), len(fields), bool(rescue), registered is None, text, tuple(rows.names), has_count
    )


def load_schemas(option: str) -> TopicSchemas:
    """Return the schemas in option `payloadSchema`: JSON, the name of a primitive type, or the path of a file."""
    value = option.strip()
    where = "option 'payloadSchema'"
    if value in PRIMITIVES or value[:1] in {"{", "[", '"'}:
        return parse_schemas(value, where)
    if len(value) > _PATH_CHARS_MAX or "\0" in value:
        raise Refused(f"{where} is {value[:80]!r}, which is no JSON, no primitive type and no path", hint=_SCHEMA_HINT)
    path = Path(value.removeprefix(_FILE))
    try:
        with path.open("rb") as file:
            text = file.read(SCHEMA_BYTES_MAX + 1)
    except OSError as wrong:
        raise Refused(
            f"{where} is {value[:80]!r}, which is no JSON, no primitive type and no file that can be read "
            f"({wrong.strerror})",
            hint=_SCHEMA_HINT,
        ) from wrong
    return parse_schemas(text, f"{where}, file {path},")


def _available(registered: pa.Schema | None, schemas: TopicSchemas | None, ledger: str) -> pa.Schema:
    if registered is not None:
        return registered
    if schemas is None:
        return RAW
    from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder

    return PayloadDecoder(schemas, where=f"the schema of ledger {ledger!r}").schema


def _require_known(selected: Sequence[str], available: Sequence[str], ledger: str) -> None:
    for name in selected:
        if name not in available:
            raise Refused(
                f"option 'columns' names {name!r}, but ledger {ledger!r} has no such column",
                hint=f"The columns are {', '.join(available)}",
            )


def _require_distinct(rows: Sequence[str], others: Sequence[str], ledger: str) -> None:
    """Raise Refused if a row column has the name of a metadata or rescue column. Spark ignores case."""
    spelling = {name.lower(): name for name in rows}
    for name in others:
        if name.lower() in spelling:
            raise Refused(
                f"column {spelling[name.lower()]!r} of ledger {ledger!r} has the name of a metadata column or of the "
                f"rescue column, {name!r}",
                hint="Read without option 'includeMetadata', or give 'rescuedDataColumn' another name",
            )
        spelling[name.lower()] = name


_HINT_APART = "Read the ledgers separately and use unionByName()"


def shared_columns(newest: Sequence[SchemaOfMany], written: Collection[str], *, any_schema: bool) -> pa.Schema | None:
    """Return the union of the columns of ledgers. Returns None for ledgers of messages.

    `newest` are the newest schemas of the ledgers, `written` the names of ledgers with entries. If `any_schema` is set,
    payload schemas may differ, because option `payloadSchema` replaces them.
    """
    registered = [schema for schema in newest if schema.version >= 0]
    typed = [schema for schema in registered if is_payload_schema(schema.arrow_schema)]
    columns = [schema for schema in registered if not is_payload_schema(schema.arrow_schema)]
    with_columns = {name for schema in columns for name in schema.names}
    messages = sorted({name for schema in typed for name in schema.names} | (set(written) - with_columns))
    if columns and messages:
        raise Refused(
            f"ledger {messages[0]} holds messages, ledger {columns[0].names[0]} has columns: one read cannot have both",
            hint="Read the ledgers separately",
        )
    if len(typed) > 1 and not any_schema:
        raise Refused(
            f"the payload schemas of {typed[0].names[0]} and {typed[1].names[0]} differ",
            hint="Read the ledgers separately, or give the schema with option 'payloadSchema'",
        )
    return _union(columns) if columns else None


def _union(schemas: Sequence[SchemaOfMany]) -> pa.Schema:
    fields: dict[str, pa.Field] = {}
    first: dict[str, str] = {}
    spelling: dict[str, str] = {}
    for schema in sorted(schemas, key=lambda schema: min(schema.names)):
        for field in schema_from_bytes(schema.arrow_schema, schema.names[0]):
            existing = fields.setdefault(field.name, field)
            owner = first.setdefault(field.name, schema.names[0])
            other = spelling.setdefault(field.name.lower(), field.name)
            if other != field.name and first[other] != owner:
                raise Refused(
                    f"column {other!r} of {first[other]} is {field.name!r} in {owner}: one read cannot have both, "
                    "because Spark ignores case",
                    hint=_HINT_APART,
                )
            kind = common_type(existing.type, field.type)
            if kind is None:
                raise Refused(
                    f"column {field.name!r} is {existing.type} in {owner} and {field.type} in {schema.names[0]}: "
                    f"one read cannot have both",
                    hint=_HINT_APART,
                )
            fields[field.name] = existing.with_type(kind)
    return pa.schema(list(fields.values()))
