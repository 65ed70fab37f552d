"""Goal: what is acknowledged out of order is neither lost nor made up. Method: Pulsar's cases one by one on a real
store, and random histories beside a plain set, with the broker killed between any two calls.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ledger.acknowledged_rows import ACKNOWLEDGE_SCHEMA, acknowledge_batch
from ledger.acknowledgements import Acknowledgements
from ledger.cursor_calls import AskHoles, CursorProperties, CursorState, NameCursor, ResetCursor, SkipEntries
from ledger.cursor_log import CursorLog, CursorLogForm
from ledger.errors import Corrupt, DataLoss, Refused, Unavailable
from ledger.position import EARLIEST, LATEST, Position, PositionRange
from ledger.position_info import decode_info
from ledger.segment_writer import data_path, index_path
from tests.ledger.log_rig import NOW, LogRig, entry

ROWS = 5


def given(*places: tuple[int, ...]) -> list[pa.RecordBatch]:
    """An acknowledgement of entries (ledger, entry) and of rows (ledger, entry, row)."""
    lines = np.array([(*place, -1)[:3] for place in places], dtype=np.int64).reshape(-1, 3)
    return [acknowledge_batch(*lines.T)]


class CursorRig(LogRig):
    """A log of ledgers of four entries of five rows each: 0:0 … 4:3, and a cursor at its beginning."""

    def __init__(self, path: Path, **settings: int) -> None:
        super().__init__(path, **settings)
        log = self.log(entries=4)
        for number in range(20):
            log.append([entry(b"x%d" % number, rows=ROWS)]).result()
        self.cursor("c", Position(0, 0))

    def ack(self, *places: tuple[int, ...]) -> CursorState:
        return self.store.cursors.acknowledge("log", "c", given(*places))

    def state(self) -> CursorState:
        return self.store.cursors.describe(NameCursor("log", "c"))

    def skip(self, entries: int) -> CursorState:
        seen = self.state().next_position, self.store.ledger("log").snapshot.end
        return self.store.cursors.skip(SkipEntries("log", "c", entries, *seen))

    def cursor_files(self) -> set[str]:
        listed = {f"{number}.ledger" for number in self.ids()}
        return {name for name in self.files() if name.endswith(".ledger")} - listed


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[CursorRig]:
    made = CursorRig(tmp_path / "store")
    yield made
    made.store.close()


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
    held = rig.store.acknowledgements._held["public/default/persistent/log", "c"]
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
        ((77, 0), "has no ledger 77"),
        ((-1, 0), "has no ledger -1"),
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


def test_a_ledger_that_was_trimmed_is_acknowledged_and_one_of_another_log_is_refused(rig: CursorRig) -> None:
    """Ids are store-wide: what lies below the log's first ledger may be its own, trimmed, or anybody's."""
    other = rig.log("other", 4)
    for number in range(5):
        other.append([entry(b"y%d" % number, rows=ROWS)]).result()
    rig.cursor("d", other.snapshot.start, "other")
    first = other.snapshot.segments[0].ledger_id
    for wrong in ((0, 0), (first + 7, 0)):
        with pytest.raises(Refused, match=f"no ledger {wrong[0]}"):
            rig.store.cursors.acknowledge("other", "d", given((first, 1), wrong))
    rig.acknowledge("c", Position(2, 0))
    rig.retain(0, 0)
    assert rig.store.ledger("log").trim().ledgers == [0, 1]
    assert rig.ack((0, 0), (1, 3, 2), (2, 1)).acknowledged_entries == 1
    with pytest.raises(Refused, match=f"no ledger {first}"):
        rig.ack((first, 0))


def test_rows_that_are_no_words_are_refused(rig: CursorRig) -> None:
    wrong = pa.RecordBatch.from_pylist([{"ledger_id": 0, "entry_id": 0, "rows": b"\x01"}], schema=ACKNOWLEDGE_SCHEMA)
    with pytest.raises(Refused, match="no words"):
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


def test_it_survives_a_crash_and_a_second_one(rig: CursorRig) -> None:
    for number in range(3):
        rig.ack((2, number), (3, 1, number))
        rig.crash()
    state = rig.state()
    assert (state.acknowledged_entries, state.partial_entries, state.backlog_rows) == (3, 1, 100 - 15 - 3)
    assert rig.ack((3, 1, 3), (3, 1, 4)).acknowledged_entries == 4


def test_a_clean_close_keeps_a_small_set_in_the_record(rig: CursorRig) -> None:
    rig.ack((2, 1), (3, 1, 1))
    before = rig.state()
    assert len(rig.cursor_files()) == 1
    rig.reopen()
    assert rig.cursor_files() == set()
    after = rig.state()
    assert (after.acknowledged_entries, after.partial_entries, after.backlog_rows) == (1, 1, before.backlog_rows)
    rig.reopen()
    assert rig.state() == after


def test_a_clean_close_ends_a_large_set_with_a_whole_state(tmp_path: Path) -> None:
    rig = CursorRig(tmp_path / "s", managedLedgerMaxUnackedRangesToPersistInMetadataStore=1)
    rig.ack((2, 1))
    rig.ack((3, 1))
    rig.ack((3, 3))
    rig.reopen()
    assert len(rig.cursor_files()) == 1
    assert rig.state().acknowledged_ranges == 3
    rig.ack((0, 0), (1, 3))
    assert len(rig.cursor_files()) == 1, "the old ledger is gone, the new one is named"
    rig.crash()
    assert rig.state().acknowledged_ranges == 4
    rig.store.close()


def test_a_cursors_ledger_rolls_over(tmp_path: Path) -> None:
    rig = CursorRig(tmp_path / "s", managedLedgerCursorMaxEntriesPerLedger=2)
    ledgers = {rig.ack((3, number % 4), (2, number // 4)).cursor_ledger for number in (0, 1, 2, 3)}
    assert len(ledgers) == 2
    assert len(rig.cursor_files()) == 1
    rig.crash()
    assert rig.state().acknowledged_entries == 5
    rig.store.close()


def test_a_cursors_ledger_rolls_over_by_age(tmp_path: Path) -> None:
    rig = CursorRig(tmp_path / "s", managedLedgerCursorRolloverTimeInSeconds=10)
    first = rig.ack((3, 0)).cursor_ledger
    rig.now += 9_999
    assert rig.ack((3, 1)).cursor_ledger == first
    rig.now += 1
    assert rig.ack((3, 2)).cursor_ledger != first
    assert len(rig.cursor_files()) == 1
    rig.crash()
    assert rig.state().acknowledged_entries == 3
    rig.store.close()


def test_a_timer_flushes_what_nobody_comes_back_to(tmp_path: Path) -> None:
    rig = CursorRig(
        tmp_path / "s", managedLedgerDefaultMarkDeleteRateLimit=1, managedLedgerCursorPositionFlushSeconds=1
    )
    rig.ack((1, 0))
    rig.ack((2, 0))
    rig.store.acknowledgements.start()
    held = rig.store.acknowledgements._held["public/default/persistent/log", "c"]
    until = time.monotonic() + 20
    while held.is_dirty:
        assert time.monotonic() < until
        time.sleep(0.01)
    rig.crash()
    assert rig.state().acknowledged_entries == 2
    rig.store.close()


@pytest.mark.parametrize("compression", ["", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_a_state_is_compressed_as_the_setting_says(tmp_path: Path, compression: str) -> None:
    settings = {"cursorInfoCompressionType": compression, "managedLedgerMaxUnackedRangesToPersistInMetadataStore": 0}
    rig = CursorRig(tmp_path / "s", **settings)  # type: ignore[arg-type]  # one of them is text
    rig.ack((3, 0), (2, 1), (1, 1, 1))
    before = rig.state()
    for again in (rig.crash, rig.reopen):
        again()
        assert (rig.state().acknowledged_entries, rig.state().backlog_rows) == (2, before.backlog_rows)
    (name,) = rig.cursor_files()
    assert (b"ledger.cursor.compression" in (rig.path / "ledgers" / name).read_bytes()) == bool(compression)
    rig.store.close()


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
    rig.store.cursors.delete(NameCursor("log", "c"))
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
    asked = AskHoles("log", "c", PositionRange(Position(1, 0), Position(2, 2)))
    assert rig.store.cursors.holes(asked).info == b""
    rig.ack((0, 2), (1, 0), (2, 1), (2, 3), (1, 3, 2))
    found = decode_info(rig.store.cursors.holes(asked).info, "it").acknowledged
    assert (found.entry_count(), found.batch_count()) == (2, 1)
    assert found.contains_row(Position(1, 3), 2)


def test_mark_delete_and_holes_are_of_one_moment(rig: CursorRig) -> None:
    """Whoever asks has seen the cursor before; by the time that its set is looked at the cursor may have moved."""
    rig.ack((0, 1), (0, 2), (2, 1))
    table, snapshot = rig.store.acknowledgements, rig.store.ledger("log").snapshot
    before = rig.store.deliveries._cursor(snapshot.name, "c")
    rig.ack((0, 0))
    cursor, found = table.holes(before, PositionRange(EARLIEST, LATEST), snapshot)
    assert (before.next_position, cursor.next_position, found.entry_count()) == (Position(0, 0), Position(0, 3), 1)


def test_the_whole_of_a_cursor_has_its_mark_delete_without_holes_too(rig: CursorRig) -> None:
    asked = AskHoles("log", "c", PositionRange(EARLIEST, LATEST), whole=True)
    for moved in ((), ((0, 0), (0, 1)), ((0, 3),)):
        rig.ack(*moved)
        said, state = decode_info(rig.store.cursors.holes(asked).info, "it"), rig.state()
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


def test_without_chunks_a_state_too_large_is_refused(tmp_path: Path) -> None:
    rig = CursorRig(
        tmp_path / "s", persistentUnackedRangesWithMultipleEntriesEnabled=0, persistentUnackedRangesMaxEntrySize=1024
    )
    log = rig.log("wide", 50_000)
    for _ in range(2):
        log.append([entry(b"x", rows=9000)]).result()
    first = log.snapshot.segments[0].ledger_id
    rig.cursor("c", log.snapshot.start, "wide")
    with pytest.raises(Refused, match="not cut into chunks"):
        rig.store.cursors.acknowledge("wide", "c", given(*((first, 1, row) for row in range(0, 9000, 2))))
    assert rig.store.cursors.describe(NameCursor("wide", "c")).partial_entries == 0
    rig.store.close()


def test_with_a_rate_only_what_was_not_flushed_comes_back(tmp_path: Path) -> None:
    rig = CursorRig(tmp_path / "s", managedLedgerDefaultMarkDeleteRateLimit=1)
    rig.now = NOW + 2000
    rig.ack((1, 0))
    rig.ack((2, 0))
    assert rig.state().acknowledged_entries == 2
    rig.crash()
    assert rig.state().acknowledged_entries == 1
    rig.ack((2, 0))
    rig.store.acknowledgements.flush()
    rig.crash()
    assert rig.state().acknowledged_entries == 2
    rig.ack((3, 0))
    rig.reopen()
    assert rig.state().acknowledged_entries == 3, "a clean close flushes"
    rig.store.close()


def test_a_file_that_a_crash_left_is_swept(rig: CursorRig) -> None:
    rig.ack((2, 1))
    held = rig.store.acknowledgements._held["public/default/persistent/log", "c"]
    held._begin(Position(0, -1))
    held._old.clear()
    assert len(rig.cursor_files()) == 2
    rig.crash()
    assert len(rig.cursor_files()) == 1
    assert rig.state().acknowledged_entries == 1


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 60))])
def test_random_histories_with_crashes(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    settings = {
        "cursorDeltasPerState": dice.choice([0, 3, 256]),
        "managedLedgerCursorMaxEntriesPerLedger": dice.choice([3, 50_000]),
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore": dice.choice([0, 1000]),
    }
    rig = CursorRig(tmp_path / "s", **settings)
    left = {(ledger, number, row) for ledger in range(5) for number in range(4) for row in range(ROWS)}
    for _ in range(40):
        kind = dice.choice(["rows", "rows", "entries", "crash", "close", "mark", "reset"])
        if kind in {"rows", "entries"}:
            places = [(dice.randrange(5), dice.randrange(4), dice.randrange(ROWS)) for _ in range(dice.randrange(9))]
            rig.ack(*(place if kind == "rows" else place[:2] for place in places))
            gone = {
                place
                for place in left
                if place in places or (kind == "entries" and place[:2] in {one[:2] for one in places})
            }
            left -= gone
        elif kind == "mark":
            to = (dice.randrange(5), dice.randrange(5))
            rig.acknowledge("c", Position(*to))
            left = {place for place in left if place[:2] >= to}
        elif kind == "reset" and dice.random() < 0.3:
            to = (dice.randrange(5), dice.randrange(4))
            rig.store.cursors.reset(ResetCursor("log", "c", Position(*to)))
            left = {(a, b, c) for a in range(5) for b in range(4) for c in range(ROWS) if (a, b) >= to}
        elif kind in {"crash", "close"}:
            rig.crash() if kind == "crash" else rig.reopen()
        state = rig.state()
        assert state.backlog_rows == len(left)
        assert state.backlog_entries == len({place[:2] for place in left})
        assert not left or state.next_position <= Position(*min(left)[:2])
    rig.store.close()


def test_what_could_not_be_written_is_not_answered_until_it_is(rig: CursorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.ack((2, 0))

    def fails(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Acknowledgements, "flush", fails)
        for _ in range(2):
            with pytest.raises(Unavailable, match="No space left"):
                rig.ack((0, 0), (3, 0))
        with pytest.raises(Unavailable, match="No space left"):
            rig.ack((0, 0))
    assert rig.ack((3, 0)).next_position == Position(0, 1)
    rig.crash()
    assert (rig.state().acknowledged_entries, rig.state().next_position) == (2, Position(0, 1))


def test_a_damaged_cursor_is_an_error_and_can_be_reset(rig: CursorRig) -> None:
    rig.ack((2, 0))
    (name,) = rig.cursor_files()
    path = rig.path / "ledgers" / name
    dead = rig.store
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    rig.crash()
    with pytest.raises(Corrupt, match=f"cursor 'c' of .*log': .*{name}.*ledger cursor reset"):
        rig.state()
    rig.store.cursors.reset(ResetCursor("log", "c", Position(1, 0)))
    assert rig.state().next_position == Position(1, 0)
    assert rig.cursor_files() == set()
    assert dead is not rig.store


def test_a_cursor_whose_ledger_holds_no_state_is_an_error_and_not_a_cursor_without_acknowledgements(
    rig: CursorRig, tmp_path: Path
) -> None:
    rig.ack((2, 0))
    (name,) = rig.cursor_files()
    number, store_id = int(name.removesuffix(".ledger")), rig.store.store_id
    CursorLog.create(tmp_path, number, store_id, CursorLogForm(1024, 0, 8, 50), lambda: NOW).close()
    rig.crash()
    for made in (data_path(tmp_path, number), index_path(tmp_path, number)):
        (rig.path / "ledgers" / made.name).write_bytes(made.read_bytes())
    with pytest.raises(Corrupt, match=f"its ledger {number} holds no whole state"):
        rig.state()
    rig.store.cursors.reset(ResetCursor("log", "c", Position(1, 0)))
    assert rig.ack((2, 0)).acknowledged_entries == 1


@pytest.mark.parametrize("gone", [(".ledger",), (".index",), (".ledger", ".index")])
def test_a_cursors_ledger_that_somebody_deleted(rig: CursorRig, gone: tuple[str, ...]) -> None:
    """Without the sidecar everything is read; without the file it is an error, and a reset helps."""
    rig.ack((2, 0))
    (name,) = rig.cursor_files()
    rig.crash()
    for suffix in gone:
        (rig.path / "ledgers" / name).with_suffix(suffix).unlink()
    if ".ledger" in gone:
        with pytest.raises(DataLoss, match=f"cursor 'c' of .*{name} is gone.*ledger cursor reset"):
            rig.state()
        rig.store.cursors.reset(ResetCursor("log", "c", Position(0, 0)))
        rig.ack((2, 0))
    assert rig.state().acknowledged_entries == 1


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
