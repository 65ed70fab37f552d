"""Goal: the stamps of a direct segment are those that a log would have written. Method: parts of random sizes, whose
bytes after the replacement are compared with promoted parts, and damage at every byte of a stamp.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message.entry import (
    WIDE_STAMP_BYTES,
    BrokerStamp,
    parse_entry,
    provisional_stamp,
    wide_stamp,
)
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import BrokerEntryMetadata
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.provisional_stamps import (
    RealStamps,
    direct_index,
    is_provisional,
    put_stamps,
    with_counted_rows,
    with_index,
)
from pyspark_ledger.ledger.segment.reader import walk_segment
from pyspark_ledger.ledger.segment.verification import verify_segment
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from tests.rigs.direct import STAGED_MS, DirectPart, direct_part
from tests.rigs.entry import entry

NOW = 1_700_000_000_000
BLOCK = 1024
STAMPS = RealStamps(NOW, 41)


def made(tmp_path: Path, seed: int, rows: int = 3) -> DirectPart:
    dice = random.Random(seed)
    payloads = [dice.randbytes(dice.randrange(1, 700)) for _ in range(dice.randrange(1, 40))]
    return direct_part(tmp_path, 1, payloads, BLOCK, rows=rows)


def test_provisional_stamp_is_read_by_protobuf_as_a_time_without_index() -> None:
    stamp = provisional_stamp(STAGED_MS)
    assert stamp.hex() == "0e020000001208" + "8080babbc8ae8000" + "7a0700000000000000"
    found = BrokerEntryMetadata.FromString(stamp[6:])
    assert (found.broker_timestamp, found.HasField("index")) == (STAGED_MS, False)
    parsed = parse_entry(stamp + entry(b"value"), "it")
    assert (parsed.stamp, bytes(parsed.payload)) == (BrokerStamp(STAGED_MS, 0), b"value")
    assert is_provisional(stamp + entry(b"value"))
    assert not is_provisional(wide_stamp(BrokerStamp(STAGED_MS, 1)) + entry(b"value"))
    assert not is_provisional(entry(b"value"))


@pytest.mark.parametrize("seed", range(20))
def test_index_and_stamps_of_a_random_part_are_those_of_a_segment(tmp_path: Path, seed: int) -> None:
    part = made(tmp_path, seed)
    layout = direct_index(7, STAMPS, BLOCK, part.entry_bytes, part.rows)
    assert layout.file_bytes == len(part.data)
    frames = list(walk_segment(part.data, 7, where="it"))
    assert [frame.offset for frame in frames] == layout.index.offsets.tolist()
    stamped = bytearray(part.data)
    put_stamps(stamped, layout.index.offsets + FRAME_BYTES, NOW, layout.index.row_ends, "it")
    path = tmp_path / "7.ledger"
    path.write_bytes(stamped)
    found = verify_segment(
        path, 7, entries=len(part.rows), file_bytes=len(part.data), first_row=41, describe=entry_traits
    )
    assert (found.rows() == layout.index.rows()).all()
    assert found.row_end == 41 + part.rows.sum()
    assert set(found.timestamps.tolist()) == {NOW}


@pytest.mark.parametrize("seed", range(10))
def test_frames_get_the_same_stamps_from_index_and_from_their_metadata(tmp_path: Path, seed: int) -> None:
    part = made(tmp_path, seed)
    index = direct_index(7, STAMPS, BLOCK, part.entry_bytes, part.rows).index
    starts = np.append(index.offsets, len(part.data))
    dice, count = random.Random(seed), index.count
    first = dice.randrange(count)
    end = first + 1
    while end < count and starts[end] == index.end_offset(end - 1) and dice.random() < 0.9:
        end += 1
    raw = part.data[int(starts[first]) : index.end_offset(end - 1)]
    before = RealStamps(NOW, int(index.row_ends[first - 1]) if first else 41)
    by_index = with_index(raw, first, end - first, index, "it").to_pybytes()
    assert with_counted_rows(raw, 7, first, end - first, before, "it").to_pybytes() == by_index
    at = 0
    for number in range(first, end):
        stamp = wide_stamp(BrokerStamp(NOW, int(index.row_ends[number])))
        assert by_index[at + FRAME_BYTES :][:WIDE_STAMP_BYTES] == stamp
        assert (
            by_index[at + FRAME_BYTES + WIDE_STAMP_BYTES : at + FRAME_BYTES + index.lengths[number]]
            == (raw[at + FRAME_BYTES + WIDE_STAMP_BYTES : at + FRAME_BYTES + index.lengths[number]])
        )
        at += FRAME_BYTES + int(index.lengths[number])
    assert at == len(by_index)


def test_any_other_bytes_in_place_of_a_provisional_stamp_are_refused() -> None:
    frame = provisional_stamp(STAGED_MS) + entry(b"value")
    for at in range(WIDE_STAMP_BYTES):
        data = bytearray(frame + frame)
        data[len(frame) + at] ^= 0x40
        before = bytes(data)
        starts = np.array([0, len(frame)])
        if 7 <= at < 15:  # the time of staging is free
            put_stamps(data, starts, NOW, np.array([1, 2]), "object x")
            continue
        with pytest.raises(Corrupt, match=rf"object x: the stamp at byte {len(frame)} is"):
            put_stamps(data, starts, NOW, np.array([1, 2]), "object x")
        assert data == before


def test_lengths_that_differ_from_the_frames_are_refused(tmp_path: Path) -> None:
    part = direct_part(tmp_path, 1, [b"one", b"two"], BLOCK)
    index = direct_index(7, STAMPS, BLOCK, part.entry_bytes, part.rows).index
    raw = part.data[int(index.offsets[0]) : index.end_offset(1)]
    with pytest.raises(Corrupt, match=r"object x: entries 0 to 0 have \d+ bytes, the index states \d+"):
        with_index(raw, 0, 1, index, "object x")
    with pytest.raises(Corrupt, match=r"frame of entry 1 .* expected entry 0"):
        with_counted_rows(raw[int(index.lengths[0]) + FRAME_BYTES :], 7, 0, 1, STAMPS, "object x")


def test_numbers_that_a_stamp_cannot_state_are_refused() -> None:
    sizes = np.array([100])
    with pytest.raises(Refused, match="row ends 0 to 0"):
        direct_index(7, RealStamps(NOW, 0), BLOCK, sizes, np.array([0]))
    with pytest.raises(Refused, match="time 36028797018963968"):
        direct_index(7, RealStamps(1 << 55, 0), BLOCK, sizes, np.array([1]))
    with pytest.raises(Refused, match="entry 0 takes 2036 bytes, a block of 1024 bytes has room for 896"):
        direct_index(7, RealStamps(NOW, 0), BLOCK, np.array([2000]), np.array([1]))
