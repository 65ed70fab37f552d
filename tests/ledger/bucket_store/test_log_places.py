"""Goal: each byte of a file has the place of its last write. Method: random writes against a list of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.bucket_store.log_places import LogPlaces, LogRange
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.wal.scan import PayloadPlace

WRITES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 5)), max_size=12)


@given(WRITES, st.integers(0, 50), st.integers(0, 50))
def test_find_returns_the_last_write_of_each_byte(writes: list[tuple[int, int, int]], start: int, length: int) -> None:
    places, bytes_ = LogPlaces(), dict[int, tuple[int, int]]()
    for number, (offset, size, gap) in enumerate(writes):
        at = 72 + gap
        places.write("file", offset, size, PayloadPlace(number, at))
        bytes_ |= {offset + byte: (number, at + byte) for byte in range(size)}
    wanted = [bytes_.get(byte) for byte in range(start, start + length)]
    if None in wanted:
        with pytest.raises(Corrupt, match=f"expected bytes {start} to {start + length}"):
            places.find("file", start, length)
        return
    found = places.find("file", start, length)
    assert [(place.number, place.start + byte) for place in found for byte in range(place.length)] == wanted


def test_find_adjacent_bytes_of_an_object_returns_one_range() -> None:
    places = LogPlaces()
    places.write("file", 0, 10, PayloadPlace(3, 72))
    places.write("file", 10, 5, PayloadPlace(3, 82))
    places.write("other", 0, 5, PayloadPlace(3, 87))
    assert places.find("file", 2, 13) == [LogRange(3, 74, 13)]
    with pytest.raises(Corrupt, match="no bytes of nothing at 0"):
        places.find("nothing", 0, 1)
