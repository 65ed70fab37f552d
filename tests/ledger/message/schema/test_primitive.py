"""Goal: each of Pulsar's primitive types is its column, and what the column cannot state is wrong.

Method: golden bytes of each type, round trips of the widths.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import PayloadSchema, TopicSchemas
from pyspark_ledger.ledger.message.schema.primitive import PrimitiveCodec
from tests.rigs.schema import decode


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        ("BOOLEAN", b"\1", True),
        ("INT8", b"\xff", -1),
        ("INT16", b"\1\0", 256),
        ("INT32", struct.pack(">i", -5), -5),
        ("INT64", struct.pack(">q", 2**60), 2**60),
        ("FLOAT", struct.pack(">f", 1.5), 1.5),
        ("DOUBLE", struct.pack(">d", -2.25), -2.25),
        ("STRING", "héllo".encode(), "héllo"),
        ("BYTES", b"\0\xff", b"\0\xff"),
        ("DATE", struct.pack(">q", 86_400_001), datetime(1970, 1, 2, 0, 0, 0, 1000, tzinfo=UTC)),
        ("TIME", struct.pack(">q", 1), datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
        ("TIMESTAMP", struct.pack(">q", -1), datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
        ("INSTANT", struct.pack(">qi", 2, 3999), datetime(1970, 1, 1, 0, 0, 2, 3, tzinfo=UTC)),
        ("LOCAL_DATE", struct.pack(">q", -1), date(1969, 12, 31)),
        ("LOCAL_TIME", struct.pack(">q", 77), 77),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 1, 5000), datetime(1970, 1, 2, 0, 0, 0, 5)),  # noqa: DTZ001
    ],
)
def test_primitives(kind: str, payload: bytes, value: object) -> None:
    reader = PayloadDecoder(TopicSchemas({0: PayloadSchema(kind)}))
    found = decode(reader, [payload, None, payload])
    assert not found.wrong
    assert found.batch.to_pydict() == {"value": [value, None, value]}
    if kind not in {"STRING", "BYTES"}:
        short = decode(reader, [payload, payload + b"x", b"", payload])
        assert short.batch["value"].to_pylist() == [value, None, None, value]
        assert short.wrong[2] == f"0 bytes, {kind} takes {len(payload)}"


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.floats(allow_nan=False)))
def test_primitive_round_trip(numbers: list[int], floats: list[float]) -> None:
    for kind, form, values in (("INT64", ">q", numbers), ("DOUBLE", ">d", floats), ("LOCAL_TIME", ">q", [0, 86399])):
        found = PrimitiveCodec(kind).decode(pa.array([struct.pack(form, value) for value in values], pa.binary()))
        assert (found.array.to_pylist(), found.wrong) == (values, {})


def test_a_primitive_that_its_column_cannot_state_is_wrong() -> None:
    for kind, payload in (
        ("STRING", b"\xff"), ("TIMESTAMP", struct.pack(">q", 2**62)), ("LOCAL_DATE", struct.pack(">q", 2**40)),
        ("INSTANT", struct.pack(">qi", 2**62, 0)), ("LOCAL_DATE_TIME", struct.pack(">qq", 0, -1)),
        ("LOCAL_TIME", struct.pack(">q", -1)),
    ):  # fmt: skip
        found = decode(PayloadDecoder(TopicSchemas({0: PayloadSchema(kind)})), [payload])
        assert found.batch.to_pydict() == {"value": [None]}
        assert kind in found.wrong[0]
