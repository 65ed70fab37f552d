"""Decoder of payloads to columns. Each payload is decoded with the schema version that its message states.

Rules
- Rows have the columns of the newest version. A record has a column for each field, a key-value schema has `key` and
  `value`, any other type has `value`. Avro payloads of older versions are converted to the newest version.
- A payload without a version is decoded with the newest version.
- A payload is not decoded if its version is unknown, or has another type than the newest version. It is not decoded
  either if its bytes do not match its schema. In these cases its row is null, and `wrong` has the reason.
- A null payload (a tombstone) becomes a row of nulls, and `wrong` has no reason for it.
- Only the requested `columns` are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.message.byte_ranges import Integers
from pyspark_ledger.ledger.message.schema.avro import AvroCodec, AvroType, avro_type, pruned
from pyspark_ledger.ledger.message.schema.documents import PRIMITIVES, PayloadSchema, TopicSchemas
from pyspark_ledger.ledger.message.schema.json_codec import JsonCodec
from pyspark_ledger.ledger.message.schema.key_value import both_sides, is_separated, split_inline
from pyspark_ledger.ledger.message.schema.primitive import PrimitiveCodec
from pyspark_ledger.ledger.message.schema.values import Codec, Values

NO_VERSION = -1


@dataclass(frozen=True, slots=True)
class Decoded:
    """Columns of payloads. `wrong` maps the row of each undecodable payload to the reason."""

    batch: pa.RecordBatch
    wrong: dict[int, str]


class PayloadDecoder:
    """Decoder of the payloads of a topic. `columns` are the requested columns in order, None for all."""

    def __init__(self, schemas: TopicSchemas, columns: Sequence[str] | None = None, where: str = "the schema") -> None:
        self._where = where
        newest = schemas.versions[schemas.newest]
        if newest.type == "KEY_VALUE":
            self._shape: _PairShape | _PlainShape = _PairShape(schemas, columns, where)
        else:
            self._shape = _PlainShape(schemas, columns, where)
        self.schema: pa.Schema = self._shape.schema

    @property
    def needs_keys(self) -> bool:
        """Whether the message's key is a part of its row: the schema is a key-value schema with separate keys."""
        return self._shape.needs_keys

    def decode(self, payloads: pa.Array, versions: Integers | None = None, keys: pa.Array | None = None) -> Decoded:
        """Decode a binary column of payloads. A null payload is a tombstone.

        `versions` are the schema versions of the payloads, -1 for a payload without a version. `keys` are the bytes of
        the message keys. Only a key-value schema with separate keys uses them.
        """
        if versions is None:
            versions = np.full(len(payloads), NO_VERSION, dtype=np.int64)
        columns, wrong = self._shape.columns(payloads, versions, keys)
        return Decoded(pa.RecordBatch.from_arrays(columns, schema=self.schema), wrong)


class _PlainShape:
    """Columns of all schemas except key-value schemas."""

    needs_keys = False

    def __init__(self, schemas: TopicSchemas, columns: Sequence[str] | None, where: str) -> None:
        self._side = _Side(schemas.versions, schemas.newest, columns, where)
        kind = self._side.type
        self._is_record = pa.types.is_struct(kind)
        self.schema = pa.schema(list(kind) if self._is_record else [pa.field("value", kind)])

    def columns(
        self, payloads: pa.Array, versions: Integers, _keys: pa.Array | None
    ) -> tuple[list[pa.Array], dict[int, str]]:
        values = self._side.decode(payloads, versions)
        return values.array.flatten() if self._is_record else [values.array], values.wrong


class _PairShape:
    """Columns of key-value schemas."""

    def __init__(self, schemas: TopicSchemas, columns: Sequence[str] | None, where: str) -> None:
        newest = schemas.versions[schemas.newest]
        self.needs_keys = is_separated(newest, where)
        sides: tuple[dict[int, PayloadSchema], dict[int, PayloadSchema]] = {}, {}
        for version, schema in schemas.versions.items():
            is_alike = schema.type == newest.type and is_separated(schema, where) == self.needs_keys
            for side, half in zip(sides, both_sides(schema, where) if is_alike else (schema, schema), strict=True):
                side[version] = half
        names = _require_columns(["key", "value"], columns, where)
        self._sides = {
            name: _Side(side, schemas.newest, None, f"{where}, side {name!r},")
            for name, side in zip(("key", "value"), sides, strict=True)
            if name in names
        }
        self.schema = pa.schema([pa.field(name, self._sides[name].type) for name in names])

    def columns(
        self, payloads: pa.Array, versions: Integers, keys: pa.Array | None
    ) -> tuple[list[pa.Array], dict[int, str]]:
        wrong: dict[int, str] = {}
        if not self.needs_keys:
            keys, payloads, wrong = self._split(payloads)
        parts = {"key": pa.nulls(len(payloads), pa.binary()) if keys is None else keys, "value": payloads}
        found = {name: side.decode(parts[name], versions) for name, side in self._sides.items()}
        for name, values in found.items():
            wrong |= {row: f"{name}: {reason}" for row, reason in values.wrong.items() if row not in wrong}
        lost = np.zeros(len(payloads), dtype=np.bool_)
        lost[list(wrong)] = True
        columns = [found[name].array for name in self.schema.names]
        return [_without(column, lost) for column in columns] if wrong else columns, wrong

    @staticmethod
    def _split(payloads: pa.Array) -> tuple[pa.Array, pa.Array, dict[int, str]]:
        """Split payloads into keys and values. A tombstone has neither."""
        rows = np.flatnonzero(np.asarray(payloads.is_valid()))
        keys, values, wrong = split_inline(payloads.drop_null())
        if len(rows) == len(payloads):
            return keys, values, wrong
        return (
            _scattered(keys, rows, len(payloads)),
            _scattered(values, rows, len(payloads)),
            {int(rows[row]): reason for row, reason in wrong.items()},
        )


class _Side:
    """Decoder of whole payloads, of their keys, or of their values. It creates the codec of a version on first use."""

    def __init__(
        self, versions: dict[int, PayloadSchema], newest: int, columns: Sequence[str] | None, where: str
    ) -> None:
        self._versions, self._newest, self._where = versions, newest, where
        kind = versions[newest].type
        self._reader: AvroType | None = None
        self._whole: AvroType | None = None
        if kind in {"AVRO", "JSON"}:
            whole = avro_type(versions[newest].data, where)
            is_record = isinstance(whole.schema, dict) and whole.schema["type"] == "record"
            if columns is not None:
                names = _require_columns(whole.column.names if is_record else ["value"], columns, where)
                self._reader = pruned(whole, names) if is_record else whole
            self._whole = whole
            self._reader = self._reader or whole
        self._columns = columns
        self._codecs: dict[int, Codec | str] = {}
        self._codecs[newest] = self._codec(newest)
        self.type: pa.DataType = self._codecs[newest].type  # type: ignore[union-attr]  # the newest version has a codec

    def decode(self, payloads: pa.Array, versions: Integers) -> Values:
        """Decode payloads, each with its version. A null payload stays null."""
        present = np.asarray(payloads.is_valid())
        payload_versions = np.where(versions < 0, self._newest, versions)
        distinct = np.unique(payload_versions[present]).tolist()
        if len(distinct) == 1 and present.all():
            return self._of_version(distinct[0], payloads)
        parts, places, decoded_rows = [pa.nulls(0, self.type)], np.full(len(payloads), -1, dtype=np.int64), 0
        wrong: dict[int, str] = {}
        for version in distinct:
            rows = np.flatnonzero(present & (payload_versions == version))
            values = self._of_version(version, payloads.take(pa.array(rows)))
            places[rows] = decoded_rows + np.arange(len(rows))
            decoded_rows += len(rows)
            wrong |= {int(rows[row]): reason for row, reason in values.wrong.items()}
            parts.append(values.array)
        joined = pa.concat_arrays(parts)
        return Values(joined.take(pa.array(places, mask=places < 0)), wrong)

    def _of_version(self, version: int, payloads: pa.Array) -> Values:
        if version not in self._codecs:
            self._codecs[version] = self._codec(version)
        codec = self._codecs[version]
        if isinstance(codec, str):
            return Values(pa.nulls(len(payloads), self.type), dict.fromkeys(range(len(payloads)), codec))
        return codec.decode(payloads)

    def _codec(self, version: int) -> Codec | str:
        """Return the codec of a version, or the reason why there is none."""
        if self._versions[self._newest].type == "BYTES":
            version = self._newest  # with the type BYTES, a payload of any version is read as bytes
        if version not in self._versions:
            return f"schema version {version} is not among those given ({', '.join(map(str, sorted(self._versions)))})"
        schema, newest = self._versions[version], self._versions[self._newest]
        where = f"schema version {version} of {self._where}"
        if schema.type != newest.type:
            return f"schema version {version} is {schema.type}, rows are read as version {self._newest}, {newest.type}"
        if schema.type in PRIMITIVES:
            _require_columns(["value"], self._columns, where)
            return PrimitiveCodec(schema.type)
        if self._reader is not None and schema.type == "JSON":
            return JsonCodec(self._reader, where)
        if self._reader is not None and self._whole is not None:
            writer = avro_type(schema.data, where)
            return AvroCodec(writer, self._reader, where, resolves=writer.schema != self._whole.schema)
        if schema.type == "PROTOBUF_NATIVE":
            # The newest descriptor decodes all versions, because Protobuf identifies fields by their numbers.
            from pyspark_ledger.ledger.message.schema.protobuf import ProtobufCodec

            return ProtobufCodec(newest.data, self._columns, where)
        raise Unsupported(
            f"{where} is of type {schema.type}, which has no descriptor to decode payloads with",
            hint="Give a schema of type PROTOBUF_NATIVE, with the descriptor of `protoc --descriptor_set_out`",
        )


def _require_columns(known: Sequence[str], wanted: Sequence[str] | None, where: str) -> list[str]:
    """Return the columns to decode. Raises Refused naming a requested column that is not `known`."""
    if wanted is None:
        return list(known)
    for name in wanted:
        if name not in known:
            raise Refused(f"{where} has no column {name!r}", hint=f"The columns are {', '.join(known)}")
    return list(wanted)


def _scattered(array: pa.Array, rows: Integers, length: int) -> pa.Array:
    """Return a column of `length` rows with `array[i]` at row `rows[i]`, null elsewhere."""
    places = np.full(length, -1, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    return array.take(pa.array(places, mask=places < 0))


def _without(column: pa.Array, lost: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    """Return the column with null in the `lost` rows, for any type."""
    if not lost.any():
        return column
    return column.take(pa.array(np.arange(len(column)), mask=lost))
