"""Encoder of objects to payloads, by the newest payload schema of a ledger.

Rules
- An object becomes a row with the columns of the schema, so it is checked as an appended object is. A field of the
  schema that the class lacks is null, and refused if the schema allows no null there.
- A value that its schema does not allow is refused here, for both types. Reason: `fastavro` writes a null in a boolean
  as false, and the first member of a union that fits.
- JSON has the forms of Java's JSON library Jackson. A time is a number in the unit of the schema, bytes are base64, and
  a number such as NaN is text. `fastavro` writes Avro.
- Schemas of other types are refused. Encode such a payload with its own library, and send bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from io import BytesIO
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as of

from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.message.schema.avro import AvroType, avro_type, definitions_of, require_fastavro
from pyspark_ledger.ledger.message.schema.documents import TopicSchemas
from pyspark_ledger.ledger.message.schema.json_codec import JsonCodec
from pyspark_ledger.ledger.rows.row_type import RowType

_JSON = msgspec.json.Encoder(decimal_format="number")


def payload_encoder(row_type: RowType[Any], schemas: TopicSchemas, ledger: str) -> Callable[[Any], bytes]:
    """Return the function that encodes an object. Raises Refused if the class does not fit the newest schema.

    Raises Unsupported for a schema of a type other than JSON and AVRO, and for JSON of a union of several types.
    """
    schema, where = schemas.versions[schemas.newest], f"schema version {schemas.newest} of ledger {ledger!r}"
    if schema.type not in {"JSON", "AVRO"}:
        raise Unsupported(
            f"{where} is of type {schema.type}, and objects are encoded as JSON and AVRO only",
            hint="Encode the payload with the library of its type, and send bytes",
        )
    avro = avro_type(schema.data, where)
    if not of.is_struct(avro.column):
        raise Refused(f"{where} is {avro.column}, expected a record", hint="Send bytes")
    columns = pa.schema(list(avro.column))
    row_type.require_fits(columns, ledger)
    if schema.type == "JSON":
        JsonCodec(avro, where)  # refuses a schema that no reader can decode
        write: Callable[[Any], bytes] = _JSON.encode
    else:
        write = _avro_writer(avro, where)
    plain = _with_numbers(avro.decoded)
    named = definitions_of(avro.schema)
    kinds = [kind for kind, before in ((avro.decoded, avro.column), (plain, avro.decoded)) if kind != before]

    def encode(value: Any) -> bytes:
        array = row_type.array([value], columns, ledger)
        try:
            for kind in kinds:
                array = array.cast(kind)
            row = array[0].as_py()
            _require_allowed(row, avro.schema, named, "")
            return write(_plain(row, plain, is_json=schema.type == "JSON"))
        except (pa.ArrowException, ValueError, TypeError) as wrong:
            raise Refused(f"an object for ledger {ledger!r} cannot be encoded by {where}: {wrong}") from wrong

    return encode


def _require_allowed(value: Any, schema: Any, named: dict[str, Any], path: str) -> None:
    """Raise ValueError, which names the field, for a value of Arrow that its Avro schema does not allow."""
    if isinstance(schema, list):
        _require_branch(value, schema, named, path)
        return
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema if isinstance(schema, str) else schema["type"]
    if (value is None) != (kind == "null"):
        raise ValueError(f"field {path!r} is {'null' if value is None else repr(value)}, expected {kind}")
    if kind == "record":
        for field in schema["fields"]:
            name = field["name"]
            _require_allowed(value[name], field["type"], named, f"{path}.{name}" if path else name)
    elif kind == "array":
        for item in value:
            _require_allowed(item, schema["items"], named, f"{path}.element")
    elif kind == "map":
        for _, item in value:
            _require_allowed(item, schema["values"], named, f"{path}.value")
    elif kind == "enum" or (kind == "fixed" and isinstance(value, bytes)):
        _require_named(value, schema, path)


def _require_named(value: Any, schema: dict[str, Any], path: str) -> None:
    if schema["type"] == "enum" and value not in schema["symbols"]:
        raise ValueError(f"field {path!r} is {value!r}, expected one of {', '.join(schema['symbols'])}")
    if schema["type"] == "fixed" and len(value) != schema["size"]:
        raise ValueError(f"field {path!r} has {len(value)} bytes, expected {schema['size']}")


def _require_branch(value: Any, branches: list[Any], named: dict[str, Any], path: str) -> None:
    """Do `_require_allowed` for a union. Several branches other than null are records of one member each."""
    if value is None and "null" in branches:
        return
    if value is None:
        raise ValueError(f"field {path!r} is null, and its union has no null")
    given = [branch for branch in branches if branch != "null"]
    if len(given) > 1 and isinstance(value, dict):
        members = [name for name, member in value.items() if member is not None]
        if len(members) != 1:
            raise ValueError(f"union {path!r} has {len(members)} members ({', '.join(members)}), expected one")
        given = [branch["fields"][0]["type"] for branch in given if branch["fields"][0]["name"] in members]
        value, path = value[members[0]], f"{path}.{members[0]}"
    _require_allowed(value, given[0] if given else "null", named, path)


def _avro_writer(avro: AvroType, where: str) -> Callable[[Any], bytes]:
    fastavro = require_fastavro(where)
    schema = fastavro.parse_schema(msgspec.json.decode(msgspec.json.encode(avro.schema)))

    def write(row: Any) -> bytes:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, schema, row)
        return stream.getvalue()

    return write


def _with_numbers(kind: pa.DataType) -> pa.DataType:
    """Return a type with numbers in place of times, at every depth."""
    if of.is_struct(kind):
        return pa.struct([field.with_type(_with_numbers(field.type)) for field in kind])
    if of.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_numbers(kind.value_type)))
    if of.is_map(kind):
        return pa.map_(kind.key_type, _with_numbers(kind.item_type))
    return pa.int32() if of.is_date(kind) else pa.int64() if of.is_timestamp(kind) else kind


def _plain(value: Any, kind: pa.DataType, *, is_json: bool) -> Any:
    """Return a value of Arrow with maps as dictionaries and, for JSON, with text for a number such as NaN."""
    if value is None:
        return None
    if of.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type, is_json=is_json) for field in kind}
    if of.is_list(kind):
        return [_plain(item, kind.value_type, is_json=is_json) for item in value]
    if of.is_map(kind):
        return {key: _plain(item, kind.item_type, is_json=is_json) for key, item in value}
    if is_json and of.is_floating(kind) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
