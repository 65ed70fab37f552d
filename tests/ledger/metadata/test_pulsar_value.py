"""Goal: values of Pulsar's metadata are read, written and refused whole. Method: real values, round trips, damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Corrupt, Unsupported
from pyspark_ledger.ledger.message.compression import LZ4, NAMES, NONE, SNAPPY, ZLIB, ZSTD
from pyspark_ledger.ledger.metadata.pulsar_value import (
    compression_of,
    parse_cursor_info,
    parse_ledger_info,
)
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from tests.rigs.pulsar_value import serialise_info

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "pulsar"
LEDGER_VALUES = sorted(FIXTURES.rglob("managed-ledger-info.bin"))
CURSOR_VALUES = sorted(FIXTURES.rglob("*.cursor-info.*.bin"))
CODECS = (LZ4, ZLIB, ZSTD, SNAPPY)


def cursor() -> ManagedCursorInfo:
    info = ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3, markDeleteEntryId=17)
    info.cursorProperties.add(name="query", value="q" * 40)
    for entry in range(20, 60, 2):
        gap = info.individualDeletedMessages.add()
        gap.lowerEndpoint.ledgerId, gap.lowerEndpoint.entryId = 3, entry
        gap.upperEndpoint.ledgerId, gap.upperEndpoint.entryId = 3, entry + 1
    return info


@pytest.mark.parametrize("path", LEDGER_VALUES, ids=lambda path: path.parent.name)
def test_ledger_values_of_pulsar_come_back_equal(path: Path) -> None:
    value = path.read_bytes()
    info = parse_ledger_info(value, path.name)
    ledgers = sorted(info.ledgerInfo, key=lambda ledger: ledger.ledgerId)
    assert len({ledger.ledgerId for ledger in ledgers}) == len(ledgers) > 1
    assert all(ledger.offloadContext.complete for ledger in ledgers[:-1])
    for kind in range(len(NAMES)):
        assert parse_ledger_info(serialise_info(info, kind), "it") == info
    if compression_of(value, "it") == NONE:
        assert serialise_info(info) == value


@pytest.mark.parametrize("path", CURSOR_VALUES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_cursor_values_of_pulsar_come_back_equal(path: Path) -> None:
    value = path.read_bytes()
    info = parse_cursor_info(value, path.name)
    for kind in range(len(NAMES)):
        assert parse_cursor_info(serialise_info(info, kind), "it") == info
    if compression_of(value, "it") == NONE:
        assert serialise_info(info) == value
    if ".after-unload" in path.name and info.cursorsLedgerId == -1:
        assert info.individualDeletedMessages or info.batchedEntryDeletionIndexInfo


def test_pulsar_lists_ledgers_in_any_order_and_so_do_we() -> None:
    info = parse_ledger_info((FIXTURES / "02-lz4" / "managed-ledger-info.bin").read_bytes(), "it")
    assert [ledger.ledgerId for ledger in info.ledgerInfo] == [16, 17, 18, 19, 14, 15]


def test_compressed_values_of_pulsar_are_among_them() -> None:
    kinds = {compression_of(path.read_bytes(), path.name) for path in (*LEDGER_VALUES, *CURSOR_VALUES)}
    assert kinds == {NONE, LZ4}


def test_golden_bytes() -> None:
    info = ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=7, entries=50, size=4096, timestamp=1)
    assert serialise_info(info).hex() == "0a09080710321880202001"
    zipped = serialise_info(info, SNAPPY)
    assert zipped.hex() == "4778000000040804100b0b280a09080710321880202001"


@pytest.mark.parametrize("kind", CODECS, ids=NAMES[1:])
def test_a_value_that_was_cut_is_corrupt(kind: int) -> None:
    value = serialise_info(cursor(), kind)
    for size in range(2, len(value)):
        with pytest.raises(Corrupt, match="cursor q"):
            parse_cursor_info(value[:size], "cursor q")


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_no_plain_value_opens_like_a_compressed_one(rest: bytes) -> None:
    """So there is nothing to fall back to when a compressed value is damaged."""
    for kind in (ManagedLedgerInfo, ManagedCursorInfo):
        with pytest.raises(DecodeError):
            kind.FromString(b"\x47\x78" + rest)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(value: bytes) -> None:
    for parse in (parse_ledger_info, parse_cursor_info):
        for data in (value, b"\x47\x78" + value):
            try:
                parse(data, "cursor q")
            except (Corrupt, Unsupported) as refused:
                assert "cursor q" in refused.message  # noqa: PT017  # most bytes are refused, some are not


def test_a_size_over_the_cap_is_refused_before_it_is_inflated() -> None:
    value = serialise_info(cursor(), ZLIB)
    size = len(cursor().SerializeToString())
    with pytest.raises(
        Unsupported, match=rf"cursor q states {size} bytes before ZLIB compression, at most 100 are read"
    ):
        parse_cursor_info(value, "cursor q", max_bytes=100)


def test_an_unknown_compression_is_told_by_its_number() -> None:
    value = serialise_info(cursor(), ZLIB)
    newer = value.replace(b"\x08\x02", b"\x08\x09", 1)
    with pytest.raises(Unsupported, match="cursor q is compressed by codec 9"):
        parse_cursor_info(newer, "cursor q")


def test_required_fields_are_required() -> None:
    with pytest.raises(Corrupt, match=r"cursor q has 2 bytes of ManagedCursorInfo .* required"):
        parse_cursor_info(b"\x10\x03", "cursor q")


def test_unknown_fields_survive() -> None:
    newer = cursor().SerializeToString() + b"\x98\x06\x01"
    assert serialise_info(parse_cursor_info(newer, "it")) == newer
    zipped = serialise_info(parse_cursor_info(newer, "it"), LZ4)
    assert parse_cursor_info(zipped, "it").SerializeToString() == newer
