"""Goal: bytes come back exactly, or are refused. Method: round trips, golden bytes, damage to each codec."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.message.compression import LZ4, NAMES, NONE, SNAPPY, ZLIB, ZSTD, compress, decompress

CODECS = (LZ4, ZLIB, ZSTD, SNAPPY)
TEXT = b"ledger entry " * 12
GOLDEN = {
    LZ4: bytes.fromhex("df6c656467657220656e747279200d0077506e74727920"),
    SNAPPY: bytes.fromhex("9c01306c656467657220656e74727920fe0d00fe0d003a0d00"),
}


@settings(deadline=None)
@given(st.sampled_from((NONE, *CODECS)), st.binary(max_size=2000), st.integers(1, 50))
def test_round_trip(kind: int, data: bytes, repeats: int) -> None:
    raw = data * repeats
    packed = compress(kind, raw)
    assert bytes(decompress(kind, packed, len(raw), "it")) == raw
    assert bytes(decompress(kind, memoryview(packed), len(raw), "it")) == raw
    assert bytes(decompress(kind, memoryview(pa.py_buffer(packed)), len(raw), "it")) == raw


@settings(deadline=None)
@given(st.sampled_from(CODECS), st.binary(max_size=300), st.integers(-300, 300).filter(bool))
def test_another_size_than_the_stated_is_corrupt(kind: int, raw: bytes, off: int) -> None:
    if len(raw) + off < 0:
        off = -off
    with pytest.raises(Corrupt, match="^.LEDGER_CORRUPT. entry 3:4 .*" + str(len(raw) + off)):
        decompress(kind, compress(kind, raw), len(raw) + off, "entry 3:4")


@pytest.mark.parametrize("kind", CODECS, ids=NAMES[1:])
def test_bytes_cut_off_or_put_on_are_corrupt(kind: int) -> None:
    packed = compress(kind, TEXT)
    for damaged in (*(packed[:n] for n in range(len(packed))), packed + b"\x55\x55"):
        with pytest.raises(Corrupt, match=f"entry 3:4 .*{NAMES[kind]}"):
            decompress(kind, damaged, len(TEXT), "entry 3:4")


@pytest.mark.parametrize("kind", GOLDEN, ids=[NAMES[kind] for kind in GOLDEN])
def test_golden_bytes_are_read(kind: int) -> None:
    assert bytes(decompress(kind, GOLDEN[kind], len(TEXT), "it")) == TEXT


def test_zlib_flushed_but_not_ended_is_read_as_java_writes_it() -> None:
    stream = zlib.compressobj()
    flushed = stream.compress(TEXT) + stream.flush(zlib.Z_SYNC_FLUSH)
    assert bytes(decompress(ZLIB, flushed, len(TEXT), "it")) == TEXT
    assert bytes(decompress(ZLIB, b"", 0, "it")) == b""
    with pytest.raises(Corrupt, match="bytes with no end"):
        decompress(ZLIB, flushed[:-1], len(TEXT), "it")
    with pytest.raises(Corrupt, match=f"gives {len(TEXT)} bytes, stated are {len(TEXT) + 1}"):
        decompress(ZLIB, flushed, len(TEXT) + 1, "it")


def test_zlib_has_its_header_and_zstd_its_frame() -> None:
    assert zlib.decompress(compress(ZLIB, TEXT)) == TEXT
    assert compress(ZSTD, TEXT)[:4] == bytes.fromhex("28b52ffd")
    assert compress(LZ4, b"") == b"\0"


@pytest.mark.parametrize("kind", CODECS, ids=NAMES[1:])
def test_a_size_over_the_cap_is_refused_before_anything_is_inflated(kind: int) -> None:
    with pytest.raises(Unsupported, match=r"entry 3:4 states 4294967295 bytes .* at most 1000 are read"):
        decompress(kind, b"not even read", 2**32 - 1, "entry 3:4", max_bytes=1000)
    assert bytes(decompress(kind, compress(kind, TEXT), len(TEXT), "it", max_bytes=len(TEXT))) == TEXT


def test_a_bomb_costs_no_more_than_its_stated_size() -> None:
    bomb = compress(ZLIB, bytes(20_000_000))
    before = pa.total_allocated_bytes()
    with pytest.raises(Corrupt, match="gives more than 10 bytes, stated are 10"):
        decompress(ZLIB, bomb, 10, "it")
    assert pa.total_allocated_bytes() == before


def test_an_unknown_codec_is_a_newer_writers() -> None:
    with pytest.raises(Unsupported, match=r"entry 3:4 is compressed by codec 5, this version decompresses 0 to 4"):
        decompress(5, b"", 0, "entry 3:4")
    with pytest.raises(Unsupported, match="codec -1"):
        decompress(-1, b"", 0, "entry 3:4")
    with pytest.raises(Refused, match="compression 5 is not known"):
        compress(5, b"")


def test_none_gives_the_bytes_themselves() -> None:
    view = memoryview(TEXT)
    assert decompress(NONE, view, 0, "it").obj is TEXT
