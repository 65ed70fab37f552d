"""Goal: after a crash, the acknowledged entries and what whole ones follow. Method: damage real files.

Every byte of the tail is torn off, every bit of a small open segment is flipped, sidecars and files vanish.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_ledger.ledger.errors import Corrupt, DataLoss
from pyspark_ledger.ledger.segment.format import FRAME
from pyspark_ledger.ledger.segment.index import load_open
from pyspark_ledger.ledger.segment.recovery import RecoveredSegment, seal_recovered

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.segment import SegmentRig


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def rows_of(recovered: RecoveredSegment) -> list[tuple[int, ...]]:
    return recovered.index.rows().tolist()


def test_a_clean_tail_is_found_and_sealed(rig: SegmentRig) -> None:
    rig.fill(9)
    expected = rig.originals()
    rig.writer.close()
    recovered = rig.recover()
    assert (recovered.entries, recovered.torn_bytes, recovered.damage) == (9, 0, "")
    assert recovered.row_end == sum(number % 3 for number in range(9))
    sealed = seal_recovered(recovered)
    assert sealed.file_bytes == rig.data.stat().st_size
    assert not rig.torn.exists()
    rig.verify(sealed)
    assert rig.originals() == expected


def test_an_empty_segment(rig: SegmentRig) -> None:
    rig.writer.close()
    recovered = rig.recover()
    assert (recovered.entries, recovered.end_offset, recovered.torn_bytes) == (0, 128, 0)
    sealed = seal_recovered(recovered)
    assert (sealed.entries, sealed.file_bytes, sealed.size_bytes) == (0, 128, 0)
    rig.verify(sealed)


def test_whole_entries_beyond_the_acknowledged_end_are_kept(rig: SegmentRig) -> None:
    rig.fill(3)
    rig.write(rig.entry(b"late one"), rig.entry(b"late two" * 10))
    rig.writer.close()
    recovered = rig.recover()
    assert (recovered.entries, recovered.acknowledged, recovered.torn_bytes) == (5, 3, 0)
    rig.verify(seal_recovered(recovered))


@pytest.mark.thorough
@pytest.mark.parametrize("shorter", [False, True], ids=["zeros", "short file"])
def test_the_tail_torn_at_every_byte(make_rig: Callable[..., SegmentRig], shorter: object) -> None:
    rig = make_rig("origin")
    rig.fill(4)
    acknowledged = rig.writer.end_offset
    rig.write(rig.entry(b"\xffone\xff"), rig.entry(b"\xfftwo\xff" * 14), rig.entry(b"\xffthree\xff"))
    ends = [place.offset + 12 + place.length for place in rig.writer._pending]
    whole, end = rig.data.read_bytes(), rig.writer.end_offset
    rig.writer.close()
    sidecar = rig.sidecar.read_bytes()
    for cut in range(acknowledged, end + 1):
        rig.data.write_bytes(whole[:cut] if shorter else whole[:cut] + bytes(len(whole) - cut))
        rig.sidecar.write_bytes(sidecar)
        rig.torn.unlink(missing_ok=True)
        recovered = rig.recover()
        kept = 4 + sum(one <= cut for one in ends)
        assert recovered.entries == kept, cut
        torn = whole[recovered.end_offset : cut].rstrip(b"\0")
        assert recovered.torn_bytes == len(torn)
        sealed = seal_recovered(recovered)
        rig.verify(sealed)
        assert rig.data.read_bytes()[-8:] == whole[recovered.end_offset - 8 : recovered.end_offset]
        assert (rig.torn.read_bytes() if rig.torn.exists() else b"") == torn


def sum_at(whole: bytes, frame: int) -> int:
    """Return the offset of an entry's checksum, the first byte whose damage only the checksum detects."""
    return 6 + int.from_bytes(whole[frame + 14 : frame + 18], "big") + 2


def unreadable_at(rig: SegmentRig, recovered: RecoveredSegment, offset: int) -> list[int]:
    """`offset`, once for each entry that a reader refuses and that holds this byte; -1 for any other it refuses."""
    data, found = rig.data.read_bytes(), []
    for frame, length, *_ in rows_of(recovered):
        begin = frame + 12
        try:
            rig.describe(memoryview(data)[begin : begin + length])
        except Corrupt:
            found.append(offset if begin <= offset < begin + length else -1)
    return found


@pytest.mark.thorough
def test_every_flipped_bit_of_an_open_segment(rig: SegmentRig) -> None:
    rig.fill(5)
    acknowledged = rig.writer.end_offset
    rig.write(rig.entry(b"not yet"), rig.entry(b"nor this" * 10))
    rig.writer.close()
    whole = rig.data.read_bytes()
    sound = rows_of(rig.recover())
    accepted = times_changed = left_to_readers = 0
    # Nothing but the sidecar's row confirms a broker timestamp, and an entry gets it when acknowledged.
    times = {offset + 12 + at for offset, *_ in sound[5:] for at in range(7, 13)}
    for offset in range(len(whole)):
        for bit in range(8):
            overwrite(rig.data, offset, bytes((whole[offset] ^ 1 << bit,)))
            try:
                recovered = rig.recover()
            except Corrupt as error:
                assert str(rig.data) in error.message  # noqa: PT017 - most flips are accepted
                assert offset < acknowledged, (offset, bit)
            else:
                accepted += 1
                assert recovered.end_offset >= acknowledged, (offset, bit)
                if offset < acknowledged:
                    left_to_readers += 1
                    assert rows_of(recovered) == sound
                    assert [offset] == unreadable_at(rig, recovered, offset), (offset, bit)
                    continue
                if offset in times:
                    times_changed += not recovered.damage
                    assert recovered.index.offsets.tolist() == [row[0] for row in sound[: recovered.entries]]
                    continue
                assert offset >= recovered.end_offset, (offset, bit)
                assert recovered.torn_bytes
                assert rows_of(recovered) == sound[: recovered.entries]
        overwrite(rig.data, offset, whole[offset : offset + 1])
    # What the checksum of an acknowledged entry covers is its reader's to find; of the last one it is verified.
    summed = sum(length - sum_at(whole, begin) for begin, length, *_ in sound[:4])
    assert left_to_readers == 8 * summed
    assert accepted == 8 * (len(whole) - acknowledged + summed)
    assert times_changed


@pytest.mark.thorough
def test_every_flipped_bit_of_a_sidecar_never_loses_an_acknowledged_entry(rig: SegmentRig) -> None:
    rig.fill(4)
    rig.writer.close()
    whole = rig.sidecar.read_bytes()
    expected = rows_of(rig.recover())
    records = ((0, 110), (512, 40), (1024, 40), (1536, 44), (2048, 5 * 32))
    for offset in (at for start, length in records for at in range(start, start + length)):
        for bit in range(8):
            overwrite(rig.sidecar, offset, bytes((whole[offset] ^ 1 << bit,)))
            assert rows_of(rig.recover()) == expected, (offset, bit)
        overwrite(rig.sidecar, offset, whole[offset : offset + 1])


def test_damage_below_the_acknowledged_end_names_file_offset_and_values(rig: SegmentRig) -> None:
    rig.fill(6)
    at = int(rig.writer.index.offsets[2])
    rig.writer.close()
    overwrite(rig.data, at, FRAME.pack(17, 9))
    before = rig.data.read_bytes()
    with pytest.raises(Corrupt, match=rf"7\.ledger at {at}: frame of entry 9 with 17 bytes, expected entry 2 .* 6 ent"):
        rig.recover()
    assert rig.data.read_bytes() == before
    assert not rig.torn.exists()


def test_zeros_where_acknowledged_entries_were(rig: SegmentRig) -> None:
    rig.fill(6)
    at = int(rig.writer.index.offsets[4])
    rig.writer.close()
    overwrite(rig.data, at, bytes(rig.data.stat().st_size - at))
    with pytest.raises(Corrupt, match="zeros, expected entry 4; 6 entries up to"):
        rig.recover()


def test_a_torn_slot_leaves_the_older_one(rig: SegmentRig) -> None:
    rig.fill(5)
    rig.writer.close()
    ends = {struct.unpack("<q", rig.sidecar.read_bytes()[at : at + 8])[0]: at for at in (512, 1024)}
    overwrite(rig.sidecar, ends[max(ends)] + 20, b"torn")
    assert load_open(rig.sidecar, 7).acknowledged.entries == 4
    assert rig.recover().entries == 5


def test_a_missing_sidecar_is_told_and_the_segment_is_sealed(rig: SegmentRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.fill(6)
    rig.writer.close()
    rig.sidecar.unlink()
    with caplog.at_level(logging.WARNING):
        recovered = rig.recover()
    assert "7.index" in caplog.text
    assert (recovered.entries, recovered.acknowledged) == (6, None)
    rig.verify(seal_recovered(recovered))


def test_without_a_sidecar_a_torn_last_entry_is_cut(rig: SegmentRig) -> None:
    rig.fill(6)
    at = int(rig.writer.index.offsets[5])
    rig.writer.close()
    rig.sidecar.unlink()
    overwrite(rig.data, at + 30, b"\0\0")
    recovered = rig.recover()
    assert recovered.entries == 5
    assert recovered.torn_bytes
    rig.verify(seal_recovered(recovered))


@pytest.mark.parametrize("damaged", [1, 2, 4])
def test_without_a_sidecar_an_entry_beyond_the_damage_forbids_the_cut(rig: SegmentRig, damaged: object) -> None:
    rig.fill(6)
    at = int(rig.writer.index.offsets[damaged])
    rig.writer.close()
    rig.sidecar.unlink()
    overwrite(rig.data, at + 30, b"\0\0")
    with pytest.raises(Corrupt, match="is sound, and without a sidecar"):
        rig.recover()


def test_a_missing_file(rig: SegmentRig) -> None:
    rig.fill(3)
    rig.writer.close()
    rig.data.unlink()
    with pytest.raises(DataLoss, match=r"7\.ledger is missing; it had 3 acknowledged entries"):
        rig.recover()


def test_an_unmarked_run_at_the_tail_is_cut(rig: SegmentRig) -> None:
    rig.fill(3)
    end = rig.writer.end_offset
    rig.write(*(rig.entry(b"run" * 20, txn=5) for _ in range(4)))
    written = rig.writer.end_offset
    rig.writer.close()
    recovered = rig.recover()
    assert (recovered.entries, recovered.torn_entries, recovered.end_offset) == (3, 4, end)
    whole = rig.data.read_bytes()
    rig.verify(seal_recovered(recovered))
    assert rig.torn.read_bytes() == whole[end:written]


def test_a_marked_run_beyond_the_acknowledged_end_is_kept(rig: SegmentRig) -> None:
    rig.fill(1)
    rig.write(rig.entry(b"a", txn=5), rig.entry(b"b", txn=5), rig.entry(b"", rows=0, txn=5, closes=True))
    rig.writer.close()
    assert rig.recover().entries == 4


def test_a_marker_of_another_run_closes_nothing(rig: SegmentRig) -> None:
    rig.fill(1)
    rig.write(rig.entry(b"a", txn=5), rig.entry(b"", rows=0, txn=6, closes=True))
    rig.writer.close()
    assert rig.recover().entries == 1


def test_an_acknowledged_run_without_its_marker_is_corrupt(rig: SegmentRig) -> None:
    rig.fill(1)
    rig.commit(rig.entry(b"a", txn=5))
    rig.write(rig.entry(b"b", txn=5))
    rig.writer.close()
    with pytest.raises(Corrupt, match="the run from entry 1 has no marker, 2 entries were acknowledged"):
        rig.recover()


@pytest.mark.parametrize("keep_sidecar", [True, False])
def test_a_crash_between_header_and_truncation_is_repeated(
    rig: SegmentRig, monkeypatch: pytest.MonkeyPatch, keep_sidecar: object
) -> None:
    rig.fill(2)
    rig.write(*(rig.entry(b"run" * 20, txn=5) for _ in range(4)))
    rig.writer.close()
    if not keep_sidecar:
        rig.sidecar.unlink()
    recovered = rig.recover()

    def crash(fd: int, length: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.ftruncate", crash)
        with pytest.raises(KeyboardInterrupt):
            seal_recovered(recovered)
    again = rig.recover()
    assert (again.entries, again.torn_bytes) == (recovered.entries, recovered.torn_bytes)
    rig.verify(seal_recovered(again))


def test_a_recovered_segment_recovers_to_itself(rig: SegmentRig) -> None:
    rig.fill(7)
    rig.writer.close()
    first = rig.recover()
    seal_recovered(first)
    again = rig.recover()
    assert rows_of(again) == rows_of(first)
    assert again.torn_bytes == 0


def test_the_metadata_disagrees_with_the_sidecar(make_rig: Callable[..., SegmentRig]) -> None:
    rig = make_rig("one", first_row=10)
    rig.fill(1)
    rig.writer.close()
    rig.first_row = 11
    with pytest.raises(Corrupt, match="first row 10, the metadata state 256 bytes and row 11"):
        rig.recover()
