"""Goal: a read of a log returns exactly its entries, for every split. Method: logs of small blocks.

The cases have transactions and chunks that cross parts and segments, ranges, times and limits. Pieces have every size,
and every byte is damaged once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.segment.format import HEADER_BYTES
from pyspark_ledger.offload.bucket.catalogue import Segment
from pyspark_ledger.offload.bucket.fetch import read_heads, read_part
from pyspark_ledger.offload.bucket.frames import ByteRange, stream_frames
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_log import BucketLog, segment_ranges
from tests.rigs.bucket import lay_down, marker, message, put_segment

BLOCK = 400


def opened(directory: Path, *, scan: bool = True) -> BucketLog:
    store = open_object_store(directory)
    (topic,) = read_catalogue(store).find("t")
    return BucketLog(topic, read_heads(store, topic.segments) if scan else {})


def read(
    directory: Path, log: BucketLog, range_: PositionRange | None = None, target: int = 1
) -> list[tuple[str, bytes]]:
    store, found = open_object_store(directory), []
    for part in log.parts(PositionRange(log.start, log.end) if range_ is None else range_, target):
        found += [(str(position), bytes(entry.payload)) for position, entry in read_part(store, part)]
    return found


def made(directory: Path, ledgers: dict[int, Sequence[bytes]]) -> None:
    for ledger_id, entries in ledgers.items():
        put_segment(directory, ledger_id, entries, block_bytes=BLOCK)


def plain(count: int, first: int = 0) -> list[bytes]:
    return [message(number, b"v" * (number % 7 * 20) + b"%d" % number) for number in range(first, first + count)]


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("target", [1, 350, 900, 10**6])
def test_parts_of_every_size_give_every_entry_once(tmp_path: Path, target: int, scan: bool) -> None:
    made(tmp_path, {3: plain(40), 8: plain(1, 40), 9: plain(25, 41)})
    log = opened(tmp_path, scan=scan)
    whole = read(tmp_path, log, target=target)
    places = [f"{ledger}:{entry}" for ledger, count in ((3, 40), (8, 1), (9, 25)) for entry in range(count)]
    assert [place for place, _ in whole] == places
    assert len(log.parts(PositionRange(log.start, log.end), target)) > 1 or target > 900
    for start, end in ((0, 66), (7, 8), (13, 41), (39, 42), (65, 66), (20, 20)):
        edges = [*(Position.parse(place) for place in places), log.end]
        range_ = PositionRange(edges[start], edges[end])
        assert read(tmp_path, log, range_, target) == whole[start:end]
        assert log.measure(range_)[0] == end - start if scan else log.size_of(range_) >= 0


def test_a_block_a_bit_larger_than_the_target_is_one_part(tmp_path: Path) -> None:
    put_segment(tmp_path, 3, plain(60), block_bytes=10**5)
    log = opened(tmp_path)
    whole = PositionRange(log.start, log.end)
    (block,) = segment_ranges(log.topic.segments[0])
    assert [part.ranges for part in log.parts(whole, block.size_bytes * 4 // 5)] == [(block,)]
    sizes = [part.ranges[0].size_bytes for part in log.parts(whole, block.size_bytes * 3 // 10)]
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) < 400  # two entries


def test_a_range_may_begin_and_end_where_no_entry_is(tmp_path: Path) -> None:
    made(tmp_path, {3: plain(4), 9: plain(4)})
    log = opened(tmp_path)
    assert len(read(tmp_path, log, PositionRange(Position(3, 4), Position(9, 1)))) == 1
    assert len(read(tmp_path, log, PositionRange(Position(5, 0), Position(9, 4)))) == 4
    with pytest.raises(DataLoss, match="is 2:0, public/default/persistent/t begins at 3:0 and ends at 9:4"):
        log.require_position(Position(2, 0), "startingPosition")


def test_times_and_limits_are_exact(tmp_path: Path) -> None:
    made(tmp_path, {3: plain(10), 9: plain(10, 10)})
    log = opened(tmp_path)
    assert log.find_time(0) == Position(3, 0)
    assert log.find_time(1_013) == Position(9, 3)
    assert log.find_time(9_999) == log.end == Position(9, 10)
    whole = PositionRange(log.start, log.end)
    assert log.split_by_limit(whole, 12, None) == Position(9, 2)
    assert log.split_by_limit(whole, None, 1) == Position(3, 1)  # at least one entry
    rows, size = log.measure(PositionRange(log.start, Position(9, 4)))
    assert rows == 14
    assert log.split_by_limit(whole, None, size) == Position(9, 4)
    assert log.split_by_limit(whole, None, size - 1) == Position(9, 3)
    assert log.split_by_limit(whole, 100, 10**9) == log.end
    assert log.split_by_limit(PositionRange(Position(3, 10), log.end), 1, None) == Position(9, 1)


def in_run(number: int, run: int) -> bytes:
    return message(number, txnid_most_bits=0, txnid_least_bits=run)


def test_aborted_entries_are_hidden_and_committed_ones_seen_across_ledgers(tmp_path: Path) -> None:
    made(
        tmp_path,
        {
            3: [in_run(0, 1), in_run(1, 2), message(2)],
            5: [marker(3, 1, commit=False), in_run(4, 3), marker(5, 2, commit=True), marker(6, 3, commit=True)],
        },
    )
    log = opened(tmp_path)
    assert [place for place, _ in read(tmp_path, log)] == ["3:1", "3:2", "5:1"]
    assert log.end == Position(5, 4)
    with pytest.raises(Refused, match="entry 3:0 is of a transaction, and option 'offloadScan' is 'none'"):
        read(tmp_path, opened(tmp_path, scan=False))


def test_an_open_transaction_ends_the_read_before_its_first_entry(tmp_path: Path) -> None:
    made(tmp_path, {3: [message(0), in_run(1, 1), in_run(2, 2)], 5: [marker(3, 1, commit=True), message(4)]})
    log = opened(tmp_path)
    assert log.end == Position(3, 2)
    assert [place for place, _ in read(tmp_path, log)] == ["3:0", "3:1"]


def chunk(number: int, of: int, uuid: str, producer: str = "p") -> bytes:
    return message(
        number, f"{uuid}{number}".encode(), producer_name=producer, uuid=uuid,
        chunk_id=number, num_chunks_from_msg=of, total_chunk_msg_size=of * (len(uuid) + 1),
    )  # fmt: skip


def test_chunked_messages_are_whole_interleaved_and_across_ledgers(tmp_path: Path) -> None:
    made(
        tmp_path,
        {
            3: [chunk(0, 3, "a"), chunk(0, 2, "b"), chunk(0, 2, "lost"), chunk(1, 3, "a"), message(9)],
            4: [chunk(1, 3, "a"), chunk(1, 2, "b"), chunk(1, 3, "never"), chunk(2, 3, "a")],
            6: [chunk(0, 2, "a"), chunk(0, 2, "a"), chunk(1, 2, "a")],
        },
    )
    log = opened(tmp_path)
    wanted = [("3:4", b"value-9"), ("4:1", b"b0b1"), ("4:3", b"a0a1a2"), ("6:2", b"a0a1")]
    for target in (1, 10**6):
        assert read(tmp_path, log, target=target) == wanted
    assert read(tmp_path, log, PositionRange(Position(4, 3), log.end)) == wanted[2:]
    with pytest.raises(Refused, match="entry 3:0 is a chunk of a message"):
        read(tmp_path, opened(tmp_path, scan=False))


def segment_of(directory: Path) -> tuple[Segment, bytes]:
    (segment,) = opened(directory, scan=False).topic.segments
    return segment, (directory / segment.data_name).read_bytes()


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=25), piece=st.integers(1, 700))
def test_frames_are_the_same_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], piece: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    entries = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    put_segment(directory, 3, entries, block_bytes=512)
    segment, data = segment_of(directory)
    found = []
    for span in segment_ranges(segment):
        part = data[span.offset : span.end_offset]
        pieces = [part[at : at + piece] for at in range(0, len(part), piece)]
        found += [bytes(frame.entry) for frame in stream_frames(pieces, span, "x")]
    assert found == entries


def walk_all(data: bytes, spans: Sequence[ByteRange]) -> None:
    for span in spans:
        list(stream_frames([data[span.offset : span.end_offset]], span, "x"))


def test_every_damaged_byte_outside_of_entries_is_found(tmp_path: Path) -> None:
    entries = [message(number) for number in range(12)]
    put_segment(tmp_path, 3, entries, block_bytes=BLOCK)
    segment, data = segment_of(tmp_path)
    spans = segment_ranges(segment)
    inside = set()
    for span in spans:
        for frame in stream_frames([data[span.offset : span.end_offset]], span, "x"):
            begin = frame.offset + 12
            inside |= set(range(begin, begin + len(frame.entry)))
    for at in sorted(set(range(len(data))) - inside):
        broken = bytearray(data)
        broken[at] ^= 0x40
        with pytest.raises(LedgerError, match=r"x at \d+"):
            walk_all(bytes(broken), spans)


def flip(directory: Path, log: BucketLog, ledger: int, value: bytes) -> None:
    """Flip a bit of a payload, so only the checksum is wrong."""
    (file,) = (directory / one.data_name for one in log.topic.segments if one.ledger_id == ledger)
    data = bytearray(file.read_bytes())
    data[data.index(value)] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("scan", [True, False])
def test_a_flipped_bit_inside_an_entry_is_corrupt(tmp_path: Path, scan: bool) -> None:
    made(tmp_path, {3: [message(0), message(1, b"harmed"), message(2)]})
    log = opened(tmp_path, scan=scan)
    flip(tmp_path, log, 3, b"harmed")
    for skip_missing in (False, True):
        (part,) = log.parts(PositionRange(log.start, log.end), 10**6)
        with pytest.raises(Corrupt, match=r"entry 3:1 in \S+ has CRC32C 0x[0-9a-f]{8}, but states 0x[0-9a-f]{8}"):
            list(read_part(open_object_store(tmp_path), part, skip_missing=skip_missing))


def test_flipped_bit_in_a_chunk_fetched_for_its_message_is_corrupt(tmp_path: Path) -> None:
    made(tmp_path, {3: [chunk(0, 2, "harmed")], 4: [message(1), chunk(1, 2, "harmed")]})
    log = opened(tmp_path)
    flip(tmp_path, log, 3, b"harmed0")
    with pytest.raises(Corrupt, match=r"entry 3:0 in \S+ has CRC32C 0x[0-9a-f]{8}, but states 0x[0-9a-f]{8}"):
        read(tmp_path, log, PositionRange(Position(4, 0), log.end))


def test_a_block_that_ends_in_padding_before_its_entries_is_data_loss(tmp_path: Path) -> None:
    entries = [b"a" * 50, b"b" * 50, b"c" * 50]
    put_segment(tmp_path, 3, entries)
    segment, data = segment_of(tmp_path)
    (span,) = segment_ranges(segment)
    cut = HEADER_BYTES + 2 * 62
    padded = data[:cut] + (b"\xfe\xdc\xde\xad" * 99)[: len(data) - cut]
    with pytest.raises(DataLoss, match="entries 3:2 to 3:2 were never written to the object"):
        list(stream_frames([padded], span, "x"))
    with pytest.raises(Corrupt, match="byte of the padding"):
        list(stream_frames([padded[:-1] + b"\0"], span, "x"))
    with pytest.raises(Corrupt, match="bytes were expected"):
        list(stream_frames([data[:-1]], span, "x"))


def test_objects_that_vanish_fail_a_part_or_are_left_out(tmp_path: Path) -> None:
    made(tmp_path, {3: plain(3), 9: plain(3, 3)})
    log, store = opened(tmp_path), open_object_store(tmp_path)
    (tmp_path / log.topic.segments[0].data_name).unlink()
    (part,) = log.parts(PositionRange(log.start, log.end), 10**6)
    with pytest.raises(NotFound, match="there is no object"):
        list(read_part(store, part))
    assert [str(position) for position, _ in read_part(store, part, skip_missing=True)] == ["9:0", "9:1", "9:2"]


def test_blocks_are_as_the_index_says(tmp_path: Path) -> None:
    entries = plain(30)
    put_segment(tmp_path, 3, entries, block_bytes=BLOCK)
    segment, data = segment_of(tmp_path)
    _, blocks = lay_down(entries, BLOCK)
    spans = segment_ranges(segment)
    assert [(span.offset, span.first) for span in spans] == [(block.offset, block.first_entry) for block in blocks]
    assert spans[-1].end_offset == len(data)
