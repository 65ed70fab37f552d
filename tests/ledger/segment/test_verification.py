"""Goal: every flipped bit of a sealed segment is seen, a lost sidecar comes back. Method: flip, remove."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_ledger.ledger.errors import Corrupt, DataLoss
from pyspark_ledger.ledger.segment.index import EntryIndex, load_index
from pyspark_ledger.ledger.segment.scan import EntryTraits
from pyspark_ledger.ledger.segment.verification import load_or_rebuild_index, verify_segment
from pyspark_ledger.ledger.segment.writer import SealedSegment

if TYPE_CHECKING:
    from tests.rigs.segment import SegmentRig


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes((byte ^ 1 << bit % 8,)))


def verify(rig: SegmentRig, sealed: SealedSegment, index: EntryIndex | None) -> EntryIndex:
    return verify_segment(
        rig.data,
        7,
        entries=sealed.entries,
        file_bytes=sealed.file_bytes,
        first_row=rig.first_row,
        describe=rig.describe,
        index=index,
    )


def load(rig: SegmentRig, sealed: SealedSegment) -> EntryIndex:
    return load_or_rebuild_index(
        rig.data,
        7,
        store_id="a-store",
        entries=sealed.entries,
        file_bytes=sealed.file_bytes,
        first_row=rig.first_row,
        block_bytes=rig.block_bytes,
        describe=rig.describe,
    )


@pytest.mark.thorough
def test_every_flipped_bit_of_a_sealed_segment_is_corrupt(rig: SegmentRig) -> None:
    rig.fill(6)
    sealed = rig.writer.seal()
    index = load_index(rig.sidecar, 7, 6)
    for bit in range(sealed.file_bytes * 8):
        flip(rig.data, bit)
        with pytest.raises(Corrupt, match=r"7\.ledger"):
            verify(rig, sealed, index)
        flip(rig.data, bit)
    verify(rig, sealed, index)


def test_what_holds_is_not_parsed_and_told_as_it_goes(rig: SegmentRig) -> None:
    rig.fill(9)
    rig.commit(rig.entry(b"long enough for all heads to be compared at once"))
    sealed = rig.writer.seal()
    index = load_index(rig.sidecar, 7, 10)

    def parse(entry: memoryview) -> EntryTraits:
        raise AssertionError(bytes(entry))

    told: list[int] = []
    found = verify_segment(
        rig.data, 7, entries=10, file_bytes=sealed.file_bytes, first_row=0, describe=parse, index=index,
        progress=told.append,
    )  # fmt: skip
    assert found.rows().tolist() == index.rows().tolist()
    assert sum(told) == 10
    assert len(told) > 1, "block by block"


def test_an_index_that_says_otherwise_is_named(rig: SegmentRig) -> None:
    rig.fill(6)
    sealed = rig.writer.seal()
    rows = load_index(rig.sidecar, 7, 6).rows()
    rows["timestamp"][3] += 1
    with pytest.raises(Corrupt, match=r"entry 3 is .* the sidecar states"):
        verify(rig, sealed, EntryIndex.of_rows(7, 0, rows))
    with pytest.raises(Corrupt, match="has 6 entries, its sidecar has 5"):
        verify(rig, sealed, EntryIndex.of_rows(7, 0, load_index(rig.sidecar, 7, 6).rows()[:5]))


def test_a_file_of_another_length(rig: SegmentRig) -> None:
    rig.fill(3)
    sealed = rig.writer.seal()
    with rig.data.open("ab") as file:
        file.write(b"x")
    with pytest.raises(Corrupt, match=f"has {sealed.file_bytes + 1} bytes, the metadata state {sealed.file_bytes}"):
        verify(rig, sealed, None)


def test_fewer_entries_than_the_metadata_says(rig: SegmentRig) -> None:
    rig.fill(3)
    sealed = rig.writer.seal()
    more = SealedSegment(4, sealed.size_bytes, sealed.file_bytes, sealed.row_end)
    with pytest.raises(Corrupt, match="ends with entry 2, the metadata state 3"):
        verify(rig, more, None)


@pytest.mark.parametrize("harm", ["missing", "rows", "seal", "empty"])
def test_a_lost_sidecar_is_rebuilt_loudly(rig: SegmentRig, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    rig.fill(9)
    expected = rig.writer.index.rows().tolist()
    sealed = rig.writer.seal()
    if harm == "missing":
        rig.sidecar.unlink()
    elif harm == "empty":
        rig.sidecar.write_bytes(b"")
    else:
        flip(rig.sidecar, 8 * (2048 + 70 if harm == "rows" else 1540))
    with caplog.at_level(logging.WARNING):
        assert load(rig, sealed).rows().tolist() == expected
    assert f"{rig.sidecar} is rebuilt from {rig.data}" in caplog.text
    caplog.clear()
    assert load(rig, sealed).rows().tolist() == expected
    assert not caplog.text


def test_a_rebuild_never_hides_damage(rig: SegmentRig) -> None:
    rig.fill(5)
    at = int(rig.writer.index.offsets[3]) + 35
    sealed = rig.writer.seal()
    rig.sidecar.unlink()
    flip(rig.data, 8 * at)
    with pytest.raises(Corrupt, match=r"entry 3: CRC32C is 0x.*, stated 0x"):
        load(rig, sealed)
    assert not rig.sidecar.exists()


def test_a_missing_file(rig: SegmentRig) -> None:
    rig.fill(2)
    sealed = rig.writer.seal()
    rig.data.unlink()
    with pytest.raises(DataLoss, match=r"7\.ledger of \d+ bytes is missing"):
        verify(rig, sealed, None)
