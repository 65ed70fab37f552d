"""Decoder of Avro payloads to columns. Payloads are decoded by `fastavro`.

Columns have the types of Spark's `from_avro`, with one difference: a branch of a union is named after its type:

    int long float double boolean string bytes   int32 int64 float64 …          enum → string, fixed → binary
    date → date32 · timestamp-millis, -micros → timestamp(us, UTC) · local-timestamp-… → timestamp(us)
    decimal(p, s) → decimal128(p, s) · uuid → string · time-millis, -micros → int32, int64
    record → struct · array → list · map → map<string, …>
    [null, T] → T · [int, long] → int64 · [float, double] → float64
    any other union → struct with a field `member_<type>` for each branch; only one field is not null

Rules
- `fastavro` gets a rewritten schema that decodes the same bytes. It lacks the logical types of times, because Arrow
  takes times as numbers. Each branch of a union of several types becomes a record with the branch as its only field.
  Avro encodes such a record like its field.
- A recursive type cannot be a column, and is refused. The error names the path.
- A payload is one encoded value (a datum). It has no header, as Avro's files and single objects have.
- A datum is decoded with its writer's schema, and converted to the reader's schema by Avro's rules (defaults, aliases,
  wider numbers).
- A datum must end exactly where its payload ends.
- Fields that are not requested do not become columns. In payloads of an older version, `fastavro` skips these fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import repeat
from operator import ne
from typing import Any

import msgspec
import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.message.schema.values import Values, decode_halving

_SIMPLE = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_UTC, _LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_NUMBERS = {  # logical type and underlying type → the Arrow type of the number, and the type of the column
    ("date", "int"): (pa.date32(), pa.date32()),
    ("timestamp-millis", "long"): (pa.timestamp("ms", tz="UTC"), _UTC),
    ("timestamp-micros", "long"): (_UTC, _UTC),
    ("local-timestamp-millis", "long"): (pa.timestamp("ms"), _LOCAL),
    ("local-timestamp-micros", "long"): (_LOCAL, _LOCAL),
}
_DECIMAL_DIGITS_MAX = 38
_WIDER = ({"int", "long"}, "long"), ({"float", "double"}, "double")


@dataclass(frozen=True, slots=True)
class AvroType:
    """Avro type: the rewritten schema, the Arrow type of the values that it decodes to, and the type of the column."""

    schema: Any
    decoded: pa.DataType
    column: pa.DataType


@dataclass(slots=True)
class _Named:
    """Named types defined so far. A type whose definition is still being read is None."""

    known: dict[str, AvroType | None] = field(default_factory=dict)


def avro_type(document: str, where: str) -> AvroType:
    """Parse an Avro schema. Raises Refused or Unsupported naming `where`."""
    if document in _SIMPLE:
        return _type(document, "", "", _Named(), where)
    try:
        return _type(msgspec.json.decode(document), "", "", _Named(), where)
    except JSON_FAULTS as wrong:
        raise Refused(f"{where} is no Avro schema: {json_fault(wrong)}") from wrong


def pruned(record: AvroType, columns: Sequence[str]) -> AvroType:
    """Return the record with only these fields, in this order.

    A field may refer to a type that a removed field defined. So each named type is defined again at its first use.
    """
    definitions = definitions_of(record.schema)
    fields = {field["name"]: field for field in record.schema["fields"]}
    defined: set[str] = set()
    kept = [fields[name] | {"type": _with_definitions(fields[name]["type"], definitions, defined)} for name in columns]
    return AvroType(
        record.schema | {"fields": kept},
        pa.struct([record.decoded.field(name) for name in columns]),
        pa.struct([record.column.field(name) for name in columns]),
    )


def definitions_of(schema: Any) -> dict[str, Any]:
    """Return the named types of a schema that `avro_type` rewrote, by name."""
    found: dict[str, Any] = {}
    _gather(schema, found)
    return found


def _gather(schema: Any, definitions: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _gather(branch, definitions)
    elif isinstance(schema, dict):
        if "name" in schema:
            definitions[schema["name"]] = schema
        for inner in (
            schema.get("items"),
            schema.get("values"),
            *(field["type"] for field in schema.get("fields", ())),
        ):
            _gather(inner, definitions)


def _with_definitions(schema: Any, definitions: dict[str, Any], defined: set[str]) -> Any:
    """Return the schema with each named type defined at its first use. Later uses refer to the name."""
    if isinstance(schema, list):
        return [_with_definitions(branch, definitions, defined) for branch in schema]
    if isinstance(schema, str):
        is_new = schema in definitions.keys() - defined
        return _with_definitions(definitions[schema], definitions, defined) if is_new else schema
    if schema.get("name") in defined:
        return schema["name"]
    if "name" in schema:
        defined.add(schema["name"])
    inner = {key: _with_definitions(schema[key], definitions, defined) for key in ("items", "values") if key in schema}
    if "fields" in schema:
        inner["fields"] = [
            field | {"type": _with_definitions(field["type"], definitions, defined)} for field in schema["fields"]
        ]
    return schema | inner


def _type(given: Any, path: str, space: str, named: _Named, where: str) -> AvroType:
    if isinstance(given, list):
        return _union(given, path, space, named, where)
    if isinstance(given, str):
        if given in _SIMPLE:
            return AvroType(given, _SIMPLE[given], _SIMPLE[given])
        return _reference(given, path, space, named, where)
    if not isinstance(given, dict) or "type" not in given:
        raise Refused(f"{where} has {str(given)[:60]!r} at {path or 'its top'}, expected an Avro type")
    kind = given["type"]
    if isinstance(kind, str) and kind in _SIMPLE:
        return _simple(given, kind, path, where)
    if isinstance(kind, str) and kind in _COMPLEX:
        return _COMPLEX[kind](given, path, space, named, where)
    return _type(kind, path, space, named, where)


def _array(given: Mapping[str, Any], path: str, space: str, named: _Named, where: str) -> AvroType:
    inner = _type(_part(given, "items", path, where), f"{path}[]", space, named, where)
    return AvroType({"type": "array", "items": inner.schema}, _list(inner.decoded), _list(inner.column))


def _of_map(given: Mapping[str, Any], path: str, space: str, named: _Named, where: str) -> AvroType:
    inner = _type(_part(given, "values", path, where), f"{path}{{}}", space, named, where)
    return AvroType({"type": "map", "values": inner.schema}, _map(inner.decoded), _map(inner.column))


def _simple(given: Mapping[str, Any], kind: str, path: str, where: str) -> AvroType:
    logical = str(given.get("logicalType"))
    if (logical, kind) in _NUMBERS:
        return AvroType(kind, *_NUMBERS[logical, kind])
    if logical == "decimal" and kind == "bytes":
        return _decimal(given, {"type": "bytes"}, path, where)
    return AvroType(kind, _SIMPLE[kind], _SIMPLE[kind])


def _decimal(given: Mapping[str, Any], carrier: dict[str, Any], path: str, where: str) -> AvroType:
    digits, scale = given.get("precision"), given.get("scale", 0)
    if not isinstance(digits, int) or not isinstance(scale, int) or not 0 < digits <= _DECIMAL_DIGITS_MAX:
        raise Unsupported(
            f"{where} has a decimal of precision {digits} and scale {scale} at {path}, columns have at most 38 digits"
        )
    column = pa.decimal128(digits, scale)
    return AvroType(carrier | {"logicalType": "decimal", "precision": digits, "scale": scale}, column, column)


def _record(given: Mapping[str, Any], path: str, space: str, named: _Named, where: str) -> AvroType:
    name, inside = _full_name(given, path, space, where)
    named.known[name] = None
    fields, decoded, columns = [], [], []
    for item in _part(given, "fields", path, where):
        label = _part(item, "name", path, where)
        inner = _type(_part(item, "type", path, where), f"{path}.{label}" if path else label, inside, named, where)
        kept = {key: item[key] for key in ("default", "aliases") if key in item}
        fields.append({"name": label, "type": inner.schema} | kept)
        decoded.append(pa.field(label, inner.decoded))
        columns.append(pa.field(label, inner.column))
    if not fields:
        raise Unsupported(f"{where} has a record without fields at {path or 'its top'}, which has no columns")
    schema = {"type": "record", "name": name, "fields": fields} | _aliases(given)
    return _keep(name, AvroType(schema, pa.struct(decoded), pa.struct(columns)), named)


def _enum_or_fixed(given: Mapping[str, Any], path: str, space: str, named: _Named, where: str) -> AvroType:
    name, _ = _full_name(given, path, space, where)
    kept = {key: given[key] for key in ("symbols", "size", "default") if key in given} | _aliases(given)
    schema = {"type": given["type"], "name": name} | kept
    if given["type"] == "enum":
        found = AvroType(schema, pa.string(), pa.string())
    elif given.get("logicalType") == "decimal":
        found = _decimal(given, schema, path, where)
    else:
        found = AvroType(schema, pa.binary(), pa.binary())
    return _keep(name, found, named)


def _keep(name: str, found: AvroType, named: _Named) -> AvroType:
    """Register a named type. Later uses refer to the name, because an Avro schema defines a type once."""
    named.known[name] = AvroType(name, found.decoded, found.column)
    return found


def _union(branches: list[Any], path: str, space: str, named: _Named, where: str) -> AvroType:
    given = [branch for branch in branches if branch != "null"]
    types = [_type(branch, path, space, named, where) for branch in given]
    if not types:
        return AvroType(["null"], pa.null(), pa.null())
    order: list[Any] = list(branches)
    for wide, widest in _WIDER:
        if len(types) > 1 and all(isinstance(member.schema, str) and member.schema in wide for member in types):
            return AvroType(order, _SIMPLE[widest], _SIMPLE[widest])
    if len(types) == 1:
        return AvroType(_in_order(order, [types[0].schema]), types[0].decoded, types[0].column)
    wrapped, decoded, columns = [], [], []
    for branch, member in zip(given, types, strict=True):
        label = f"member_{_branch_name(branch)}"
        wrapped.append(
            {
                "type": "record",
                "name": f"{_escaped(path)}_{label}",
                "fields": [{"name": label, "type": member.schema}],
            }
        )
        decoded.append(pa.field(label, member.decoded))
        columns.append(pa.field(label, member.column))
    return AvroType(_in_order(order, wrapped), pa.struct(decoded), pa.struct(columns))


def _in_order(branches: list[Any], schemas: list[Any]) -> list[Any]:
    remaining = iter(schemas)
    return [branch if branch == "null" else next(remaining) for branch in branches]


def _branch_name(branch: Any) -> str:
    if isinstance(branch, str):
        return _identifier(branch.rpartition(".")[2])
    name = branch.get("name") or branch.get("type")
    return _identifier(name.rpartition(".")[2]) if isinstance(name, str) else "value"


def _identifier(text: str) -> str:
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in text) or "top"


def _escaped(path: str) -> str:
    """Return a name for a path. Different paths have different names."""
    return "at" + "".join(letter if letter.isalnum() and letter.isascii() else f"_{ord(letter):x}_" for letter in path)


def _reference(name: str, path: str, space: str, named: _Named, where: str) -> AvroType:
    full = name if "." in name or not space else f"{space}.{name}"
    full = full if full in named.known else name
    if full not in named.known:
        raise Refused(f"{where} refers to type {name!r} at {path or 'its top'} before it defines the type")
    definition = named.known[full]
    if definition is None:
        raise Unsupported(
            f"{where} has a type {full!r} that contains itself, at {path}, and cannot be a column",
            hint="Read the values without a schema, as bytes",
        )
    return definition


def _full_name(given: Mapping[str, Any], path: str, space: str, where: str) -> tuple[str, str]:
    """Return the type's name with its namespace, and the namespace of types defined inside."""
    name = _part(given, "name", path, where)
    if not isinstance(name, str):
        raise Refused(f"{where} has {name!r} as the name of a type at {path or 'its top'}, expected text")
    outer = given.get("namespace", space)
    full = name if "." in name or not outer else f"{outer}.{name}"
    return full, full.rpartition(".")[0]


def _aliases(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"aliases": given["aliases"]} if "aliases" in given else {}


def _part(given: Any, name: str, path: str, where: str) -> Any:
    if not isinstance(given, dict) or name not in given:
        raise Refused(f"{where} has a type without {name!r} at {path or 'its top'}")
    return given[name]


def _list(inner: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", inner))


def _map(inner: pa.DataType) -> pa.DataType:
    return pa.map_(pa.string(), inner)


_COMPLEX = {
    "record": _record, "error": _record, "enum": _enum_or_fixed, "fixed": _enum_or_fixed, "array": _array,
    "map": _of_map,
}  # fmt: skip


class AvroCodec:
    """Decoder of payloads. A payload was encoded with the schema `writer`, and its value has the type `reader`.

    If `resolves` is False, the fields of `reader` must be a subset of the fields of `writer`. Decoding is then faster,
    because the schemas are not compared.
    """

    def __init__(self, writer: AvroType, reader: AvroType, where: str, *, resolves: bool) -> None:
        fastavro = require_fastavro(where)
        self.type = reader.column
        self._decoded = reader.decoded
        self._read = fastavro.schemaless_reader
        self._mismatch = fastavro.read.SchemaResolutionError
        try:
            self._writer = fastavro.parse_schema(_copied(writer.schema))
            self._reader = fastavro.parse_schema(_copied(reader.schema)) if resolves else None
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, TypeError, *JSON_FAULTS) as wrong:
            raise Refused(f"{where} is no Avro schema: {json_fault(wrong)}") from wrong

    def decode(self, payloads: pa.Array) -> Values:
        return decode_halving(payloads.to_pylist(), self._decode, self.type)

    def _decode(self, payloads: Sequence[bytes]) -> pa.Array:
        streams = list(map(BytesIO, payloads))
        try:
            found = list(map(self._read, streams, repeat(self._writer), repeat(self._reader)))
        except self._mismatch as wrong:
            raise ValueError(str(wrong)) from wrong
        if any(map(ne, map(BytesIO.tell, streams), map(len, payloads))):
            raise ValueError("the encoded value does not end where its payload ends")
        return pa.array(found, self._decoded).cast(self.type)


def require_fastavro(where: str) -> Any:
    """Return the module `fastavro`. Raises Unsupported with the command that installs the package."""
    try:
        import fastavro
    except ImportError as missing:
        raise Unsupported(
            f"{where} is Avro, and the package fastavro is not installed here",
            hint="Run pip install 'pyspark-ledger[pulsar]' on the driver and the executors",
        ) from missing
    return fastavro


def _copied(schema: Any) -> Any:
    """Return a copy of a schema, because `fastavro` changes the schemas that it parses."""
    return msgspec.json.decode(msgspec.json.encode(schema))
