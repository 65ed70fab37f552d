"""Goal: the bytes of Pulsar's offload objects. Method: golden bytes, round trips, every flipped bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.segment.format import (
    BLOCK_BYTES_MAX,
    FRAME,
    BlockHeader,
    entry_bytes_max,
    find_wrong_padding,
    pack_header,
    padding,
    parse_header,
    require_block_bytes,
)

GOLDEN = bytes.fromhex("fbdbabcb 0000000000000080 00000000000000a4 0000000000000000") + bytes(100)


def test_golden_header() -> None:
    assert pack_header(BlockHeader(164, 0)) == GOLDEN
    assert parse_header(GOLDEN, "x") == BlockHeader(164, 0)


def test_golden_frame() -> None:
    assert FRAME.pack(7, 1).hex() == "000000070000000000000001"


@given(st.integers(128, 2**62), st.integers(0, 2**62))
def test_headers_round_trip(block_bytes: int, first_entry: int) -> None:
    header = BlockHeader(block_bytes, first_entry)
    assert parse_header(pack_header(header), "x") == header


def test_every_flipped_bit_of_a_header_changes_it_or_is_refused() -> None:
    for bit in range(128 * 8):
        data = bytearray(GOLDEN)
        data[bit // 8] ^= 1 << bit % 8
        try:
            assert parse_header(data, "x") != BlockHeader(164, 0)
        except Corrupt as error:
            assert error.message.startswith("x: ")  # noqa: PT017 - either outcome is right


def test_the_streaming_version_is_named_as_such() -> None:
    with pytest.raises(Unsupported, match="0x26a66d32"):
        parse_header(bytes.fromhex("26a66d32") + GOLDEN[4:], "x")


def test_a_short_header() -> None:
    with pytest.raises(Corrupt, match="128 bytes, 127 are left"):
        parse_header(GOLDEN[:127], "x")


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 1024 * 1024 - 1, 1024 * 1024 + 3])
def test_padding_begins_with_its_first_byte(length: int) -> None:
    data = b"".join(padding(length))
    assert data == (b"\xfe\xdc\xde\xad" * (length // 4 + 1))[:length]
    assert find_wrong_padding(memoryview(data)) == -1
    for at in {0, length // 2, length - 1} if length else ():
        wrong = bytearray(data)
        wrong[at] ^= 1
        assert find_wrong_padding(memoryview(wrong)) == at


@pytest.mark.parametrize("block_bytes", [0, 255, BLOCK_BYTES_MAX])
def test_impossible_block_sizes(block_bytes: int) -> None:
    with pytest.raises(Refused, match=str(block_bytes)):
        require_block_bytes(block_bytes)


def test_the_largest_entry() -> None:
    assert entry_bytes_max(256) == 116
