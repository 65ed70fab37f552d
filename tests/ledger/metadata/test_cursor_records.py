"""Goal: a cursor comes back as it was put, and changes by compare-and-set alone. Method: real files, threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord, Lease
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.position import Position

NOW = 1_700_000_000_000


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[Metadata]:
    metadata = Metadata.create(tmp_path / "metadata.sqlite", "a-store", "a-host", lambda: NOW)
    metadata.create_ledger("orders", "i0", {}, exist_ok=False)
    yield metadata
    metadata.close()


def test_a_cursor_comes_back_as_it_was_put(metadata: Metadata) -> None:
    assert metadata.cursors.get("orders", "c") is None
    plain = CursorRecord("orders", "c", Position(-1, 0))
    full = CursorRecord("orders", "d", Position(3, 0), Position(2, 5), Lease("h/1/2", NOW + 30_000))
    for cursor in (plain, full):
        put = metadata.cursors.put(cursor, None)
        assert put is not None
        assert metadata.cursors.get("orders", cursor.name) == put
        assert put.cursor == cursor
    assert metadata.cursors.names("orders") == ["c", "d"]
    assert metadata.cursors.delete("orders", "c")
    assert not metadata.cursors.delete("orders", "c")
    with pytest.raises(NotFound, match="'none'"):
        metadata.cursors.put(CursorRecord("none", "c", Position(0, 0)), None)


def test_two_changes_of_a_cursor_never_both_win(metadata: Metadata) -> None:
    metadata.cursors.put(CursorRecord("orders", "c", Position(0, 0)), None)

    def count_up(_: int) -> None:
        while True:
            found = metadata.cursors.get("orders", "c")
            assert found is not None
            at = found.cursor.next_position
            if metadata.cursors.put(CursorRecord("orders", "c", at.next()), found.version) is not None:
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_up, range(40)))
    found = metadata.cursors.get("orders", "c")
    assert found is not None
    assert (found.cursor.next_position, found.version) == (Position(0, 40), 40)
    assert metadata.cursors.put(found.cursor, None) is None
    assert metadata.cursors.put(found.cursor, 39) is None


def test_the_slowest_is_the_first_position_that_anybody_needs(metadata: Metadata) -> None:
    assert metadata.cursors.slowest("orders") is None
    metadata.cursors.put(CursorRecord("orders", "c", Position(3, 0)), None)
    assert metadata.cursors.slowest("orders") == Position(3, 0)
    metadata.cursors.put(CursorRecord("orders", "d", Position(7, 0), Position(2, 5)), None)
    assert metadata.cursors.slowest("orders") == Position(2, 5), "a batch that may be repeated begins there"
    with pytest.raises(Refused, match="cursor 'C' of 'orders' differs from 'c' only in case"):
        metadata.cursors.put(CursorRecord("orders", "C", Position(0, 0)), None)
