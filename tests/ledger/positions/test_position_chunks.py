"""Goal: a state in entries comes back whole or not at all. Method: PIP-381's cases, the DataStax fork's shapes, and
footers, sizes and tails that lie.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused, Unsupported
from pyspark_ledger.ledger.message.compression import LZ4, NAMES, NONE, ZLIB, ZSTD
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.position_chunks import (
    DELTA_FIRST,
    ENTRY_BYTES_LEAST,
    PLAIN_FIRST,
    STATE_BYTES_MAX,
    compression_number,
    decode_state,
    encode_delta,
    encode_state,
    parse_delta,
    parse_footer,
    state_ending_at,
)
from pyspark_ledger.ledger.positions.position_info import decode_info, encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet

SMALL = ENTRY_BYTES_LEAST


def info_of(seed: int, entries: int = 40_000) -> bytes:
    made = PositionSet()
    made.add_entries(5, np.flatnonzero(np.random.default_rng(seed).random(entries) < 0.5))
    return encode_info(Position(5, -1), made, as_words=True)


def reader(entries: list[bytes]) -> Callable[[int], memoryview]:
    return lambda number: memoryview(entries[number])


def newest_state(
    entries: int, read: Callable[[int], memoryview], parse: Callable[[memoryview], bytes]
) -> tuple[int, bytes] | None:
    """The newest whole state among so many entries: its last entry, and what `parse` makes of it."""
    for last in range(entries - 1, -1, -1):
        try:
            state = state_ending_at(last, read, "the test")
            if len(state) and state[0] <= PLAIN_FIRST:
                return last, parse(state)
        except LedgerError:
            continue
    return None


def newest(entries: list[bytes], compression: int = NONE) -> tuple[int, bytes] | None:
    def parse(state: memoryview) -> bytes:
        found = decode_state(state, compression, "a state")
        decode_info(found, "a state")
        return bytes(found)

    return newest_state(len(entries), reader(entries), parse)


@pytest.mark.parametrize("compression", range(len(NAMES)))
def test_a_state_comes_back_from_chunks_and_footer(compression: int) -> None:
    info = info_of(1)
    entries = encode_state(info, compression=compression, entry_bytes=SMALL)
    assert len(entries) > 3
    assert all(len(entry) <= SMALL for entry in entries)
    assert newest(entries, compression) == (len(entries) - 1, info)


def test_a_footer_is_pip_381s_to_the_byte() -> None:
    entries = encode_state(b"\x08" + bytes(2_499_999))
    assert entries[-1] == b'{"numParts":3,"length":2500000}'
    assert [len(entry) for entry in entries[:-1]] == [1048576, 1048576, 402848]


@pytest.mark.parametrize("size", [SMALL - 1, SMALL, SMALL + 1, 2 * SMALL, 2 * SMALL + 1])
def test_exact_boundary_single_versus_chunked(size: int) -> None:
    entries = encode_state(b"\x08" + bytes(size - 1), entry_bytes=SMALL)
    assert len(entries) == (1 if size <= SMALL else -(-size // SMALL) + 1)
    assert len(state_ending_at(len(entries) - 1, reader(entries), "it")) == size


def test_small_state_stays_one_plain_entry() -> None:
    info = encode_info(Position(3, 4), PositionSet())
    assert encode_state(info) == [info]


def test_the_forks_empty_last_part_is_read() -> None:
    info = info_of(2)
    cut = len(info) // 2
    entries = [info[:cut], info[cut:], b"", b'{"numParts":3,"length":%d}' % len(info)]
    assert newest(entries) == (3, info)


def test_partial_chunk_group_recovers_from_the_previous_state() -> None:
    old, new = encode_state(info_of(1), entry_bytes=SMALL), encode_state(info_of(2), entry_bytes=SMALL)
    for kept in range(len(new)):
        found = newest(old + new[:kept])
        assert found == (len(old) - 1, info_of(1)), kept
    assert newest(old + new) == (len(old) + len(new) - 1, info_of(2))


def test_a_missing_part_or_one_that_does_not_hold_fails_the_group() -> None:
    old, new = encode_state(info_of(1), entry_bytes=SMALL), encode_state(info_of(2), entry_bytes=SMALL)
    for lost in range(len(new) - 1):
        entries = old + new

        def read(number: int, lost: int = lost, entries: list[bytes] = entries) -> memoryview:
            if number == len(old) + lost:
                raise Corrupt("it does not hold")
            return memoryview(entries[number])

        found = newest_state(len(entries), read, bytes)
        assert found is not None
        assert found[0] < len(old) + len(new) - 1


@pytest.mark.parametrize(
    "footer",
    [
        b"{",
        b"{}",
        b'{"numParts":0,"length":10}',
        b'{"numParts":-1,"length":10}',
        b'{"numParts":1,"length":0}',
        b'{"numParts":1,"length":999999999999}',
        b'{"numParts":1e3,"length":10}',
        b'{"numParts":"1","length":10}',
        b'{"numParts":1,"length":10,"more":1}',
        b'{"numParts":1,"length":10}' + b" " * 200,
        b'{"numParts":9223372036854775808,"length":10}',
    ],
)
def test_a_footer_that_lies_is_refused_before_it_is_used(footer: bytes) -> None:
    with pytest.raises(Corrupt, match="the footer"):
        parse_footer(footer, "the footer")
    with pytest.raises(Corrupt, match="the footer"):
        state_ending_at(1, reader([b"\x08", footer]), "the footer")


@pytest.mark.parametrize("footer", [b'{"numParts":2,"length":5}', b'{"numParts":1,"length":5}'])
def test_a_footer_of_other_parts_is_no_state(footer: bytes) -> None:
    with pytest.raises(Corrupt):
        state_ending_at(1, reader([b"\x08\x01\x10\x01", footer]), "it")


def test_a_state_is_as_long_as_its_footer_can_say() -> None:
    """Without compression, which alone has to be bounded before it is undone."""
    info = b"\x08" + bytes(STATE_BYTES_MAX)
    parts = encode_state(info)
    assert bytes(state_ending_at(len(parts) - 1, reader(parts), "it")) == info


def test_a_state_that_no_footer_can_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.positions.position_chunks.FOOTER_LENGTH_MAX", 5000)
    with pytest.raises(Refused, match="5001 bytes is too long for a footer, 5000"):
        encode_state(b"\x08" + bytes(5000), entry_bytes=SMALL)


def test_nothing_whole_is_none() -> None:
    assert newest([]) is None
    assert newest([b"", b"{}", b"\xd5", b"\x99"]) is None


@pytest.mark.parametrize("compression", [NONE, LZ4, ZLIB, ZSTD])
def test_a_delta_names_its_base(compression: int) -> None:
    info = info_of(3)
    delta = encode_delta(17, 2, info, compression=compression)
    assert delta[0] == DELTA_FIRST
    found = parse_delta(delta, "it")
    assert (found.base, found.number, bytes(found.info)) == (17, 2, info)
    for end in range(0, len(delta), 61):
        with pytest.raises(LedgerError):
            parse_delta(delta[:end], "it")


def test_a_delta_is_no_state() -> None:
    info = info_of(3)
    assert newest([info, encode_delta(0, 1, info)]) == (0, info)
    with pytest.raises(Corrupt):
        parse_delta(info, "it")
    with pytest.raises(Corrupt):
        parse_delta(b"\xd5\x02" + bytes(30), "it")


def test_sizes_are_capped_before_anything_is_inflated() -> None:
    with pytest.raises(Unsupported, match="states 150994944 bytes"):
        decode_state(b"\x09" + _sized(1 << 27)[1:], ZSTD, "it")
    with pytest.raises(Corrupt):
        decode_state(b"\x00", ZSTD, "it")
    with pytest.raises(Corrupt, match="begins with"):
        decode_state(b"\x00\x00\x00\x01\x08", NONE, "it")


def test_entries_too_small_and_codecs_unknown_are_refused() -> None:
    with pytest.raises(Refused, match="at least 1024"):
        encode_state(b"\x08", entry_bytes=SMALL - 1)
    with pytest.raises(Refused, match="BROTLI"):
        compression_number("BROTLI")
    assert compression_number("zstd") == ZSTD


def _sized(size: int) -> bytes:
    return size.to_bytes(4, "big") + b"anything"
