"""Columns of a read: which columns, from what, decoded how; and the columns that several ledgers have in common.

    columns of a batch:   those of the rows …   [ the rescue column ]   metadata columns …

Rules
- A shape is made on the driver and pickled into every partition.
- Rows are registered columns, messages as one column `value`, or messages decoded by the topic's schemas. These are
  the schemas of option `payloadSchema`, else those registered with the ledger.
- Option `columns` picks among all columns, in its order, metadata columns last. A column that is not picked is not
  decoded.
- Spark fixes the columns when a query is planned. A ledger that got more columns since then is read as it was. The
  schema that Spark passes may leave out such columns, and may change nothing else.
- Every ledger gets columns by itself, so a read has the columns of all its ledgers. Ledgers that have one column with
  different types cannot be one read.
- Ledgers of messages have one payload schema, or none. A ledger that was never written to does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.connector.schema import (
    METADATA,
    RAW,
    REDELIVERY_COUNT,
    arrow_schema,
    require_same_schema,
    spark_schema,
)
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.columns import schema_bytes, schema_from_bytes
from pyspark_ledger.ledger.message.schema.documents import (
    PRIMITIVES,
    SCHEMA_BYTES_MAX,
    TopicSchemas,
    is_payload_schema,
    parse_schemas,
)
from pyspark_ledger.ledger.protocol.actions import SchemaOfMany

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_PATH_CHARS_MAX = 4096
_SCHEMA_HINT = "Give the text of schemas.json, its path on the driver, or a type such as STRING"
_FILE = "file:"


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Options of the rows. `columns` None: all; `rescue` empty: an undecodable value fails the read.

    `redelivery_count` adds a last column: how often each row was delivered before.
    """

    include_metadata: bool = False
    columns: tuple[str, ...] | None = None
    rescue: str = ""
    payload_schema: str = ""
    redelivery_count: bool = False


@dataclass(frozen=True, slots=True)
class RowShape:
    """The columns of a read. `known` are all columns that its ledger had when the read was planned.

    The redelivery count is Spark's last column, and of no entry: a partition adds it. `rescues_columns`: the rescue
    column has columns, too, that came after the read was planned.
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
        """The schema of the batches, to the letter."""
        return schema_from_bytes(self.target)

    @property
    def rows(self) -> pa.Schema:
        """The columns that come out of entries."""
        return pa.schema(list(self.schema)[: self.row_columns])

    @property
    def metadata(self) -> list[str]:
        return list(self.schema.names[self.row_columns + self.rescues :])

    def spark_schema(self, ledger: str) -> StructType:
        """The same for Spark."""
        beside = [REDELIVERY_COUNT] if self.redelivery_count else []
        return spark_schema(pa.schema([*self.schema, *beside]), ledger)

    def with_places(self) -> RowShape:
        """The same with each row's `__position` behind it."""
        return replace(self, target=schema_bytes(pa.schema([*self.schema, METADATA.field("__position")])))

    def with_rescue_column(self) -> RowShape:
        """The same with a rescue column, which has what cannot be decoded, and no columns that came later."""
        fields = list(self.schema)
        fields.insert(self.row_columns, pa.field("", pa.string()))
        return replace(self, target=schema_bytes(pa.schema(fields)), rescues=True, rescues_columns=False)

    def as_given(self, given: StructType, ledger: str) -> RowShape:
        """Return the shape of Spark's schema: this one, or some columns of it in order if columns were added since."""
        own = self.schema
        rows, beside = own.names[: self.row_columns], own.names[self.row_columns :]
        if self.redelivery_count:
            beside = [*beside, REDELIVERY_COUNT.name]
        kept = given.names[: len(given.names) - len(beside)]
        some = [name for name in rows if name in kept]
        if not self.raw and 0 < len(kept) < len(rows) and given.names == [*some, *beside]:
            fields = [*(own.field(name) for name in some), *list(own)[self.row_columns :]]
            fewer = replace(self, target=schema_bytes(pa.schema(fields)), row_columns=len(some), known=tuple(some))
            require_same_schema(given, fewer.spark_schema(ledger), ledger)
            return fewer
        require_same_schema(given, self.spark_schema(ledger), ledger)
        return self


def row_shape(
    registered: pa.Schema | None,
    schemas: TopicSchemas | None,
    row_options: RowOptions,
    ledger: str,
    *,
    more: pa.Schema | None = None,
) -> RowShape:
    """The shape of the rows of a ledger whose columns or payload schemas are these; Refused names what is not there.

    `more` are metadata columns that this read has beside those of every read.
    """
    if row_options.payload_schema:
        if registered is not None:
            raise Refused(
                f"ledger {ledger!r} has the columns {', '.join(registered.names)}, 'payloadSchema' is for messages",
                hint="Leave it out: the ledger knows its columns",
            )
        schemas = load_schemas(row_options.payload_schema)
    known = pa.schema([*METADATA, *(more or ())])
    rows, metadata = _available(registered, schemas, ledger), list(known.names)
    if row_options.columns is None:
        picked, beside = rows.names, metadata if row_options.include_metadata else []
    else:
        _require_known(row_options.columns, [*rows.names, *metadata], ledger)
        picked = [name for name in row_options.columns if name in rows.names]
        beside = [name for name in row_options.columns if name in metadata]
        beside += [name for name in metadata if row_options.include_metadata and name not in beside]
    fields = [rows.field(name) for name in picked]
    rescue = [pa.field(row_options.rescue, pa.string())] if row_options.rescue else []
    _require_apart(picked, [*([row_options.rescue] if row_options.rescue else []), *beside], ledger)
    target = pa.schema([*fields, *rescue, *(known.field(name) for name in beside)])
    exact = arrow_schema(spark_schema(target, ledger))
    text = schemas.to_json() if schemas is not None and registered is None else ""
    counted = row_options.redelivery_count
    if counted:
        _require_apart(exact.names, [REDELIVERY_COUNT.name], ledger)
    return RowShape(
        schema_bytes(exact), len(fields), bool(rescue), registered is None, text, tuple(rows.names), counted
    )


def load_schemas(option: str) -> TopicSchemas:
    """The schemas of option `payloadSchema`: JSON or a primitive's name as it stands, else the file that it names."""
    said = option.strip()
    where = "option 'payloadSchema'"
    if said in PRIMITIVES or said[:1] in {"{", "[", '"'}:
        return parse_schemas(said, where)
    if len(said) > _PATH_CHARS_MAX or "\0" in said:
        raise Refused(f"{where} is {said[:80]!r}, which is no JSON, no primitive type and no path", hint=_SCHEMA_HINT)
    path = Path(said.removeprefix(_FILE))
    try:
        with path.open("rb") as file:
            text = file.read(SCHEMA_BYTES_MAX + 1)
    except OSError as wrong:
        raise Refused(
            f"{where} is {said[:80]!r}, which is no JSON, no primitive type and no file that can be read "
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


def _require_known(wanted: Sequence[str], known: Sequence[str], ledger: str) -> None:
    for name in wanted:
        if name not in known:
            raise Refused(
                f"option 'columns' names {name!r}, which ledger {ledger!r} has not",
                hint=f"It has {', '.join(known)}",
            )


def _require_apart(rows: Sequence[str], beside: Sequence[str], ledger: str) -> None:
    """Refuse a column that has the name, to Spark, of one that stands beside the rows."""
    spelled = {name.lower(): name for name in rows}
    for name in beside:
        if name.lower() in spelled:
            raise Refused(
                f"column {spelled[name.lower()]!r} of ledger {ledger!r} has the name of a metadata column or of the "
                f"rescue column, {name!r}",
                hint="Read without option 'includeMetadata', or give 'rescuedDataColumn' another name",
            )
        spelled[name.lower()] = name


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
