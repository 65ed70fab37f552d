"""Goal: an object is read exactly or refused by name. Method: round trips, each flipped bit, golden bytes."""

from __future__ import annotations

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import Corrupt, Unsupported
from pyspark_ledger.ledger.wal.log_object import (
    BYTES,
    RECORDS,
    Header,
    WalPart,
    decode_header,
    decode_object,
    encode_object,
)

HEADER = Header(uuid.UUID(int=0xABC), 3, 1200, uuid.UUID(int=0xDEF), 1_700_000_000_000)
WHERE = "wal/1200 of s3://lake/store"
GOLDEN = (
    "4c57414c0002070000000000000000000000000000000abc000000000000000300000000000004b0"
    "00000000000000000000000000000def0000018bcfe5680000000022708225e09196a56279746573"
    "03ce364b3fb7c3b06c6564676572732f372e6c6564676572cc80467f25da6162630adeddf3"
)


def part(data: bytes, *, last: bool = True) -> tuple[WalPart, bytes]:
    return WalPart(BYTES, len(data), crc32c(data), last, "ledgers/7.ledger", 128), data


def whole(header: Header, parts: list[tuple[WalPart, bytes]]) -> bytes:
    return b"".join(encode_object(header, parts))


@given(st.lists(st.tuples(st.binary(max_size=50), st.booleans()), max_size=6))
def test_an_object_is_decoded_as_encoded(payloads: list[tuple[bytes, bool]]) -> None:
    parts = [part(data, last=last) for data, last in payloads]
    found = decode_object(whole(HEADER, parts), WHERE)
    assert found.header == HEADER
    assert [(described, bytes(data)) for described, data in found.parts] == parts


def test_every_flipped_bit_is_refused() -> None:
    records = b"rows"
    encoded = whole(HEADER, [(WalPart(RECORDS, 4, crc32c(records), last=True), records), part(b"frames")])
    for bit in range(len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match="wal/1200"):
            decode_object(bytes(damaged), WHERE)


def test_every_cut_is_refused() -> None:
    encoded = whole(HEADER, [part(b"frames")])
    for length in range(len(encoded)):
        with pytest.raises(Corrupt):
            decode_object(encoded[:length], WHERE)
    with pytest.raises(Corrupt):
        decode_object(encoded + b"\0", WHERE)


def test_the_bytes_of_format_1_are_read_and_state_nothing() -> None:
    encoded = bytes.fromhex(
        "4c57414c0001000000000000000000000000000000000abc000000000000000300000000000004b0"
        "00000000000000000000000000000def0000018bcfe5680000000022de9587ac9196a56279746573"
        "03ce364b3fb7c3b06c6564676572732f372e6c6564676572cc80467f25da6162636a9fc377"
    )
    header, length = decode_header(encoded, WHERE)
    assert (header._replace(pending=0), length) == (HEADER, len(encoded) - 72 - 3 - 4 - 4)
    assert header.acknowledged == 0
    assert [bytes(data) for _, data in decode_object(encoded, WHERE).parts] == [b"abc"]


def test_the_bytes_of_format_2_stay() -> None:
    header = HEADER._replace(pending=7)
    encoded = whole(header, [part(b"abc")])
    assert encoded.hex() == GOLDEN
    assert decode_header(encoded, WHERE)[0] == header
    assert header.acknowledged == 1193


def refusal(format_number: int, flags: int) -> str:
    encoded = bytearray(whole(HEADER, []))
    encoded[4:8] = struct.pack(">HH", format_number, flags)
    encoded[68:72] = crc32c(bytes(encoded[:68])).to_bytes(4, "big")
    with pytest.raises(Unsupported) as raised:
        decode_object(bytes(encoded), WHERE)
    return str(raised.value)


def test_a_newer_format_or_flag_is_refused_by_number() -> None:
    assert "has format 3 and flags 0x0, this version reads formats 1 and 2" in refusal(3, 0)
    assert "has format 2 and flags 0x2," in refusal(2, 2)
    assert "has format 1 and flags 0x100," in refusal(1, 0x100)


def test_a_version_that_knows_only_format_1_finds_the_number_of_the_format() -> None:
    """Such a version compares the checksum of the first 68 bytes, and refuses a format other than 1 by its number."""
    encoded = whole(HEADER._replace(pending=3), [])
    assert encoded[:6] == b"LWAL\0\2"
    assert crc32c(encoded[:68]) == int.from_bytes(encoded[68:72], "big")


def test_a_claim_has_no_part() -> None:
    claim = HEADER._replace(claim=True)
    assert decode_object(whole(claim, []), WHERE).header.claim
    with pytest.raises(Corrupt, match="a claim with 1 parts"):
        decode_object(whole(claim, [part(b"abc")]), WHERE)
