"""Goal: pieces are returned in order, few in flight, and skipped pieces are not fetched. Method: a counting store."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.objects.directory import DirectoryStore
from pyspark_ledger.ledger.objects.prefetch import ObjectRange, RangePrefetcher

DATA = bytes(range(250)) * 4


class CountingStore(DirectoryStore):
    """A directory that records its requests."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.lock = threading.Lock()
        self.asked: list[tuple[int, int]] = []
        self.fails_at = -1

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Record the request and return the bytes."""
        with self.lock:
            self.asked.append((start, length))
        if start == self.fails_at:
            raise Unavailable("not now")
        return super().get_range(key, start, length)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    (tmp_path / "object").write_bytes(DATA)
    return CountingStore(tmp_path)


def test_ranges_come_whole_and_in_order(store: CountingStore) -> None:
    ranges = [ObjectRange("object", 0, 1000), ObjectRange("object", 10, 10), ObjectRange("object", 300, 555)]
    with RangePrefetcher(store, ranges, piece_bytes=64, in_flight=3) as ahead:
        found = [b"".join(bytes(memoryview(piece)) for piece in ahead.pieces(number)) for number in range(3)]
    assert found == [DATA, b"", DATA[300:555]]
    assert max(length for _, length in store.asked) == 64


def test_no_more_is_on_its_way_than_allowed_and_leaving_ends_it(store: CountingStore) -> None:
    with RangePrefetcher(store, [ObjectRange("object", 0, 1000)], piece_bytes=10, in_flight=3) as ahead:
        pieces = ahead.pieces(0)
        for _ in range(5):
            next(pieces)
    assert len(store.asked) <= 5 + 3


def test_a_range_that_was_left_early_is_passed_over(store: CountingStore) -> None:
    ranges = [ObjectRange("object", 0, 100), ObjectRange("object", 500, 520)]
    with RangePrefetcher(store, ranges, piece_bytes=10, in_flight=2) as ahead:
        assert bytes(memoryview(next(ahead.pieces(0)))) == DATA[:10]
        assert b"".join(bytes(memoryview(piece)) for piece in ahead.pieces(1)) == DATA[500:520]


def test_an_error_reaches_whoever_asked_for_the_piece(store: CountingStore) -> None:
    store.fails_at = 20
    with RangePrefetcher(store, [ObjectRange("object", 0, 100)], piece_bytes=10, in_flight=4) as ahead:
        pieces = ahead.pieces(0)
        assert [bytes(memoryview(next(pieces))) for _ in range(2)] == [DATA[:10], DATA[10:20]]
        with pytest.raises(Unavailable, match="not now"):
            next(pieces)
