"""Goal: no fault of broker or disk loses or invents an out-of-order acknowledgement. Method: crashes, closes and
failing writes on a real store, and random histories beside a plain set.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from pyspark_ledger.ledger.cursor import acknowledgements
from pyspark_ledger.ledger.cursor.acknowledgements import AcknowledgementTable
from pyspark_ledger.ledger.cursor.cursor_acknowledgements import Acknowledgements
from pyspark_ledger.ledger.cursor.cursor_log import CursorLog, CursorLogForm
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, Unavailable
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_info import decode_info
from pyspark_ledger.ledger.protocol.cursors import (
    AcquireLease,
    AskAckedRanges,
    DescribeCursor,
    NextDelivery,
    ResetCursor,
)
from pyspark_ledger.ledger.segment.writer import data_path, index_path
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.cursors import ROWS, CursorRig
from tests.rigs.log import NOW


def test_it_survives_a_crash_and_a_second_one(rig: CursorRig) -> None:
    for number in range(3):
        rig.ack((2, number), (3, 1, number))
        rig.crash()
    state = rig.state()
    assert (state.acknowledged_entries, state.partial_entries, state.backlog_rows) == (3, 1, 100 - 15 - 3)
    assert rig.ack((3, 1, 3), (3, 1, 4)).acknowledged_entries == 4


def crashed_before_the_metadata_knew(rig: CursorRig, monkeypatch: pytest.MonkeyPatch) -> Position:
    """The cursor's ledger holds a newer mark-delete than its record: the process died between the two."""
    rig.ack((2, 1, 0))

    def die(*_: object) -> None:
        raise Unavailable("killed")

    monkeypatch.setattr(AcknowledgementTable, "_at", die)
    with pytest.raises(Unavailable):
        rig.ack((0, 0), (0, 1), (0, 2), (2, 1))
    monkeypatch.undo()
    return Position(0, 3)


def test_the_first_state_after_a_crash_is_that_of_the_cursors_ledger(
    rig: CursorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = crashed_before_the_metadata_knew(rig, monkeypatch)
    rig.crash()
    first = rig.state()
    assert first == rig.state()
    assert (first.next_position, first.acknowledged_entries, first.backlog_rows) == (newer, 1, 100 - 15 - 5)


@pytest.mark.parametrize("ask", ["holes", "lease", "acknowledged", "deliver"])
def test_every_reader_of_a_state_sees_it_first(rig: CursorRig, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    newer = crashed_before_the_metadata_knew(rig, monkeypatch)
    rig.store.leases.acquire(AcquireLease("log", "c", "me", 10_000))
    rig.crash()
    cursors, log = rig.store.cursors, rig.store.ledger("log").name
    if ask == "holes":
        everything = PositionRange(Position(0, 0), Position(5, 0))
        holes = cursors.acked_ranges(AskAckedRanges("log", "c", everything, whole=True))
        assert decode_info(holes.info, "holes").mark_delete == Position(0, 2)
    elif ask == "lease":
        assert [place for _, place, _ in rig.store.leases.held(log)] == [newer]
        assert cursors.next_position(log, "c") == newer
    elif ask == "acknowledged":
        known = cursors.acknowledged("log", "c", Position(0, 0))
        assert known is not None
        assert known.entry_count() == 4
    else:
        request = NextDelivery("log", "c", 0, Position(0, 0), Position(1, 0), explicit=False)
        assert rig.store.deliveries.next(request).record == 1, "what was acknowledged is left out"


def test_a_store_that_is_only_read_shows_it_too(rig: CursorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = crashed_before_the_metadata_knew(rig, monkeypatch)
    store = open_read_only(rig.path).client
    state = store.ask(DescribeCursor("log", "c"))
    assert (state.next_position, state.backlog_rows) == (newer, 100 - 15 - 5)
    everything = PositionRange(Position(0, 0), Position(5, 0))
    holes = store.ask(AskAckedRanges("log", "c", everything, whole=True))
    assert decode_info(holes.info, "holes").mark_delete == Position(0, 2)


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


def limit(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(acknowledgements, name, value)


def test_a_clean_close_ends_a_large_set_with_a_whole_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, _METADATA_RANGES_MAX=1)
    rig = CursorRig(tmp_path / "s")
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


def test_a_cursors_ledger_rolls_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, _LOG_ENTRIES_MAX=2)
    rig = CursorRig(tmp_path / "s")
    ledgers = {rig.ack((3, number % 4), (2, number // 4)).cursor_ledger for number in (0, 1, 2, 3)}
    assert len(ledgers) == 2
    assert len(rig.cursor_files()) == 1
    rig.crash()
    assert rig.state().acknowledged_entries == 5
    rig.store.close()


def test_a_cursors_ledger_rolls_over_by_age(rig: CursorRig) -> None:
    first = rig.ack((3, 0)).cursor_ledger
    rig.now += acknowledgements.ROLLOVER_MS - 1
    assert rig.ack((3, 1)).cursor_ledger == first
    rig.now += 1
    assert rig.ack((3, 2)).cursor_ledger != first
    assert len(rig.cursor_files()) == 1
    rig.crash()
    assert rig.state().acknowledged_entries == 3


def test_a_timer_flushes_what_nobody_comes_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, _FLUSH_SECONDS=1)
    rig = CursorRig(tmp_path / "s", managedLedgerDefaultMarkDeleteRateLimit=1)
    rig.ack((1, 0))
    rig.ack((2, 0))
    rig.store.acknowledgements.start()
    held = rig.store.acknowledgements._acks["public/default/persistent/log", "c"]
    until = time.monotonic() + 60
    while held.is_dirty:
        assert time.monotonic() < until
        time.sleep(0.01)
    rig.crash()
    assert rig.state().acknowledged_entries == 2
    rig.store.close()


@pytest.mark.parametrize("compression", ["", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_a_state_is_compressed_as_the_setting_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    limit(monkeypatch, _METADATA_RANGES_MAX=0)
    rig = CursorRig(tmp_path / "s", cursorInfoCompressionType=compression)  # type: ignore[arg-type]  # a text
    rig.ack((3, 0), (2, 1), (1, 1, 1))
    before = rig.state()
    for again in (rig.crash, rig.reopen):
        again()
        assert (rig.state().acknowledged_entries, rig.state().backlog_rows) == (2, before.backlog_rows)
    (name,) = rig.cursor_files()
    assert (b"ledger.cursor.compression" in (rig.path / "ledgers" / name).read_bytes()) == bool(compression)
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
    held = rig.store.acknowledgements._acks["public/default/persistent/log", "c"]
    held._create_log(Position(0, -1))
    held._old_ledgers.clear()
    assert len(rig.cursor_files()) == 2
    rig.crash()
    assert len(rig.cursor_files()) == 1
    assert rig.state().acknowledged_entries == 1


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 60))])
def test_random_histories_with_crashes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    limit(
        monkeypatch,
        _DELTAS_PER_STATE=dice.choice([0, 3, 256]),
        _LOG_ENTRIES_MAX=dice.choice([3, 50_000]),
        _METADATA_RANGES_MAX=dice.choice([0, 1000]),
    )
    rig = CursorRig(tmp_path / "s")
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


def test_cursor_whose_ledger_has_no_state_is_an_error_and_not_empty(rig: CursorRig, tmp_path: Path) -> None:
    rig.ack((2, 0))
    (name,) = rig.cursor_files()
    number, store_id = int(name.removesuffix(".ledger")), rig.store.store_id
    CursorLog.create(tmp_path, number, store_id, CursorLogForm(1024, 0, 8, 50), lambda: NOW).close()
    rig.crash()
    for made in (data_path(tmp_path, number), index_path(tmp_path, number)):
        (rig.path / "ledgers" / made.name).write_bytes(made.read_bytes())
    with pytest.raises(Corrupt, match=f"its log {number} contains no whole state"):
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
        with pytest.raises(DataLoss, match=f"cursor 'c' of .*{name} is missing.*ledger cursor reset"):
            rig.state()
        rig.store.cursors.reset(ResetCursor("log", "c", Position(0, 0)))
        rig.ack((2, 0))
    assert rig.state().acknowledged_entries == 1
