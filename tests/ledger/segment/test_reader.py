"""Goal: the same entries by index, by frames, by walking. Method: segments, golden vectors, damage."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.segment.format import FRAME, BlockHeader, pack_header, padding
from pyspark_ledger.ledger.segment.reader import FRAME_BYTES, blocks, frame_table, iter_frames, walk_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.rigs.segment import SegmentRig

OBJECTS = sorted(
    path
    for path in (Path(__file__).parents[2] / "fixtures" / "pulsar").glob("**/*-ledger-*")
    if path.suffix == "" and not path.name.endswith("-index")
)


def block(first: int, entries: list[bytes], size: int) -> bytes:
    body = b"".join(FRAME.pack(len(data), first + i) + data for i, data in enumerate(entries))
    return pack_header(BlockHeader(size, first)) + body + b"".join(padding(size - 128 - len(body)))


PADDED = block(0, [b"hello"], 160) + block(1, [b"pulsar!"], 160) + block(2, [b"x" * 10], 150)


def frames(*entries: bytes, first: int = 0) -> bytes:
    return b"".join(FRAME.pack(len(data), first + i) + data for i, data in enumerate(entries))


def test_golden_object() -> None:
    exact = bytes.fromhex(
        "fbdbabcb000000000000008000000000000000a40000000000000000"
        + "00" * 100
        + "00000005000000000000000068656c6c6f00000007000000000000000170756c73617221"
    )
    assert [bytes(frame.entry) for frame in walk_segment(exact, 1, where="x", entries=2)] == [
        b"hello",
        b"pulsar!",
    ]


def test_golden_padding_between_blocks() -> None:
    assert PADDED[128:160].hex() == "00000005000000000000000068656c6c6f" + "fedcdead" * 3 + "fedcde"
    walked = [(one[0], one[1], bytes(one[2])) for one in walk_segment(PADDED, 1, where="x", entries=3)]
    assert walked == [(0, 128, b"hello"), (1, 288, b"pulsar!"), (2, 448, b"x" * 10)]


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name[-20:])
def test_objects_that_pulsar_wrote(path: Path) -> None:
    data = path.read_bytes()
    walked = list(walk_segment(data, 1, where=path.name))
    assert walked
    assert [one.entry_id for one in walked] == list(range(len(walked)))


def test_every_flipped_bit_outside_entries_is_refused_or_changes_a_length() -> None:
    sound = [bytes(one.entry) for one in walk_segment(PADDED, 1, where="x")]
    starts = [one.offset + 12 for one in walk_segment(PADDED, 1, where="x")]
    inside = {at for start, data in zip(starts, sound, strict=True) for at in range(start, start + len(data))}
    grown = 0
    for bit in range(len(PADDED) * 8):
        if bit // 8 in inside:
            continue
        damaged = bytearray(PADDED)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = [bytes(one.entry) for one in walk_segment(damaged, 1, where="x", entries=3)]
        except Corrupt:
            continue
        # An entry that took 8 bytes of padding with it: its checksum, verified by its reader, tells.
        grown += 1
        assert [len(a) - len(b) for a, b in zip(found, sound, strict=True) if a != b] == [8]
    assert grown == 2


def test_an_object_that_is_cut_anywhere_is_refused() -> None:
    for length in range(len(PADDED)):
        with pytest.raises(Corrupt):
            list(walk_segment(PADDED[:length], 1, where="x", entries=3))


def test_a_block_without_entries_shows_when_the_count_is_known() -> None:
    short = block(0, [b"a"], 256) + block(1, [], 256)
    assert len(list(walk_segment(short, 1, where="x"))) == 1
    with pytest.raises(Corrupt, match="segment 1 ends with entry 0, the metadata state 4"):
        list(walk_segment(short, 1, where="x", entries=5))


def test_the_streaming_version_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="version 2"):
        list(walk_segment(bytes.fromhex("26a66d32") + PADDED[4:], 1, where="x"))


@pytest.mark.parametrize("max_bytes", [1, 60, 100, 10**9])
def test_blocks_are_runs_of_whole_frames(rig: SegmentRig, max_bytes: int) -> None:
    rig.fill(20)
    data, index = rig.data.read_bytes(), rig.writer.index
    for first, end in ((0, 20), (3, 4), (7, 7), (1, 19)):
        found = blocks(index, rig.data, 7, first, end, max_bytes)
        counts = [one.entries for one in found]
        assert [one.first_entry for one in found] == [first + sum(counts[:i]) for i in range(len(found))]
        assert sum(one.entries for one in found) == end - first
        assert all(one.length <= max_bytes or one.entries == 1 for one in found)
        for one in found:
            assert one.offset // 256 == (one.offset + one.length - 1) // 256
            buffer = data[one.offset : one.offset + one.length]
            entries = list(iter_frames(buffer, 7, one.first_entry, one.entries))
            numbers = range(one.first_entry, one.first_entry + one.entries)
            assert [number for number, _ in entries] == list(numbers)
            offsets, lengths = frame_table(buffer, 7, one.first_entry, one.entries)
            sliced = [buffer[at:][:size] for at, size in zip(offsets, lengths, strict=True)]
            assert sliced == [bytes(data) for _, data in entries]
            part = slice(one.first_entry, one.first_entry + one.entries)
            indexed = index.offsets[part] + (FRAME_BYTES - one.offset), index.lengths[part]
            assert [column.tolist() for column in indexed] == [offsets.tolist(), lengths.tolist()]
    if max_bytes == 10**9:
        assert len(found) == len({int(at) // 256 for at in index.offsets[1:19]})


def test_blocks_never_reach_beyond_the_committed_end(rig: SegmentRig) -> None:
    rig.fill(2)
    rig.write(rig.entry(b"unseen"))
    with pytest.raises(Refused, match=r"entries \[0, 3\) were requested, the segment has \[0, 2\)"):
        blocks(rig.writer.index, rig.data, 7, 0, 3, 100)


@pytest.mark.parametrize("read", [lambda *a: list(iter_frames(*a)), frame_table], ids=["iter", "table"])
@pytest.mark.parametrize("entries", [(b"aaa", b"bb", b"cccc"), (b"aaa", b"bbb", b"ccc")], ids=["mixed", "uniform"])
def test_frames_that_do_not_fit_their_block(
    read: Callable[[bytes, int, int, int], Sequence[object]], entries: tuple[bytes, ...]
) -> None:
    good = frames(*entries, first=5)
    assert read(good, 7, 5, 3)
    wrong = [
        (good, 4, 3),
        (good, 5, 2),
        (good, 5, 4),
        (good[:-1], 5, 3),
        (good + b"x", 5, 3),
        (struct.pack(">I", 2**31) + good[4:], 5, 3),
        (good[:15] + struct.pack(">Iq", 3, 9) + good[27:], 5, 3),
        (b"", 5, 1),
    ]
    for buffer, first, count in wrong:
        with pytest.raises(Corrupt, match="block"):
            read(buffer, 7, first, count)


def test_no_frames() -> None:
    assert list(iter_frames(b"", 7, 0, 0)) == []
    assert [len(column) for column in frame_table(b"", 7, 0, 0)] == [0, 0]
