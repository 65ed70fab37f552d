"""Goal: the index of a streaming offload is read byte for byte. Method: round trips, and truncation at every byte."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.offload.format.block_index import IndexedBlock
from pyspark_ledger.offload.format.streaming_index import (
    StreamedSegment,
    StreamingIndex,
    parse_streaming_header,
    parse_streaming_index,
)

INFO = ManagedLedgerInfo.LedgerInfo(ledgerId=7, entries=5, size=100)
INDEX = StreamingIndex(
    900,
    (
        StreamedSegment(7, INFO, (IndexedBlock(2, 1, 0), IndexedBlock(4, 2, 300))),
        StreamedSegment(9, ManagedLedgerInfo.LedgerInfo(ledgerId=9, entries=1), (IndexedBlock(0, 3, 600),)),
    ),
)


def test_golden_index_is_laid_out_as_pulsar_does() -> None:
    data = INDEX.encode()
    info = INFO.SerializeToString()
    assert data[:24] == struct.pack(">IIqq", 0x3D1FB0BC, len(data), 900, 128)
    assert data[24 : 24 + 16] == struct.pack(">qii", 7, 2, len(info))
    assert data[40 + len(info) :].startswith(struct.pack(">qiq", 2, 1, 0) + struct.pack(">qiq", 4, 2, 300))
    assert parse_streaming_index(data, "x") == INDEX


@given(st.integers(0, len(INDEX.encode()) - 1))
def test_every_cut_is_refused(size: int) -> None:
    with pytest.raises(Corrupt, match="x"):
        parse_streaming_index(INDEX.encode()[:size], "x")


@given(st.integers(0, len(INDEX.encode()) - 1), st.integers(1, 255))
def test_damage_is_refused_or_gives_another_index(at: int, flip: int) -> None:
    data = bytearray(INDEX.encode())
    data[at] ^= flip
    with suppress(Corrupt):
        assert parse_streaming_index(bytes(data), "x") != INDEX


def test_block_headers_are_compared_bit_by_bit() -> None:
    header = struct.pack(">Iqqqq92x", 0x26A66D32, 128, 1000, 5, 7)
    assert parse_streaming_header(header, "x") == (1000, 5, 7)
    for at, message in ((0, "block magic"), (11, "header of 129 bytes"), (40, "byte 40 of the block header")):
        broken = bytearray(header)
        broken[at] ^= 1
        with pytest.raises(Corrupt, match=message):
            parse_streaming_header(broken, "x")
    with pytest.raises(Corrupt, match="127 are left"):
        parse_streaming_header(header[:127], "x")
