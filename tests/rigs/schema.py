"""Payloads of a schema: a record with every Avro type, and the expected value of each payload."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.message.schema.decoder import Decoded, PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import PayloadSchema, TopicSchemas

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "by", "type": {"type": "map", "values": {"type": "long", "logicalType": "local-timestamp-micros"}}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "USED"]}},
        {"name": "before", "type": ["null", "Kind"], "default": None},
        {"name": "either", "type": ["null", "string", "long", {"type": "record", "name": "P", "fields": [
            {"name": "x", "type": "int"}]}]},
        {"name": "raw", "type": {"type": "fixed", "name": "Four", "size": 4}},
    ],
}  # fmt: skip


ROW = {
    "id": 7, "who": "ann", "price": Decimal("12.50"), "at": datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC),
    "day": date(2026, 1, 2), "tags": ["a", "b"], "by": {"k": datetime(2026, 5, 5, 1, 2, 3, 4)},  # noqa: DTZ001
    "kind": "USED", "before": "NEW", "either": {"x": 3}, "raw": b"\0\1\2\3",
}  # fmt: skip


EXPECTED = {
    **ROW,
    "by": [("k", datetime(2026, 5, 5, 1, 2, 3, 4))],  # noqa: DTZ001
    "either": {"member_string": None, "member_long": None, "member_P": {"x": 3}},
}


def avro(row: object, schema: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return out.getvalue()


def decoder(schema: Any, kind: str = "AVRO", **more: Any) -> PayloadDecoder:
    return PayloadDecoder(TopicSchemas({0: PayloadSchema(kind, json.dumps(schema))}), **more)


def decode(reader: PayloadDecoder, payloads: list[bytes | None], versions: list[int] | None = None) -> Decoded:
    stated = None if versions is None else np.array(versions, dtype=np.int64)
    found = reader.decode(pa.array(payloads, pa.binary()), stated)
    found.batch.validate(full=True)
    assert found.batch.num_rows == len(payloads)
    return found
