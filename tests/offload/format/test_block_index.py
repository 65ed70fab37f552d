"""Goal: index objects are parsed and encoded byte for byte, and damage is detected.

Method: golden vectors, every index of a real Pulsar, every field changed. Parsing and encoding must return the same
bytes, and the index must agree with a scan of the data object.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.metadata.offload_records import halves, of_halves
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import LedgerMetadataFormat
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.segment.provisional_stamps import RealStamps
from pyspark_ledger.ledger.segment.reader import walk_segment
from pyspark_ledger.offload.format.block_index import BlockIndex, BlockStamps, IndexedBlock, parse_index

FIXTURES = Path(__file__).parents[2] / "fixtures" / "pulsar"
INDEXES = sorted(
    path
    for path in FIXTURES.rglob("*-index")
    if ObjectKey.parse(path.name) and path.with_name(path.name.removesuffix("-index")).exists()
)
METADATA = bytes.fromhex(
    "08021002180c2001280332120a0e3132372e302e302e313a3331383110003803480250005a340a1570756c7361722f6d616e616765642d"
    "6c6564676572121b7075626c69632f64656661756c742f70657273697374656e742f74"
)
GOLDEN = (
    bytes.fromhex("de47de470000008e00000000000000a40000000000000080000000010000005a")
    + METADATA
    + bytes.fromhex("0000000000000000000000010000000000000000")
)


def test_golden_index_is_read_and_written_byte_for_byte() -> None:
    index = parse_index(GOLDEN, "golden")
    assert index.blocks == (IndexedBlock(0, 1, 0),)
    assert (index.data_bytes, index.entries) == (164, 2)
    assert index.managed_ledger == "public/default/persistent/t"
    assert index.encode() == GOLDEN


def test_there_are_real_indexes_to_try() -> None:
    assert len(INDEXES) >= 10


@pytest.mark.parametrize("path", INDEXES, ids=lambda path: f"{path.parent.parent.name}-{path.name[:8]}")
def test_index_of_a_real_pulsar_says_what_its_data_object_holds(path: Path) -> None:
    raw, data = path.read_bytes(), path.with_name(path.name.removesuffix("-index")).read_bytes()
    index = parse_index(raw, path.name)
    assert index.encode() == raw
    assert index.data_bytes == len(data)
    assert index.managed_ledger.startswith("public/fx/persistent/")
    offsets = {block.first_entry: block.offset for block in index.blocks}
    parsed = ObjectKey.parse(path.name)
    assert parsed is not None
    seen = 0
    for frame in walk_segment(data, parsed[0].ledger_id, where=path.name, entries=index.entries):
        if frame.entry_id in offsets:
            assert frame.offset == offsets[frame.entry_id] + 128
            seen += 1
        assert index.block_of(frame.entry_id).offset < frame.offset
    assert seen == len(index.blocks)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.data())
def test_lookup_is_the_last_block_that_begins_at_or_before(counts: list[int], data: st.DataObject) -> None:
    firsts = [sum(counts[:i]) for i in range(len(counts))]
    metadata = LedgerMetadataFormat(quorumSize=1, ensembleSize=1, length=9, lastEntryId=sum(counts) - 1, state="CLOSED")
    blocks = tuple(IndexedBlock(first, i + 1, i * 4096) for i, first in enumerate(firsts))
    index = BlockIndex(4096 * len(counts), metadata, blocks)
    assert parse_index(index.encode(), "made") == index
    entry = data.draw(st.integers(0, sum(counts) - 1))
    assert index.block_of(entry).first_entry == max(first for first in firsts if first <= entry)
    with pytest.raises(Refused, match=f"last entry is {sum(counts) - 1}"):
        index.block_of(sum(counts))


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, struct.pack(">I", 0), "magic is 0x00000000, expected 0xde47de47"),
        (4, struct.pack(">i", 141), "141 are stated and the object has 142"),
        (16, struct.pack(">q", 127), "headers of 127 bytes, expected 128"),
        (24, struct.pack(">i", 2), "2 blocks"),
        (24, struct.pack(">i", -1), "-1 blocks"),
        (28, struct.pack(">I", 2**32 - 1), "4294967295 bytes of metadata"),
        (32, b"\xff", "not ledger metadata"),
        (121, b"\xff", "the name of the managed ledger is not UTF-8"),
        (122, struct.pack(">q", 1), "expected entry 0 at offset 0"),
        (134, struct.pack(">q", 7), "expected entry 0 at offset 0"),
        (8, struct.pack(">q", 100), "the data object has 100 bytes"),
    ],
)
def test_a_field_that_disagrees_is_named(at: int, value: bytes, message: str) -> None:
    broken = GOLDEN[:at] + value + GOLDEN[at + len(value) :]
    with pytest.raises(Corrupt, match=message):
        parse_index(broken, "broken")


@pytest.mark.parametrize("length", [0, 4, 31, 32, 100, 141])
def test_a_truncated_index_is_corrupt(length: int) -> None:
    with pytest.raises(Corrupt):
        parse_index(GOLDEN[:length], "short")


def test_the_streaming_form_is_named() -> None:
    with pytest.raises(Unsupported, match="streaming offload"):
        parse_index(struct.pack(">I", 0x3D1FB0BC) + GOLDEN[4:], "v2")


@given(st.uuids(), st.integers(0, 2**63 - 1))
def test_keys_round_trip_through_names_and_signed_halves(attempt: object, ledger_id: int) -> None:
    key = ObjectKey(attempt, ledger_id)  # type: ignore[arg-type]
    assert ObjectKey.parse(key.data_name) == (key, False)
    assert ObjectKey.parse(key.index_name) == (key, True)
    assert of_halves(*halves(key.attempt)) == key.attempt
    assert all(-(2**63) <= half < 2**63 for half in halves(key.attempt))


@pytest.mark.parametrize("name", ["", "x-ledger-1", "7f825023-06f7-4440-948e-f17a23772469", "a/b-ledger-3"])
def test_other_objects_are_not_ours(name: str) -> None:
    assert ObjectKey.parse(name) is None


def with_stamps(text: bytes, blocks: int = 2) -> bytes:
    """Return an index of this number of blocks whose metadata state `text` as the real stamps."""
    metadata = LedgerMetadataFormat(quorumSize=1, ensembleSize=1, length=9, lastEntryId=9, state="CLOSED")
    metadata.customMetadata.add(key="ledger/stamps", value=text)
    places = tuple(IndexedBlock(3 * number, number + 1, 4096 * number) for number in range(blocks))
    return BlockIndex(4096 * blocks, metadata, places).encode()


def test_real_stamps_of_a_direct_segment_are_read_as_written() -> None:
    stamps = BlockStamps(1_700_000_000_000, (41, 41, 97))
    index = parse_index(with_stamps(stamps.encode()), "made")
    assert (index.stamps, stamps.encode()) == (stamps, b"1700000000000 41 41 97")
    assert index.stamps is not None
    assert index.stamps.of_block(1) == RealStamps(1_700_000_000_000, 41)
    assert parse_index(GOLDEN, "golden").stamps is None


@pytest.mark.parametrize(
    "text", [b"", b"1", b"1 2 3", b"1 2 3 4 5", b"1 2 4 3", b"x 2 3 4", b"1  2 3 4", b"1 -2 3 4", b"1 2 3 " + b"4" * 19]
)
def test_wrong_stamps_of_a_direct_segment_are_corrupt(text: bytes) -> None:
    with pytest.raises(Corrupt, match="expected a time and 3 rising row numbers, for 2 blocks and the end"):
        parse_index(with_stamps(text), "made")
