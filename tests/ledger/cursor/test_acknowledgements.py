"""Goal: out-of-order acknowledgements are stored exactly, in any order. Method: Pulsar's cases one by one on a real
store.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions.acknowledge_request import ACKNOWLEDGE_SCHEMA
from pyspark_ledger.ledger.positions.position_info import decode_info
from pyspark_ledger.ledger.protocol.cursors import (
    AskAckedRanges,
    CursorProperties,
    DeleteCursor,
    ResetCursor,
    SkipEntries,
)
from tests.rigs.cursors import ROWS, CursorRig, given
from tests.rigs.entry import entry
from tests.rigs.positions import contains_row


def test_a_hole_stays_until_it_is_filled(rig: CursorRig) -> None:
    state = rig.ack((0, 2))
    assert (state.next_position, state.acknowledged_ranges, state.backlog_entries) == (Position(0, 0), 1, 19)
    assert rig.ack((0, 0)).next_position == Position(0, 1)
    state = rig.ack((0, 1))
    assert (state.next_position, state.acknowledged_ranges) == (Position(0, 3), 0)


def test_mark_delete_absorbs_over_ledgers(rig: CursorRig) -> None:
    rig.ack(*((1, number) for number in range(4)), (2, 0), (0, 3))
    assert rig.ack((0, 0), (0, 1), (0, 2)).next_position == Position(2, 1)


def test_a_mark_delete_absorbs_what_adjoins_it(rig: CursorRig) -> None:
    rig.ack((1, 0), (1, 1), (2, 3))
    rig.acknowledge("c", Position(0, 4))
    state = rig.state()
    assert (state.next_position, state.acknowledged_ranges) == (Position(1, 2), 1)


def test_rows_of_an_entry_are_acknowledged_one_by_one(rig: CursorRig) -> None:
    state = rig.ack((0, 0, 1), (0, 0, 3), (3, 1, 0))
    assert (state.partial_entries, state.backlog_rows, state.backlog_entries) == (2, 97, 20)
    state = rig.ack((0, 0, 0), (0, 0, 2), (0, 0, 4))
    assert (state.next_position, state.partial_entries) == (Position(0, 1), 1)


def test_the_whole_entry_goes_over_its_rows(rig: CursorRig) -> None:
    rig.ack((2, 1, 0))
    state = rig.ack((2, 1))
    assert (state.partial_entries, state.acknowledged_ranges) == (0, 1)
    assert rig.ack((2, 1, 0)).partial_entries == 0


def test_what_is_acknowledged_already_is_ignored_and_writes_nothing(rig: CursorRig) -> None:
    rig.ack((0, 2), (1, 1, 1))
    held = rig.store.acknowledgements._acks["public/default/persistent/log", "c"]
    assert held._log is not None
    size = held._log.size_bytes
    before = rig.state()
    assert rig.ack((0, 2), (1, 1, 1)) == before
    assert held._log.size_bytes == size


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ((4, 4), "4:4 is beyond the last entry"),
        ((0, 4), "0:4 is beyond the last entry"),
        ((0, -5), "0:-5 is beyond the last entry"),
        ((77, 0), "has no segment 77"),
        ((-1, 0), "has no segment -1"),
        ((0, 1, 5), "entry 0:1 .* has 5 rows"),
        ((0, 1, 64), "entry 0:1 .* has 5 rows"),
    ],
)
def test_what_is_not_in_the_log_is_refused_and_changes_nothing(
    rig: CursorRig, place: tuple[int, ...], said: str
) -> None:
    before = rig.ack((3, 3))
    with pytest.raises(Refused, match=said):
        rig.ack((0, 0), place, (1, 1))
    assert rig.state() == before


def test_acknowledging_a_trimmed_ledger_works_and_another_log_is_refused(rig: CursorRig) -> None:
    """Ids are store-wide: an id below the log's first segment may be a trimmed one of this log or of another."""
    other = rig.log("other", 4)
    for number in range(5):
        other.append([entry(b"y%d" % number, rows=ROWS)]).result()
    rig.cursor("d", other.snapshot.start, "other")
    first = other.snapshot.segments[0].ledger_id
    for wrong in ((0, 0), (first + 7, 0)):
        with pytest.raises(Refused, match=f"no segment {wrong[0]}"):
            rig.store.cursors.acknowledge("other", "d", given((first, 1), wrong))
    rig.acknowledge("c", Position(2, 0))
    rig.retain(0, 0)
    assert rig.store.ledger("log").trim().ledgers == [0, 1]
    assert rig.ack((0, 0), (1, 3, 2), (2, 1)).acknowledged_entries == 1
    with pytest.raises(Refused, match=f"no segment {first}"):
        rig.ack((first, 0))


def test_rows_that_are_no_words_are_refused(rig: CursorRig) -> None:
    wrong = pa.RecordBatch.from_pylist([{"ledger_id": 0, "entry_id": 0, "rows": b"\x01"}], schema=ACKNOWLEDGE_SCHEMA)
    with pytest.raises(Refused, match="not a multiple of 8 bytes"):
        rig.store.cursors.acknowledge("log", "c", [wrong])
    with pytest.raises(Refused, match="columns"):
        rig.store.cursors.acknowledge("log", "c", [pa.RecordBatch.from_pydict({"a": [1]})])


def test_entries_that_deliver_no_row_pass_by_themselves(rig: CursorRig) -> None:
    log = rig.log("empty", 4)
    for rows in (1, 0, 0, 1, 0, 1):
        metadata_rows = entry(b"x", rows=rows) if rows else entry(b"", rows=0)
        log.append([metadata_rows]).result()
    first = log.snapshot.segments[0].ledger_id
    rig.cursor("c", log.snapshot.start, "empty")
    state = rig.store.cursors.acknowledge("empty", "c", given((first, 0)))
    assert state.next_position == Position(first, 3)
    state = rig.store.cursors.acknowledge("empty", "c", given((first, 3)))
    assert (state.next_position, state.backlog_entries) == (Position(first + 1, 1), 1)


def test_a_reset_forgets_and_goes_backwards_too(rig: CursorRig) -> None:
    rig.ack((0, 0), (2, 1), (3, 1, 1))
    rig.store.cursors.reset(ResetCursor("log", "c", Position(0, 0)))
    state = rig.state()
    assert (state.next_position, state.acknowledged_entries, state.backlog_rows) == (Position(0, 0), 0, 100)
    assert rig.cursor_files() == set()
    rig.crash()
    assert rig.state() == state
    with pytest.raises(Refused, match="the log ends at"):
        rig.store.cursors.reset(ResetCursor("log", "c", Position(9, 9)))


def test_a_reset_that_is_refused_forgets_nothing(rig: CursorRig) -> None:
    before = rig.ack((2, 1))
    with pytest.raises(Refused, match="the log ends at"):
        rig.store.cursors.reset(ResetCursor("log", "c", Position(9, 9)))
    assert rig.state() == before


def test_deleted_cursors_and_ledgers_leave_no_file(rig: CursorRig) -> None:
    rig.ack((2, 1))
    rig.store.cursors.delete(DeleteCursor("log", "c"))
    assert rig.cursor_files() == set()
    rig.cursor("c", Position(0, 0))
    rig.ack((2, 1))
    rig.store.delete_ledger("log")
    assert rig.files() == set()


def test_skip_leaves_out_what_is_acknowledged(rig: CursorRig) -> None:
    rig.ack((0, 1), (0, 2))
    assert rig.skip(2).next_position == Position(0, 4)
    assert rig.skip(0).next_position == Position(0, 4)
    rig.ack((2, 0))
    assert rig.skip(4).next_position == Position(2, 1)


@pytest.mark.parametrize("entries", [3, -1])
def test_a_skip_whose_answer_was_lost_may_be_repeated(rig: CursorRig, entries: int) -> None:
    """Also when entries have come meanwhile, and what was acknowledged out of order is below the mark-delete now."""
    rig.ack((0, 1), (1, 1))
    request = SkipEntries("log", "c", entries, rig.state().next_position, rig.store.ledger("log").snapshot.end)
    once = rig.store.cursors.skip(request).next_position
    rig.store.ledger("log").append([entry(b"more", rows=ROWS)]).result()
    assert rig.store.cursors.skip(request).next_position == once


def test_clear_backlog_goes_to_the_end(rig: CursorRig) -> None:
    rig.ack((4, 1))
    state = rig.skip(-1)
    assert (state.next_position, state.backlog_rows, state.acknowledged_ranges) == (Position(4, 4), 0, 0)


def test_properties_stay_with_the_cursor(rig: CursorRig) -> None:
    change = CursorProperties("log", "c", {"team": "billing", "x": "y"})
    assert rig.store.cursors.change_properties(change).properties == {"team": "billing", "x": "y"}
    rig.ack((2, 1))
    rig.store.cursors.change_properties(CursorProperties("log", "c", {}, ["x"]))
    for _ in range(2):
        rig.crash()
        assert rig.state().properties == {"team": "billing"}
        assert rig.state().acknowledged_entries == 1
    rig.reopen()
    assert rig.state().properties == {"team": "billing"}


def test_holes_of_a_range_are_a_position_info(rig: CursorRig) -> None:
    asked = AskAckedRanges("log", "c", PositionRange(Position(1, 0), Position(2, 2)))
    assert rig.store.cursors.acked_ranges(asked).info == b""
    rig.ack((0, 2), (1, 0), (2, 1), (2, 3), (1, 3, 2))
    found = decode_info(rig.store.cursors.acked_ranges(asked).info, "it").acknowledged
    assert (found.entry_count(), found.batch_count()) == (2, 1)
    assert contains_row(found, Position(1, 3), 2)


def test_mark_delete_and_holes_are_of_one_moment(rig: CursorRig) -> None:
    """The caller has read the cursor before; the cursor may have moved before its set is read."""
    rig.ack((0, 1), (0, 2), (2, 1))
    table, snapshot = rig.store.acknowledgements, rig.store.ledger("log").snapshot
    before = rig.store.deliveries._cursor(snapshot.name, "c")
    rig.ack((0, 0))
    cursor, found = table.acked_ranges(before, PositionRange(EARLIEST, LATEST), snapshot)
    assert (before.next_position, cursor.next_position, found.entry_count()) == (Position(0, 0), Position(0, 3), 1)


def test_the_whole_of_a_cursor_has_its_mark_delete_without_holes_too(rig: CursorRig) -> None:
    asked = AskAckedRanges("log", "c", PositionRange(EARLIEST, LATEST), whole=True)
    for moved in ((), ((0, 0), (0, 1)), ((0, 3),)):
        rig.ack(*moved)
        said, state = decode_info(rig.store.cursors.acked_ranges(asked).info, "it"), rig.state()
        assert said.mark_delete.next() == state.next_position
        assert said.acknowledged.entry_count() == state.acknowledged_entries


def test_a_limit_refuses_and_drops_nothing(tmp_path: Path) -> None:
    rig = CursorRig(tmp_path / "s", managedLedgerMaxUnackedRangesToPersist=2)
    before = rig.ack((1, 0), (2, 0))
    with pytest.raises(Refused, match=r"would have 3 ranges.*allows 2"):
        rig.ack((3, 0))
    assert rig.state() == before
    rig.ack((1, 1))
    rig.store.close()


def test_acknowledgements_and_resets_at_once_leave_one_of_both(rig: CursorRig) -> None:
    places = [(ledger, number) for ledger in range(5) for number in range(4)]
    with ThreadPoolExecutor(6) as threads:
        for _ in range(5):
            work = [threads.submit(rig.ack, place) for place in places]
            work += [threads.submit(rig.store.cursors.reset, ResetCursor("log", "c", Position(0, 0))) for _ in range(3)]
            for one in work:
                one.result()
            state = rig.state()
            rig.crash()
            again = rig.state()
            assert (again.backlog_entries, again.next_position) == (state.backlog_entries, state.next_position)
    rig.ack(*places)
    assert rig.state().backlog_rows == 0
    assert len(rig.cursor_files()) <= 1


def test_a_reset_beside_the_first_acknowledgement_wins(rig: CursorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The acknowledgement begins while the reset stores the new position. It must not bring the old one back."""
    rig.acknowledge("c", Position(0, 2))
    cursors, read, stored = rig.store.cursors, Event(), Event()
    changed, advanced = cursors._changed, type(cursors.acknowledgements)._advanced
    acknowledged = list[Future[object]]()

    def change(*arguments: Any) -> Any:
        acknowledged.append(executor.submit(rig.ack, (0, 2)))
        read.wait(1)  # the acknowledgement has to wait for the reset, so this time passes
        found = changed(*arguments)
        stored.set()
        return found

    def advance(*arguments: Any) -> Position:
        found = advanced(*arguments)
        read.set()
        stored.wait(60)
        return found

    monkeypatch.setattr(cursors, "_changed", change)
    monkeypatch.setattr(type(cursors.acknowledgements), "_advanced", advance)
    with ThreadPoolExecutor(1) as executor:
        cursors.reset(ResetCursor("log", "c", EARLIEST))
        acknowledged[0].result(60)
    state = rig.state()
    assert (state.next_position, state.acknowledged_ranges, state.backlog_entries) == (Position(-1, 0), 1, 19)
