"""Goal: heads agree with rows exactly when each byte does. Method: random stamps of every width, each bit flipped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.message.entry import WIDE_STAMP_BYTES, BrokerStamp, stamp_prefix, wide_stamp
from pyspark_ledger.ledger.segment.entry_heads import agreeing
from pyspark_ledger.ledger.segment.format import FRAME, HEADER_BYTES
from pyspark_ledger.ledger.segment.index import Rows, make_rows

_STEPS = st.integers(0, 2**20) | st.sampled_from([0, 1, 127, 128, 2**14, 2**35, 2**49])
_BEHIND = b"\x0e\x01" + b"sums" + b"what the checksum covers"


def laid_out(steps: list[tuple[int, int]], first: int) -> tuple[bytearray, Rows]:
    """A block with an entry for each step of (time, rows), and room behind."""
    data, places, time, row = bytearray(HEADER_BYTES), [], 0, 0
    for number, (more_time, more_rows) in enumerate(steps, first):
        time, row = time + more_time, row + more_rows
        entry = stamp_prefix(BrokerStamp(time, row)) + _BEHIND
        places.append((len(data), len(entry), time, row))
        data += FRAME.pack(len(entry), number) + entry
    columns = np.array(places, dtype=np.int64).reshape(-1, 4).T
    return data + bytes(64), make_rows(columns[0], columns[1], columns[2], columns[3])


def count(data: bytearray, rows: Rows, first: int = 0, before: BrokerStamp = BrokerStamp(0, 0)) -> int:  # noqa: B008
    return agreeing(memoryview(data), 0, len(data) - 64, rows, first, before)


@given(st.lists(st.tuples(_STEPS, _STEPS), max_size=30), st.integers(0, 2**40))
def test_what_a_writer_wrote_agrees(steps: list[tuple[int, int]], first: int) -> None:
    data, rows = laid_out(steps, first)
    assert count(data, rows, first) == len(rows)


def test_every_flipped_bit_of_a_head_ends_the_agreement_there() -> None:
    data, rows = laid_out([(0, 0), (127, 0), (1, 5), (2**41, 200), (0, 2**30)], 70)
    for number, row in enumerate(rows):
        begin = int(row["offset"])
        behind = begin + 12 + int(row["length"]) - len(_BEHIND) + 2
        for at in range(begin, behind + 4):
            for bit in range(8):
                data[at] ^= 1 << bit
                assert count(data, rows, 70) == (number if at < behind else len(rows)), (at, bit)
                data[at] ^= 1 << bit


def wide(data: bytearray, rows: Rows, entries: slice = slice(None)) -> tuple[bytearray, Rows]:
    """The same block, with wide stamps in some entries."""
    made, places = bytearray(HEADER_BYTES), []
    widened = set(range(len(rows))[entries])
    for number, row in enumerate(rows):
        stamp = BrokerStamp(int(row["timestamp"]), int(row["row_end"]))
        entry = (wide_stamp(stamp) if number in widened else stamp_prefix(stamp)) + _BEHIND
        places.append((len(made), len(entry), *stamp))
        made += FRAME.pack(len(entry), number) + entry
    columns = np.array(places, dtype=np.int64).reshape(-1, 4).T
    return made + bytes(64), make_rows(columns[0], columns[1], columns[2], columns[3])


@given(st.lists(st.tuples(_STEPS, _STEPS), min_size=1, max_size=30))
def test_wide_stamps_agree(steps: list[tuple[int, int]]) -> None:
    data, rows = wide(*laid_out([(0, 1), *steps], 0))
    assert count(data, rows) == len(rows)


def test_every_flipped_bit_of_a_wide_stamp_ends_the_agreement_there() -> None:
    data, rows = wide(*laid_out([(1, 1), (127, 1), (2**41, 200)], 0))
    for number, row in enumerate(rows):
        begin = int(row["offset"])
        for at in range(begin, begin + 12 + WIDE_STAMP_BYTES):
            for bit in range(8):
                data[at] ^= 1 << bit
                assert count(data, rows) == number, (at, bit)
                data[at] ^= 1 << bit


def test_the_agreement_ends_where_the_form_of_the_stamps_changes() -> None:
    short = laid_out([(1, 1)] * 6, 0)
    assert count(*wide(*short, slice(4))) == 4
    assert count(*wide(*short, slice(2, 6))) == 2


@pytest.mark.parametrize("entry", [0, 1, 9000, 19999])
@pytest.mark.parametrize("column", ["offset", "length", "timestamp", "row_end"])
def test_a_row_that_says_otherwise_ends_the_agreement(column: str, entry: int) -> None:
    data, rows = laid_out([(3, 1)] * 20_000, 0)
    assert count(data, rows) == 20_000
    rows[column][entry] += 1
    assert count(data, rows) == entry


def test_stamps_that_fall_behind_the_entry_before_do_not_agree() -> None:
    data, rows = laid_out([(50, 5), (0, 0)], 0)
    assert count(data, rows, before=BrokerStamp(50, 5)) == 2
    assert count(data, rows, before=BrokerStamp(51, 5)) == 0
    assert count(data, rows, before=BrokerStamp(50, 6)) == 0


def test_nothing_is_read_beyond_the_block_or_the_data() -> None:
    data, rows = laid_out([(5, 1)] * 4, 0)
    end = int(rows[3]["offset"]) + 12 + int(rows[3]["length"])
    assert agreeing(memoryview(data), 0, end - 1, rows, 0, BrokerStamp(0, 0)) == 3
    assert agreeing(memoryview(data)[: int(rows[2]["offset"]) + 47], 0, end, rows, 0, BrokerStamp(0, 0)) == 2
    assert agreeing(memoryview(b""), 0, end, rows, 0, BrokerStamp(0, 0)) == 0
