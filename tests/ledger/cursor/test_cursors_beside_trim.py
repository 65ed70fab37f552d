"""Goal: a cursor that a call has placed can be read while retention deletes entries. Method: histories with seeds.

In each history one thread appends, rolls over and trims, and two threads make random calls of two cursors. Afterwards
each cursor reads exactly the backlog that it states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from random import Random

import pytest

from pyspark_ledger.ledger.cursor.cursors import CursorTable
from pyspark_ledger.ledger.errors import DataLoss, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.positions.position_info import decode_info
from pyspark_ledger.ledger.protocol.cursors import (
    DeleteCursor,
    DescribeCursor,
    MarkDelete,
    OpenCursor,
    ResetCursor,
    SkipEntries,
)
from pyspark_ledger.ledger.protocol.reads import OpenRead
from tests.rigs.cursors import given
from tests.rigs.log import LogRig

CALLS = 30
NAMES = ("a", "b")
LATEST_ENTRY = Position(3, 1)


class History:
    """Random calls on one log. `rig` has a log with a retention of nothing."""

    def __init__(self, rig: LogRig, seed: int) -> None:
        self.rig = rig
        self.seed = seed
        rig.append(*[b"x"] * 6, entries=2)
        rig.retain(0, 0)
        self.log: ManagedLedger = rig.store.ledger("log")

    def position(self, random: Random) -> Position:
        """Return any position of the log: a named one, or one that may be trimmed."""
        segment = random.randrange(self.log.highest_id + 1)
        return random.choice((EARLIEST, LATEST, self.log.snapshot.end, Position(segment, random.randrange(3))))

    def grow(self) -> None:
        random = Random(self.seed)
        for _ in range(CALLS):
            step = random.choice((self.log.trim, self.log.trim, self.log.roll_over, self.rig.store.upkeep.round, None))
            self.rig.append(b"x", entries=2) if step is None else step()

    def call(self, thread: int) -> None:
        """Call a cursor at random. The call refuses a position that is trimmed, or a cursor that does not exist."""
        random = Random(1000 * self.seed + thread)
        for _ in range(CALLS):
            calls = self.calls(random.choice(NAMES), self.position(random), random.randrange(3))
            # Only an open raises DataLoss, for a position that is trimmed.
            number = random.randrange(len(calls))
            with suppress(Refused, NotFound, *([] if number else [DataLoss])):
                calls[number]()

    def calls(self, name: str, at: Position, entries: int) -> list[Callable[[], object]]:
        cursors, end = self.rig.store.cursors, self.log.snapshot.end
        return [
            lambda: cursors.open(OpenCursor("log", name, at)),
            lambda: cursors.reset(ResetCursor("log", name, at)),
            lambda: cursors.mark_delete(MarkDelete("log", name, min(at, end))),
            lambda: cursors.mark_delete(MarkDelete("log", name, end)),
            lambda: cursors.acknowledge("log", name, given((at.ledger_id, at.entry_id))),
            lambda: cursors.skip(SkipEntries("log", name, entries, EARLIEST, end)),
            lambda: cursors.describe(DescribeCursor("log", name)),
            lambda: cursors.delete(DeleteCursor("log", name)),
        ]

    def require_readable(self) -> None:
        for name in self.rig.store.cursors.names("public/default/persistent/log"):
            state = self.rig.left_of(name)
            assert state.backlog_entries == unread(self.rig, self.log.snapshot, name), (self.seed, name, state)


def unread(rig: LogRig, snapshot: LogSnapshot, name: str) -> int:
    """Return the number of entries that a read of the cursor delivers."""
    range_, info = rig.store.cursors.left(snapshot, OpenRead("log", EARLIEST, cursor=name))
    skipped = decode_info(info, "").acknowledged if info else None
    return sum(
        skipped is None or not skipped.contains(Position(block.ledger_id, entry))
        for block in snapshot.blocks(range_, 10_000)
        for entry in range(block.first_entry, block.first_entry + block.entries)
    )


@pytest.mark.parametrize("seed", range(3))
def test_cursors_of_random_calls_beside_trims_are_readable(store_path: Path, seed: int) -> None:
    rig = LogRig(store_path)
    history = History(rig, seed)
    with ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(history.grow), *(threads.submit(history.call, number) for number in range(2))]
        for job in jobs:
            job.result()
    history.require_readable()
    rig.store.close()


def table_trimming_early(rig: LogRig) -> CursorTable:
    """Return the cursors of a log that is trimmed as soon as a call has seen the log."""
    log, seen = rig.store.ledger("log"), list[LogSnapshot]()

    def snapshot(_: str) -> LogSnapshot:
        seen.append(log.snapshot)
        if len(seen) == 1:
            log.trim()
        return seen[-1]

    acknowledgements = rig.store.acknowledgements
    return CursorTable(rig.store.metadata, lambda: rig.now, snapshot, acknowledgements, trimming=lambda _: log.trimming)


@pytest.fixture
def rig(store_path: Path) -> Iterator[LogRig]:
    rig = LogRig(store_path)
    rig.append(*[b"x"] * 7, entries=2)
    rig.retain(0, 0)
    yield rig
    rig.store.close()


@pytest.mark.parametrize(
    ("start", "left"), [(EARLIEST, 1), (LATEST, 0), (Position(1, 0), DataLoss), (Position(3, 0), 1)]
)
def test_a_cursor_that_a_trim_overtakes_is_readable_or_not_made(
    rig: LogRig, start: Position, left: int | type[LedgerError]
) -> None:
    cursors = table_trimming_early(rig)
    if not isinstance(left, int):
        with pytest.raises(left, match="were trimmed by its retention"):
            cursors.open(OpenCursor("log", "c", start))
        assert not cursors.exists(rig.store.ledger("log").name, "c")
        return
    made = cursors.open(OpenCursor("log", "c", start))
    assert made.backlog_entries == left == unread(rig, rig.store.ledger("log").snapshot, "c")


@pytest.mark.parametrize(
    ("target", "left"),
    [(EARLIEST, 1), (LATEST, 0), (Position(1, 0), None), (Position(3, 0), 1), (Position(9, 0), None)],
)
def test_a_reset_that_a_trim_overtakes_is_readable_or_refused(rig: LogRig, target: Position, left: int | None) -> None:
    before = rig.cursor("c", LATEST)
    cursors = table_trimming_early(rig)
    if left is None:
        with pytest.raises(Refused, match=r"'c' of .*(were trimmed by its retention|the log ends at)"):
            cursors.reset(ResetCursor("log", "c", target))
        assert rig.left_of("c").next_position == before.next_position
        return
    assert cursors.reset(ResetCursor("log", "c", target)).backlog_entries == left
    assert unread(rig, rig.store.ledger("log").snapshot, "c") == left


def test_acknowledging_trimmed_entries_leaves_a_cursor_readable(rig: LogRig) -> None:
    rig.store.ledger("log").trim()
    rig.cursor("c")
    rig.acknowledge("c", Position(1, 1))
    assert unread(rig, rig.store.ledger("log").snapshot, "c") == 1
    rig.acknowledge("c", LATEST_ENTRY)
    assert unread(rig, rig.store.ledger("log").snapshot, "c") == 0


def test_a_refused_reset_keeps_the_records_of_deliveries(rig: LogRig) -> None:
    rig.cursor("c")
    forgotten: list[str] = []
    cursors = CursorTable(
        rig.store.metadata,
        lambda: rig.now,
        rig.store.snapshot,
        rig.store.acknowledgements,
        forgetting=lambda _, cursor: nullcontext(forgotten.insert(0, cursor)),  # type: ignore[func-returns-value]
    )
    rig.acknowledge("c", LATEST_ENTRY)
    rig.store.ledger("log").trim()
    with pytest.raises(Refused, match="were trimmed by its retention"):
        cursors.reset(ResetCursor("log", "c", Position(0, 1)))
    assert not forgotten
