"""Avro datums as Pulsar writes them, bare: without container, magic or fingerprint; decoded by `fastavro`.

Rules
- A datum is read by its writer's schema and resolved to the reader's, as Avro says: defaults, aliases, wider numbers.
- A datum that ends before its payload does, or after it, is wrong.
- Fields that nobody asked for become no columns; those of an older version are skipped in the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import repeat
from operator import ne
from typing import Any

import msgspec
import pyarrow as pa

from ledger.errors import Refused, Unsupported
from ledger.json_faults import JSON_FAULTS, json_fault
from ledger.payload_schema.avro_types import AvroType
from ledger.payload_schema.values import Values, decode_halving


class AvroCodec:
    """Decodes datums of `writer` as values of `reader`.

    Not `resolves`: the reader's fields are some of the writer's own, which is quicker than to compare the schemas.
    """

    def __init__(self, writer: AvroType, reader: AvroType, where: str, *, resolves: bool = True) -> None:
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
        """The values of payloads (binary, without nulls)."""
        return decode_halving(payloads.to_pylist(), self._decode, self.type)

    def _decode(self, payloads: Sequence[bytes]) -> pa.Array:
        streams = list(map(BytesIO, payloads))
        try:
            found = list(map(self._read, streams, repeat(self._writer), repeat(self._reader)))
        except self._mismatch as wrong:
            raise ValueError(str(wrong)) from wrong
        if any(map(ne, map(BytesIO.tell, streams), map(len, payloads))):
            raise ValueError("the datum does not end where its payload does")
        return pa.array(found, self._decoded).cast(self.type)


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


def _copied(schema: Any) -> Any:
    """The library writes into the schemas that it parses."""
    return msgspec.json.decode(msgspec.json.encode(schema))
