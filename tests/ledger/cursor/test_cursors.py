"""Goal: no two changes of a cursor win on one version, what is answered is durable, a dead reader's lease is free.
Method: a real store, many threads, a process that really dies."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cursors import (
    AcquireLease,
    DeleteCursor,
    DescribeCursor,
    MarkDelete,
    OpenCursor,
    ResetCursor,
)
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.entry import entry
from tests.rigs.store import open_store


class Time:
    """A clock that is moved by hand."""

    now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def store(store_path: Path, clock: Time) -> Iterator[Store]:
    """A log of ten entries in ledgers of four: 0:0 to 2:1."""
    store = open_store(store_path, clock=clock)
    log = store.create_ledger(CreateLedger("log", block_bytes=4096, max_entries_per_ledger=4))
    for number in range(10):
        log.append([entry(b"x", sequence_id=number)]).result()
    yield store
    store.close()


@pytest.mark.parametrize(
    ("start", "at", "left"),
    [
        (EARLIEST, Position(-1, 0), 10),
        (LATEST, Position(2, 2), 0),
        (Position(1, 1), Position(1, 1), 5),
        (Position(0, 4), Position(0, 4), 6),
    ],
)
def test_a_cursor_opens_where_it_is_told_once(store: Store, start: Position, at: Position, left: int) -> None:
    made = store.cursors.open(OpenCursor("log", "c", start))
    assert (made.created, made.next_position, made.backlog_entries, made.backlog_rows) == (True, at, left, left)
    again = store.cursors.open(OpenCursor("log", "c", Position(1, 0)))
    assert (again.created, again.next_position) == (False, at)


def test_what_is_acknowledged_is_durable_and_monotone(store: Store, store_path: Path, clock: Time) -> None:
    store.cursors.open(OpenCursor("log", "c", EARLIEST))
    store.cursors.mark_delete(MarkDelete("log", "c", Position(1, 2), Position(1, 0)))
    assert store.cursors.mark_delete(MarkDelete("log", "c", Position(0, 1), Position(0, 0))) == Position(1, 2)
    back = store.cursors.describe(DescribeCursor("log", "c"))
    assert (back.next_position, back.replay_floor) == (Position(1, 2), Position(1, 0))
    with pytest.raises(Refused, match=r"cannot acknowledge up to 2:3: the log ends at 2:2"):
        store.cursors.mark_delete(MarkDelete("log", "c", Position(2, 3)))
    store.close()
    again = open_store(store_path, clock=clock)
    found = again.cursors.describe(DescribeCursor("log", "c"))
    assert (found.next_position, found.replay_floor, found.backlog_entries) == (Position(1, 2), Position(1, 0), 4)
    reset = again.cursors.reset(ResetCursor("log", "c", Position(0, 0)))
    assert (reset.next_position, reset.replay_floor, reset.backlog_entries) == (Position(0, 0), Position(0, 0), 10)
    again.close()


def test_a_cursor_that_is_not_there_is_named_with_the_nearest(store: Store) -> None:
    store.cursors.open(OpenCursor("log", "billing", EARLIEST))
    for call in (
        lambda: store.cursors.describe(DescribeCursor("log", "biling")),
        lambda: store.cursors.delete(DeleteCursor("log", "biling")),
        lambda: store.cursors.open(OpenCursor("log", "biling", EARLIEST, create=False)),
        lambda: store.cursors.mark_delete(MarkDelete("log", "biling", Position(0, 0))),
        lambda: store.leases.acquire(AcquireLease("log", "biling", "me", 10)),
    ):
        with pytest.raises(NotFound, match=r"no cursor 'biling'.*Did you mean 'billing'"):
            call()
    with pytest.raises(Refused, match="is not a valid name"):
        store.cursors.open(OpenCursor("log", "", EARLIEST))
    with pytest.raises(NotFound, match="no ledger 'nothing'"):
        store.cursors.open(OpenCursor("nothing", "c", EARLIEST))


def test_concurrent_cursors_are_created_once_and_keep_the_furthest_mark(store: Store) -> None:
    with ThreadPoolExecutor(8) as executor:
        made = list(executor.map(lambda _: store.cursors.open(OpenCursor("log", "c", EARLIEST)), range(16)))
        assert sum(state.created for state in made) == 1
        places = [Position(ledger, entry) for ledger in (0, 1, 2) for entry in range(3)][:8] * 4
        list(executor.map(lambda place: store.cursors.mark_delete(MarkDelete("log", "c", place)), places))
    assert store.cursors.describe(DescribeCursor("log", "c")).next_position == max(places)


@pytest.mark.parametrize("place", [Position(2**63, 0), Position(0, 2**63 + 1), Position(-(2**63) - 1, 0)])
def test_numbers_that_no_record_holds_are_refused(store: Store, place: Position) -> None:
    store.cursors.open(OpenCursor("log", "c", EARLIEST))
    with pytest.raises((LedgerError, ValueError, OverflowError)):
        store.cursors.reset(ResetCursor("log", "c", place))
    assert store.cursors.describe(DescribeCursor("log", "c")).next_position == Position(-1, 0)
