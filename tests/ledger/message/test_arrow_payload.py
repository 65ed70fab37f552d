"""Goal: rows come back as they were written, without a copy. Method: round trips, addresses of buffers, damage."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata, decode_rows, encode_rows, schema_version_of
from pyspark_ledger.ledger.message.entry import encode_entry, entry_rows, parse_entry
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("point", pa.struct([("x", pa.float64())])),
    ]
)
ROW = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(max_size=5),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "at": st.none() | st.integers(0, 10**15),
        "point": st.none() | st.fixed_dictionaries({"x": st.none() | st.floats(allow_nan=False)}),
    }
)


def numbers(*sizes: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"n": pa.array(range(size), pa.int64())}) for size in sizes]


@settings(deadline=None)
@given(st.lists(st.lists(ROW, max_size=6), min_size=1, max_size=3), st.sampled_from([None, "lz4", "zstd"]))
@pytest.mark.thorough
def test_round_trip(rows: list[list[dict[str, Any]]], compression: Literal["lz4", "zstd"] | None) -> None:
    batches = [pa.RecordBatch.from_pylist(part, schema=SCHEMA) for part in rows]
    payload = encode_rows(batches, compression=compression)
    for buffer in (payload, payload.to_pybytes(), memoryview(payload)):
        found = decode_rows(buffer)
        assert found == batches
        assert all(batch.schema.equals(SCHEMA) for batch in found)


def test_a_slice_writes_its_own_rows_only() -> None:
    whole = numbers(100_000)[0]
    assert encode_rows([whole.slice(7, 10)]).size < 1000
    assert decode_rows(encode_rows([whole.slice(7, 10)]))[0].column(0).to_pylist() == list(range(7, 17))


def test_columns_are_views_of_an_entry_in_a_mapped_file(tmp_path: Path) -> None:
    metadata = arrow_metadata("p", 1, 2, 1000, 0)
    path = tmp_path / "entry"
    path.write_bytes(b"".join(bytes(part) for part in encode_entry(metadata, encode_rows(numbers(1000)))))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        start = pa.py_buffer(mapped).address
        before = pa.total_allocated_bytes()
        batches = decode_rows(parse_entry(mapped, "it").payload)
        address = batches[0].column(0).buffers()[1].address
        assert start <= address <= start + path.stat().st_size - 8000
        assert pa.total_allocated_bytes() - before < 8000
        assert batches[0].column(0).to_pylist() == list(range(1000))
        del batches


def test_every_cut_is_corrupt_even_between_batches() -> None:
    payload = encode_rows(numbers(3, 4)).to_pybytes()
    for size in range(len(payload)):
        with pytest.raises(Corrupt, match=f"entry 3:17 of {size} bytes"):
            decode_rows(payload[:size], "entry 3:17")


def test_bytes_behind_the_stream_are_corrupt() -> None:
    payload = encode_rows(numbers(3)).to_pybytes()
    with pytest.raises(Corrupt, match="does not end with the end mark of a stream"):
        decode_rows(payload + b"x")
    with pytest.raises(Corrupt, match=f"has {2 * len(payload)} bytes, but .* ends at byte {len(payload)}"):
        decode_rows(payload * 2)


def test_what_is_no_stream_is_corrupt() -> None:
    for payload in (b"", b"abc", b"\xff\xff\xff\xff\x00\x00\x00\x00", b"x" * 100 + b"\xff\xff\xff\xff\x00\x00\x00\x00"):
        with pytest.raises(Corrupt, match="an Arrow payload of"):
            decode_rows(payload)


def test_batches_share_one_schema() -> None:
    with pytest.raises(Refused, match="no record batch"):
        encode_rows([])
    other = pa.record_batch({"n": pa.array(["a"])})
    with pytest.raises(Refused, match="record batch 1 has the columns n string, the first has n int64"):
        encode_rows([*numbers(1), other])


def test_metadata_says_rows_version_and_run() -> None:
    metadata = arrow_metadata("producer-1", 7, 1_700_000_000_000, 12, 258, (2**64 - 1, 3))
    assert entry_rows(metadata) == 12
    assert metadata.schema_version == b"\0\0\0\0\0\0\x01\x02"
    assert schema_version_of(metadata, "it") == 258
    assert (metadata.txnid_most_bits, metadata.txnid_least_bits) == (2**64 - 1, 3)
    assert not metadata.HasField("num_messages_in_batch")
    assert not arrow_metadata("p", 1, 2, 0, 0).HasField("txnid_most_bits")
    assert MessageMetadata.FromString(metadata.SerializeToString()) == metadata


def test_a_schema_version_of_another_length_is_corrupt() -> None:
    metadata = arrow_metadata("p", 1, 2, 3, 4)
    metadata.schema_version = b"\x01"
    with pytest.raises(Corrupt, match="entry 3:17 has a schema version of 1 bytes, expected 8"):
        schema_version_of(metadata, "entry 3:17")
    metadata.ClearField("schema_version")
    assert schema_version_of(metadata, "it") is None
