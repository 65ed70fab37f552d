"""Goal: an entry is read exactly as written or refused. Method: round trips, golden bytes, every flipped bit."""

from __future__ import annotations

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.entry import (
    ARROW_PROPERTY,
    STAMP_BYTES_MAX,
    WIDE_STAMP_BYTES,
    BrokerStamp,
    arrow_rows,
    encode_entry,
    entry_rows,
    is_arrow,
    is_marker,
    parse_entry,
    stamp_prefix,
    wide_stamp,
)
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata

U64 = 2**64 - 1
GOLDEN = bytes.fromhex("0e01d0e0d3af0000000b0a02703110051888f5bf0178797a")


def small(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p1", sequence_id=5, publish_time=3_144_328, **fields)  # type: ignore[arg-type]


def joined(parts: list[Buffer]) -> bytes:
    return b"".join(bytes(part) for part in parts)


@settings(deadline=None)
@given(
    st.text(max_size=20),
    st.integers(0, U64),
    st.lists(st.binary(max_size=40), max_size=4),
    st.none() | st.builds(BrokerStamp, st.integers(0, U64), st.integers(0, 2**63)),
)
def test_round_trip(producer: str, number: int, payload: list[bytes], stamp: BrokerStamp | None) -> None:
    metadata = MessageMetadata(producer_name=producer, sequence_id=number, publish_time=number)
    entry = (b"" if stamp is None else stamp_prefix(stamp)) + joined(encode_entry(metadata, *payload))
    for buffer in (entry, bytearray(entry), memoryview(entry), pa.py_buffer(entry), memoryview(pa.py_buffer(entry))):
        parsed = parse_entry(buffer, "it")
        assert (parsed.stamp, parsed.metadata, bytes(parsed.payload)) == (stamp, metadata, b"".join(payload))


def test_golden_bytes() -> None:
    entry = joined(encode_entry(small(), b"x", memoryview(b"yz")))
    assert entry[6:] == GOLDEN[6:]
    assert int.from_bytes(entry[2:6], "big") == google_crc32c.value(GOLDEN[6:])
    assert entry == GOLDEN
    assert stamp_prefix(BrokerStamp(300, 7)).hex() == "0e020000000508ac021006"


def test_before_the_first_row_the_stamp_has_no_index() -> None:
    assert stamp_prefix(BrokerStamp(300, 0)).hex() == "0e020000000308ac02"
    assert parse_entry(stamp_prefix(BrokerStamp(300, 0)) + GOLDEN, "it").stamp == BrokerStamp(300, 0)
    assert parse_entry(stamp_prefix(BrokerStamp(300, 1)) + GOLDEN, "it").stamp == BrokerStamp(300, 1)
    assert len(stamp_prefix(BrokerStamp(U64, 2**64))) <= STAMP_BYTES_MAX


@given(st.integers(0, 2**55 - 1), st.integers(1, 2**55 - 1))
def test_a_wide_stamp_is_read_like_a_short_one(timestamp_ms: int, row_end: int) -> None:
    stamp, rest = BrokerStamp(timestamp_ms, row_end), b"".join(encode_entry(small(), b"payload"))
    wide = wide_stamp(stamp)
    assert len(wide) == WIDE_STAMP_BYTES
    parsed = parse_entry(wide + rest, "an entry")
    assert parsed == parse_entry(stamp_prefix(stamp) + rest, "an entry")
    assert parsed.stamp == stamp


def test_golden_bytes_of_a_wide_stamp() -> None:
    assert wide_stamp(BrokerStamp(1, 129)).hex() == "0e0200000012088180808080808000108081808080808000"


def test_payload_is_passed_on_and_viewed_never_copied() -> None:
    payload = memoryview(bytearray(b"payload"))
    assert encode_entry(small(), payload)[1] is payload
    assert parse_entry(GOLDEN, "it").payload.obj is GOLDEN


def test_every_flipped_bit_is_corrupt() -> None:
    for bit in range(len(GOLDEN) * 8):
        damaged = bytearray(GOLDEN)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match="entry 3:17"):
            parse_entry(damaged, "entry 3:17")


@pytest.mark.parametrize("prefix", [b"", stamp_prefix(BrokerStamp(1_700_000_000_000, 12))])
def test_every_cut_is_corrupt(prefix: bytes) -> None:
    entry = prefix + GOLDEN
    for size in range(len(entry)):
        with pytest.raises(Corrupt, match="entry 3:17"):
            parse_entry(entry[:size], "entry 3:17")


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from([b"", b"\x0e\x01", b"\x0e\x02", b"\x0e\x02\0\0\0"]))
def test_any_bytes_are_read_or_refused(data: bytes, opening: bytes) -> None:
    for required in (True, False):
        try:
            parse_entry(opening + data, "entry 3:17", require_checksum=required)
        except Corrupt as refused:
            assert "entry 3:17" in refused.message  # noqa: PT017  # most bytes are refused, some are not


def test_corruption_names_both_values() -> None:
    with pytest.raises(Corrupt, match=r"entry 3:17 has CRC32C 0x[0-9a-f]{8}, but states 0xd0e0d3af"):
        parse_entry(GOLDEN[:-1] + b"!", "entry 3:17")


def test_without_a_checksum_only_where_the_caller_says_so() -> None:
    bare = GOLDEN[6:]
    with pytest.raises(Corrupt, match=r"entry 3:17 begins with 0000 at byte 0, expected a checksum"):
        parse_entry(bare, "entry 3:17")
    parsed = parse_entry(bare, "entry 3:17", require_checksum=False)
    assert (parsed.metadata, bytes(parsed.payload)) == (small(), b"xyz")
    stamped = parse_entry(stamp_prefix(BrokerStamp(1, 2)) + bare, "it", require_checksum=False)
    assert (stamped.stamp, bytes(stamped.payload)) == (BrokerStamp(1, 2), b"xyz")
    with pytest.raises(Corrupt, match="CRC32C"):
        parse_entry(GOLDEN[:-1] + b"!", "it", require_checksum=False)


def test_metadata_without_a_required_field_is_corrupt() -> None:
    head = MessageMetadata(producer_name="p").SerializePartialToString()
    entry = _around(head)
    with pytest.raises(Corrupt, match="entry 3:17 has 3 bytes of MessageMetadata at byte 10 without a required"):
        parse_entry(entry, "entry 3:17")


def test_rows_of_an_entry() -> None:
    assert entry_rows(small()) == 1
    assert entry_rows(small(num_messages_in_batch=1)) == 1
    assert entry_rows(small(num_messages_in_batch=7)) == 7
    assert entry_rows(small(num_messages_in_batch=7, compacted_batch_indexes=[1, 4])) == 5
    assert entry_rows(small(num_messages_in_batch=-7)) == 0
    assert entry_rows(small(marker_type=0)) == 0
    assert entry_rows(small(marker_type=21, num_messages_in_batch=3)) == 0
    chunks = [small(uuid="u", num_chunks_from_msg=3, chunk_id=number) for number in range(3)]
    assert [entry_rows(chunk) for chunk in chunks] == [0, 0, 1]


def test_arrow_rows_are_stated_in_a_property() -> None:
    metadata = small()
    assert (arrow_rows(metadata), is_arrow(metadata), is_marker(metadata)) == (None, False, False)
    metadata.properties.add(key="origin", value="9")
    metadata.properties.add(key=ARROW_PROPERTY, value="1200")
    assert (arrow_rows(metadata), is_arrow(metadata), entry_rows(metadata)) == (1200, True, 1200)
    metadata.marker_type = 21
    assert (is_marker(metadata), entry_rows(metadata)) == (True, 0)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "٣", "x", " 1", "9" * 19, "9" * 5000])
def test_a_row_count_that_is_none_is_corrupt(text: str) -> None:
    metadata = small()
    metadata.properties.add(key=ARROW_PROPERTY, value=text)
    with pytest.raises(Corrupt, match=f"property {ARROW_PROPERTY} is .* expected up to 18 digits"):
        entry_rows(metadata)


def test_a_row_count_that_is_no_text_is_corrupt() -> None:
    metadata = small()
    metadata.properties.add(key=ARROW_PROPERTY, value="12")
    damaged = metadata.SerializeToString().replace(b"12", b"\xff\xfe")
    with pytest.raises(Corrupt):
        entry_rows(parse_entry(_around(damaged), "it").metadata)


def _around(head: bytes) -> bytes:
    """Return an entry with these metadata, valid or not, and a right checksum."""
    body = len(head).to_bytes(4, "big") + head
    return b"\x0e\x01" + google_crc32c.value(body).to_bytes(4, "big") + body


def test_an_unknown_compression_is_not_taken_for_none() -> None:
    parsed = parse_entry(joined(encode_entry(small(compression=9), b"zipped")), "it")
    assert parsed.metadata.compression == 9
