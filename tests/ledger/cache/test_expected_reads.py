"""Goal: no behaviour of Spark makes the expected reads wrong. Method: one test for each behaviour, then random steps
beside a model. The model keeps the plain set of unread entries for every reader.
"""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.range_cache import RangeCache
from pyspark_ledger.ledger.position import Position, PositionRange
from tests.rigs.cache import block
from tests.rigs.cache_invariants import check_readers

LATER = 10_000


def at(entry: int, ledger_id: int = 1) -> Position:
    return Position(ledger_id, entry)


def entries(first: int, end: int) -> PositionRange:
    return PositionRange(at(first), at(end))


def following(*names: str) -> LedgerReaders:
    readers = LedgerReaders()
    for name in names:
        readers.follow(name, at(0), LATER)
    return readers


def test_each_reader_before_an_entry_is_expected_to_read_it() -> None:
    readers = following("a", "b")
    readers.follow("ahead", at(50), LATER)
    assert [readers.expected(1, first, first + 10) for first in (0, 40, 45, 50)] == [2, 2, 3, 3]
    assert readers.expected(1, 0, 10, except_for="a") == 1
    assert readers.expected(1, 0, 10, except_for="nobody") == 2


def test_a_task_that_is_retried_settles_once() -> None:
    readers = following("a", "b")
    for _ in range(3):
        readers.served("a", 1, 0, 10)
    assert readers.expected(1, 0, 10) == 1


def test_a_speculative_copy_of_a_part_settles_its_part_only() -> None:
    readers = following("a")
    readers.served("a", 1, 0, 5)
    readers.served("a", 1, 0, 5)
    assert readers.expected(1, 0, 5) == 0
    assert readers.expected(1, 0, 10) == 1


def test_a_second_job_over_the_same_batch_changes_nothing() -> None:
    readers = following("a", "b")
    readers.served("a", 1, 0, 10)
    readers.commit("a", at(10))
    readers.served("a", 1, 0, 10)
    assert readers.expected(1, 0, 10) == 1
    assert readers.expected(1, 5, 15) == 2


def test_the_commit_settles_what_the_batch_did_not_ask_for() -> None:
    readers = following("a")
    readers.served("a", 1, 2, 4)
    readers.commit("a", at(8))
    assert (readers.expected(1, 0, 8), readers.expected(1, 0, 9)) == (0, 1)
    readers.commit("a", at(3))  # never back
    assert readers.expected(1, 0, 8) == 0


def test_a_cursor_that_is_reset_expects_everything_again() -> None:
    readers = following("a")
    readers.served("a", 1, 0, 10)
    readers.commit("a", at(10))
    readers.reset("a", at(4))
    assert (readers.expected(1, 0, 4), readers.expected(1, 0, 5)) == (0, 1)
    readers.reset("a", at(20))
    assert readers.expected(1, 0, 20) == 0


def test_what_is_queued_for_replay_is_expected_again_until_it_is_served() -> None:
    readers = following("a")
    readers.commit("a", at(10))
    readers.again("a", entries(3, 5))
    assert [readers.expected(1, first, first + 1) for first in (2, 3, 4, 5)] == [0, 1, 1, 0]
    readers.served("a", 1, 3, 4)
    assert [readers.expected(1, first, first + 1) for first in (3, 4)] == [0, 1]
    readers.commit("a", at(20))
    assert readers.expected(1, 0, 20) == 0


def test_what_was_served_and_not_acknowledged_is_expected_again() -> None:
    readers = following("a")
    readers.served("a", 1, 0, 10)
    readers.again("a", entries(3, 5))
    assert [readers.expected(1, first, first + 1) for first in (2, 3, 4, 5)] == [0, 1, 1, 0]


def test_a_query_that_died_is_expected_no_more() -> None:
    readers = following("a", "b")
    readers.keep("a", LATER + 5000)
    assert readers.left_ms is None
    assert readers.expire(LATER) == ["b"]
    assert (readers.expected(1, 0, 10), len(readers), "a" in readers) == (1, 1, True)
    readers.leave("a", LATER + 1)
    readers.served("a", 1, 0, 10)  # a task that has not heard of it
    assert (readers.expected(1, 0, 10), readers.left_ms, readers.names()) == (0, LATER + 1, [])


def test_a_reader_that_is_known_is_only_kept_and_committed() -> None:
    readers = following("a")
    readers.served("a", 1, 4, 6)
    readers.follow("a", at(2), LATER + 1)
    assert readers.place("a", acknowledged=True) == at(2)
    assert readers.expected(1, 4, 6) == 0
    assert readers.expire(LATER) == []


def test_next_read_of_a_reader_follows_what_it_was_served_without_a_gap() -> None:
    readers = following("a")
    readers.served("a", 1, 5, 9)
    assert readers.place("a") == at(0)
    readers.served("a", 1, 0, 5)
    assert readers.place("a") == at(9)
    readers.served("a", 2, 0, 3)
    assert readers.place("a") == at(3, 2)
    assert readers.place("a", acknowledged=True) == at(0)


def test_backlogs_are_counted_from_where_a_reader_reads_next() -> None:
    readers = LedgerReaders(end=lambda: at(100))
    readers.follow("a", at(10), LATER)
    readers.served("a", 1, 10, 30)
    assert readers.backlogs() == {"a": 70}


def test_a_span_asks_the_readers_of_its_ledger() -> None:
    readers = following("a", "b")
    (span,) = RangeCache("orders", readers).put(block(0, 10), 0)
    assert span.expected_reads() == 2
    readers.commit("b", at(10))
    assert span.expected_reads() == 1


NAMES = st.sampled_from(["a", "b", "c"])
STEP = st.tuples(
    st.sampled_from(["follow", "served", "commit", "reset", "again", "leave"]),
    NAMES, st.integers(1, 2), st.integers(0, 9), st.integers(1, 5),
)  # fmt: skip
ALL = [(ledger_id, entry) for ledger_id in (1, 2) for entry in range(15)]


class Model:
    """For every reader the entries that it has still to read, one by one."""

    def __init__(self) -> None:
        self.readers = LedgerReaders()
        self.left: dict[str, set[tuple[int, int]]] = {}
        self.done: dict[str, tuple[int, int]] = {}

    def follow(self, name: str, start: Position, end: Position) -> None:
        self.readers.follow(name, start, LATER)
        if name not in self.left:
            self._at(name, start)
        else:
            self._advance(name, start)

    def served(self, name: str, start: Position, end: Position) -> None:
        self.readers.served(name, start.ledger_id, start.entry_id, end.entry_id)
        self.left[name] -= self._between(start, end)

    def commit(self, name: str, start: Position, end: Position) -> None:
        self.readers.commit(name, start)
        self._advance(name, start)

    def reset(self, name: str, start: Position, end: Position) -> None:
        self.readers.reset(name, start)
        self._at(name, start)

    def again(self, name: str, start: Position, end: Position) -> None:
        self.readers.again(name, PositionRange(start, end))
        self.left[name] |= self._between(start, end)

    def leave(self, name: str, start: Position, end: Position) -> None:
        self.readers.leave(name, 0)
        del self.left[name], self.done[name]

    def check(self) -> None:
        check_readers(self.readers)
        for ledger_id in (1, 2):
            for start, end in ((0, 3), (3, 4), (2, 15)):
                wanted = {(ledger_id, entry) for entry in range(start, end)}
                expected = sum(bool(wanted & entries) for entries in self.left.values())
                assert self.readers.expected(ledger_id, start, end) == expected

    def _at(self, name: str, start: Position) -> None:
        self.done[name] = (start.ledger_id, start.entry_id)
        self.left[name] = {entry for entry in ALL if entry >= self.done[name]}

    def _advance(self, name: str, start: Position) -> None:
        if (start.ledger_id, start.entry_id) > self.done[name]:
            before = self.left[name]
            self._at(name, start)
            self.left[name] &= before

    @staticmethod
    def _between(start: Position, end: Position) -> set[tuple[int, int]]:
        return {(start.ledger_id, entry) for entry in range(start.entry_id, end.entry_id)}


@given(st.lists(STEP, max_size=40))
@example([("follow", "a", 1, 1, 1), ("served", "a", 1, 0, 2), ("again", "a", 1, 1, 1)])
def test_the_expected_reads_are_the_readers_whose_set_holds_an_entry(
    steps: list[tuple[str, str, int, int, int]],
) -> None:
    model = Model()
    for kind, name, ledger_id, first, length in steps:
        if kind == "follow" or name in model.left:
            getattr(model, kind)(name, Position(ledger_id, first), Position(ledger_id, first + length))
        model.check()
