"""Goal: the cost of a change depends on the change, not on the length of a list. Method: count the records that SQLite
changes and reads, and the bytes that it checksums, at few and at many segments and cursors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import pytest

from pyspark_ledger.ledger.database.record_tables import record_sum
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment, LogSegments
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord, CursorRecords, slowest_of
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecords
from pyspark_ledger.ledger.position import LATEST, Position
from tests.rigs.log import LogRig, rig

__all__ = ["rig"]
NAME = "public/default/persistent/log"


class Cost(NamedTuple):
    """Records changed, records read, bytes under checksums."""

    changed: int
    read: int
    size: int


def cost(metadata: Metadata, work: Callable[[], object]) -> Cost:
    """Return the cost of some work for the writing connection."""
    writer, read, size = metadata._file._writer, 0, 0

    def checked(stated: int, *_: object) -> int:
        nonlocal read
        read += 1
        return stated

    def summed(*record: object) -> int:
        nonlocal size
        size += sum(len(value) for value in record if isinstance(value, bytes))
        return record_sum(*record)

    writer.create_function("checked", -1, checked, deterministic=True)
    writer.create_function("record_sum", -1, summed, deterministic=True)
    before = writer.total_changes
    work()
    return Cost(writer.total_changes - before, read, size)


def test_a_rollover_costs_the_same_however_long_the_list_is(rig: LogRig) -> None:
    rig.append(b"first", entries=1)
    found = []
    for segments in (4, 60):
        while len(rig.ids()) < segments:
            rig.append(b"one", entries=1)
        found.append(cost(rig.store.metadata, lambda: rig.append(b"one", entries=1)))
    assert found[0] == found[1]
    assert found[0].changed < 40, found


def test_a_trim_looks_at_what_goes_and_at_the_first_that_stays(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    visits = list[int]()

    def walk(segments: LogSegments) -> Iterator[LogSegment]:
        for at in range(len(segments)):
            visits.append(at)
            yield segments[at]

    positions = rig.append(*[b"one"] * 40, entries=1)
    rig.cursor("slow")
    rig.retain(0, 0)
    found = []
    for at in (1, 2):
        rig.acknowledge("slow", positions[at])
        monkeypatch.setattr(LogSegments, "__iter__", walk)
        found.append(cost(rig.store.metadata, lambda: rig.store.ledger("log").trim()))
        monkeypatch.undo()
        assert rig.ids()[0] == positions[at].ledger_id
    assert found[0] == found[1]
    assert set(visits) == {0, 1}


def test_a_seal_asks_only_for_what_may_go(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = rig.append(*[b"one"] * 5, entries=1)
    log = rig.store.ledger("log")
    rig.cursor("slow", positions[1])
    assert not log.may_trim(), "no policy is set"
    rig.retain(0, 0)
    assert log.may_trim()
    assert log.trim().ledgers == [positions[0].ledger_id]
    assert not log.may_trim()
    monkeypatch.setattr(SegmentRecords, "of", None)  # nobody reads the whole list
    rig.acknowledge("slow", positions[2])
    rig.store.upkeep._maintain_open(log.name)
    assert rig.ids()[0] == positions[2].ledger_id


def test_a_writer_is_told_of_a_ledger_without_its_lists(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.append(*[b"one"] * 3, entries=1)
    rig.cursor("slow")
    whole = rig.store.describe("log")
    assert (len(whole.segments), whole.cursors) == (3, ["slow"])
    monkeypatch.setattr(CursorRecords, "names", None)
    found = rig.store.describe("log", lists=False)
    assert found == msgspec.structs.replace(whole, segments=[], cursors=[])
    assert found.segment_count == 3


def test_a_cursor_is_made_and_the_slowest_found_without_the_others(rig: LogRig) -> None:
    rig.append(b"one", b"two")
    rig.cursor("slow")
    metadata, found = rig.store.metadata, []
    for cursors in (4, 80):
        for number in range(cursors):
            rig.cursor(f"cursor-{number}", LATEST)
        new = CursorRecord(NAME, f"new-{cursors}", Position(0, 2))
        found.append(
            [
                cost(metadata, lambda new=new: metadata.cursors.put(new, None)),  # type: ignore[misc]
                cost(metadata, lambda: metadata._file.change(lambda c: slowest_of(c, NAME))),
            ]
        )
    assert found[0] == found[1]
    assert found[0][1].read <= 2, "the store's record, and that of the slowest"
    assert metadata.cursors.slowest(NAME) == Position(-1, 0)


def test_the_slowest_cursor_goes_by_its_replay_floor_and_by_each_change(rig: LogRig) -> None:
    rig.append(b"one", b"two", b"three")
    cursors = rig.store.metadata.cursors
    for name in ("a", "b"):
        rig.cursor(name)
    rig.acknowledge("a", Position(0, 3), floor=Position(0, 1))
    assert cursors.slowest(NAME) == Position(-1, 0)
    rig.acknowledge("b", Position(0, 2))
    assert cursors.slowest(NAME) == Position(0, 1), "the floor of a"
    rig.acknowledge("a", Position(0, 3), floor=Position(0, 3))
    assert cursors.slowest(NAME) == Position(0, 2)
    cursors.delete(NAME, "b")
    assert cursors.slowest(NAME) == Position(0, 3)
    cursors.delete(NAME, "a")
    assert cursors.slowest(NAME) is None


def test_a_sealed_segment_knows_its_entries_with_rows(rig: LogRig) -> None:
    rig.append(b"one", b"two", b"three", b"four")
    sealed = rig.store.ledger("log").snapshot.segments[0]
    (row, _) = rig.store.metadata.segments.of(NAME)
    assert (row.row_entries, sealed.row_entries) == (3, 3)
    rig.reopen()
    reopened = rig.store.ledger("log").snapshot.segments[0]
    assert (reopened.row_entries, reopened.stored_bytes) == (3, sealed.stored_bytes)
    index = reopened.index()
    assert reopened.stored_bytes == index.end_offset(2) - int(index.offsets[0])
