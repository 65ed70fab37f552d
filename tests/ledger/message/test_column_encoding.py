"""Goal: encoded rows come back bit by bit, and only rows that shrink are encoded.

Method: round trips of every type, sizes of rows that repeat and of random rows, damaged indexes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.arrow_payload import DICTIONARY, decode_rows, encode_rows, leading_schema
from pyspark_ledger.ledger.message.column_encoding import Compression, Encoding, RowEncoder, choose_encoding

ROWS = 30_000
DAY = dt.date(2026, 11, 23)
TIMES = [dt.datetime(2026, 11, 23, hour, tzinfo=dt.UTC) for hour in range(24)]
REPEATED: dict[str, pa.Array] = {
    "text": pa.array(["Berlin", "Paris", None] * ROWS, pa.string()),
    "large": pa.array(["Berlin", "Paris", ""] * ROWS, pa.large_string()),
    "bytes": pa.array([b"\0", b"\xff", None] * ROWS, pa.binary()),
    "fixed": pa.array([b"abcd", b"efgh", None] * ROWS, pa.binary(4)),
    "int16": pa.array([1, -2, None] * ROWS, pa.int16()),
    "uint64": pa.array([2**64 - 1, 0, 7] * ROWS, pa.uint64()),
    "day": pa.array([DAY, None, DAY + dt.timedelta(1)] * ROWS),
    "time": pa.array([TIMES[number % 24] for number in range(3 * ROWS)], pa.timestamp("us", "UTC")),
    "decimal": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-3.50")] * ROWS, pa.decimal128(10, 2)),
    "decimal32": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-3.50")] * ROWS, pa.decimal32(5, 2)),
    "decimal256": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-3.50")] * ROWS, pa.decimal256(50, 2)),
    "double": pa.array([0.0, -0.0, 1.5] * ROWS, pa.float64()),
    "byte": pa.array([1, 2, None] * ROWS, pa.int8()),
    "flag": pa.array([True, False, None] * ROWS),
    "list": pa.array([[1, None], [], None] * ROWS, pa.list_(pa.int32())),
    "struct": pa.array([{"x": "a"}, {"x": None}, None] * ROWS, pa.struct([("x", pa.string())])),
}
PLAIN_ONLY = {"byte", "flag", "list", "struct", "decimal32"}


def dictionaries(payload: pa.Buffer) -> set[str]:
    """Names of the columns that are dictionaries in the stream."""
    schema = pa.ipc.read_schema(pa.BufferReader(payload))
    return {field.name for field in schema if pa.types.is_dictionary(field.type)}


@pytest.mark.parametrize("compression", ["auto", "lz4", "zstd"])
@pytest.mark.parametrize("name", REPEATED)
def test_a_repeating_column_comes_back_from_fewer_bytes(name: str, compression: Compression) -> None:
    batch = pa.record_batch([REPEATED[name]], schema=pa.schema([pa.field(name, REPEATED[name].type)]))
    payload = RowEncoder(compression).encode([batch])
    (found,) = decode_rows(payload)
    assert found.equals(batch, check_metadata=True)
    assert payload.size < encode_rows([batch]).size / 2
    assert not dictionaries(payload) & PLAIN_ONLY
    assert leading_schema(payload[:4096]) == batch.schema


def test_all_columns_together_and_some_of_them() -> None:
    fields = [pa.field(name, column.type, metadata={"unit": "none"}) for name, column in REPEATED.items()]
    batch = pa.record_batch(list(REPEATED.values()), schema=pa.schema(fields))
    payload = RowEncoder("zstd").encode([batch.slice(100, 5000), batch.slice(7, ROWS)])
    (found,) = decode_rows(payload)
    expected = pa.Table.from_batches([batch.slice(100, 5000), batch.slice(7, ROWS)]).combine_chunks()
    assert pa.Table.from_batches([found]).equals(expected, check_metadata=True)
    (some,) = decode_rows(payload, wanted=lambda name: name in {"text", "list", "double"})
    assert some.schema.names == ["text", "double", "list"]
    assert pa.Table.from_batches([some]).equals(expected.select(some.schema.names))


def test_every_bit_of_a_float_comes_back() -> None:
    patterns = [0, 1 << 63, 0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001]
    data = struct.pack(f"<{ROWS}Q", *random.Random(2).choices(patterns, k=ROWS))
    column = pa.Array.from_buffers(pa.float64(), ROWS, [None, pa.py_buffer(data)])
    payload = RowEncoder("zstd").encode([pa.record_batch({"x": column})])
    assert dictionaries(payload) == {"x"}
    assert decode_rows(payload)[0].column(0).buffers()[1].to_pybytes()[: len(data)] == data


@settings(deadline=None, max_examples=50)
@given(st.lists(st.none() | st.text(max_size=4), min_size=1, max_size=9), st.sampled_from(["auto", "lz4", "zstd"]))
def test_texts_of_any_kind(texts: list[str | None], compression: Compression) -> None:
    batch = pa.record_batch({"t": pa.array(texts * 4000, pa.string())})
    assert decode_rows(RowEncoder(compression).encode([batch])) == [batch]


@pytest.mark.parametrize("row_bytes", [120, 1024])
def test_rows_that_do_not_shrink_stay_plain(row_bytes: int) -> None:
    rows = 2 * 1024 * 1024 // row_bytes
    body = np.random.default_rng(3).bytes(rows * (row_bytes - 16))
    bodies = pa.FixedSizeBinaryArray.from_buffers(pa.binary(row_bytes - 16), rows, [None, pa.py_buffer(body)])
    batch = pa.record_batch({"a": np.arange(rows), "b": np.arange(rows) * 7, "body": bodies.cast(pa.binary())})
    assert choose_encoding(batch, "auto") == Encoding()
    assert RowEncoder().encode([batch]).equals(encode_rows([batch]))


def test_a_small_entry_stays_plain() -> None:
    batch = pa.record_batch({"city": ["Berlin"] * 100})
    assert RowEncoder("zstd").encode([batch]).equals(encode_rows([batch]))


def test_an_entry_with_too_many_values_has_no_dictionary() -> None:
    encoder = RowEncoder("lz4")
    few = pa.record_batch({"n": pa.array([1, 2, 3, 4] * ROWS, pa.int64())})
    many = pa.record_batch({"n": pa.array(random.Random(1).sample(range(2**40), 4 * ROWS), pa.int64())})
    assert dictionaries(encoder.encode([few])) == {"n"}
    payload = encoder.encode([many])
    assert dictionaries(payload) == set()
    assert decode_rows(payload) == [many]


def test_a_writer_samples_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.message.column_encoding._ENTRIES_PER_SAMPLE", 3)
    encoder = RowEncoder()
    random_rows = pa.record_batch({"n": pa.array(random.Random(1).sample(range(2**62), ROWS), pa.int64())})
    repeated = pa.record_batch({"n": pa.array([5] * ROWS, pa.int64())})
    sizes = [encoder.encode([batch]).size for batch in (random_rows, repeated, repeated, repeated)]
    assert sizes[1] == sizes[2] > 100 * sizes[3]


def test_a_dictionary_of_the_user_stays_a_dictionary() -> None:
    batch = pa.record_batch({"d": pa.array(["a", "b"] * ROWS).dictionary_encode(), "t": ["x", "y"] * ROWS})
    (found,) = decode_rows(RowEncoder("lz4").encode([batch]))
    assert found.schema == batch.schema
    assert found == batch


def test_an_index_without_a_value_is_damage() -> None:
    indexes: Any = pa.array([0, 9] * ROWS, pa.uint8())
    column = pa.DictionaryArray.from_arrays(indexes, pa.array(["only"]), safe=False)
    schema = pa.schema([pa.field("city", column.type, metadata=DICTIONARY)])
    with pytest.raises(Corrupt, match=r"entry 3:17 of \d+ bytes is no stream of rows: .*9"):
        decode_rows(encode_rows([pa.record_batch([column], schema=schema)]), "entry 3:17")


def test_rows_of_two_chunks_of_text_are_one_entry() -> None:
    batches = [pa.record_batch({"t": ["a", "b"] * ROWS}), pa.record_batch({"t": ["c"] * ROWS})]
    (found,) = decode_rows(RowEncoder().encode(batches))
    assert found.num_rows == 3 * ROWS
    assert found.column(0).to_pylist()[-1] == "c"
