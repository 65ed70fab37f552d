"""Avro datums as Pulsar writes them, bare: without container, magic or fingerprint; decoded by `fastavro`.

    what is decoded at once:  count  ( datum  seal )…  0          an Avro array of records of a datum and a fixed

Rules
- A datum is read by its writer's schema and resolved to the reader's, as Avro says: defaults, aliases, wider numbers.
- Fields that nobody asked for become no columns; those of an older version are skipped in the bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ledger.errors import Refused, Unsupported
from ledger.payload_schema.avro_types import AvroType
from ledger.payload_schema.values import SEAL_BYTES, Values, decode_halving, seal

_DATUM, _SEAL = "datum", "seal"


class AvroCodec:
    """Decodes datums of `writer` as values of `reader`.

    Not `resolves`: the reader's fields are some of the writer's own, which is quicker than to compare the schemas.
    """

    def __init__(self, writer: AvroType, reader: AvroType, where: str, *, resolves: bool = True) -> None:
        fastavro = require_fastavro(where)
        self.type = reader.column
        self._decoded = pa.struct([(_DATUM, reader.decoded), (_SEAL, pa.binary())])
        self._read = fastavro.schemaless_reader
        self._mismatch = fastavro.read.SchemaResolutionError
        try:
            self._writer = fastavro.parse_schema(_sealed(writer.schema))
            self._reader = fastavro.parse_schema(_sealed(reader.schema)) if resolves else None
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, ValueError, TypeError) as wrong:
            raise Refused(f"{where} is no Avro schema: {wrong}") from wrong

    def decode(self, payloads: pa.Array) -> Values:
        """The values of payloads (binary, without nulls)."""
        return decode_halving(payloads.to_pylist(), self._decode, self.type)

    def _decode(self, payloads: Sequence[bytes]) -> pa.Array:
        between = seal(payloads)
        data = io.BytesIO(_number(len(payloads)) + between.join(payloads) + between + b"\0")
        try:
            found: Any = self._read(data, self._writer, self._reader)
        except self._mismatch as wrong:
            raise ValueError(str(wrong)) from wrong
        if len(found) != len(payloads) or data.read(1):
            raise ValueError("the datum does not end where its payload does")
        pairs = pa.array(found, self._decoded)
        if not pc.all(pc.equal(pairs.field(_SEAL), pa.scalar(between, pa.binary()))).as_py():
            raise ValueError("the datum does not end where its payload does")
        return pairs.field(_DATUM).cast(self.type)


def require_fastavro(where: str) -> Any:
    """The library; Unsupported says how to get it."""
    try:
        import fastavro
    except ImportError as missing:
        raise Unsupported(
            f"{where} is Avro, and the package fastavro is not installed here",
            hint="pip install 'pyspark-ledger[pulsar]' where the driver and the executors run",
        ) from missing
    return fastavro


def _sealed(schema: Any) -> dict[str, Any]:
    fixed = {"type": "fixed", "name": "LedgerSeal", "size": SEAL_BYTES}
    fields = [{"name": _DATUM, "type": schema}, {"name": _SEAL, "type": fixed}]
    return {"type": "array", "items": {"type": "record", "name": "LedgerSealed", "fields": fields}}


def _number(count: int) -> bytes:
    """A count as Avro writes it: zigzag, seven bits a byte, lowest first."""
    left, digits = count << 1, bytearray()
    while left > 0x7F:
        digits.append(left & 0x7F | 0x80)
        left >>= 7
    digits.append(left)
    return bytes(digits)
