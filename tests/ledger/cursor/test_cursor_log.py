"""Goal: a cursor's ledger gives back the newest state that is whole, or says clearly why not; never a wrong set.
Method: truncation at every byte, every bit flipped, and random histories that are cut off between any two writes.
"""

from __future__ import annotations

import logging
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from pyspark_ledger.ledger.cursor.cursor_log import BLOCK_BYTES, CursorLog, CursorLogForm, recover_cursor_log
from pyspark_ledger.ledger.errors import Corrupt, LedgerError
from pyspark_ledger.ledger.message.compression import LZ4, NONE, ZSTD
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.position_chunks import encode_state
from pyspark_ledger.ledger.positions.position_info import encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.recovery import recover_segment
from pyspark_ledger.ledger.segment.writer import data_path, index_path
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits

STORE = "0123456789abcdef"


def form(*, entry_bytes: int = 1024, compression: int = NONE, deltas: int = 8, entries: int = 50_000) -> CursorLogForm:
    return CursorLogForm(entry_bytes, compression, deltas, entries)


def clock() -> int:
    return 1_700_000_000_000


def some(seed: int, count: int = 20_000, share: float = 0.5) -> PositionSet:
    made = PositionSet()
    made.add_entries(3, np.flatnonzero(np.random.default_rng(seed).random(count) < share))
    return made


def joined(*sets: PositionSet) -> PositionSet:
    made = PositionSet()
    for one in sets:
        made.update(one)
    return made


def create(folder: Path, shape: CursorLogForm | None = None) -> CursorLog:
    folder.mkdir(exist_ok=True)
    log = CursorLog.create(folder, 7, STORE, shape or form(), clock)
    log.mark_referenced()
    return log


def recovered(folder: Path) -> PositionSet:
    found = recover_cursor_log(folder, 7, STORE, fence=False)
    assert found is not None
    return found.acknowledged


@pytest.mark.parametrize("compression", [NONE, LZ4, ZSTD])
def test_a_state_in_chunks_comes_back(tmp_path: Path, compression: int) -> None:
    log = create(tmp_path, form(compression=compression))
    log.write_state(Position(3, -1), some(1))
    log.close()
    found = recover_cursor_log(tmp_path, 7, STORE)
    assert found is not None
    assert found.entries > 1
    assert found.acknowledged == some(1)
    assert found.mark_delete == Position(3, -1)


def test_deltas_are_added_to_the_state_they_name(tmp_path: Path) -> None:
    log = create(tmp_path, form(entry_bytes=8192))
    state = some(1, 100_000)
    whole = log.write_state(Position(3, -1), state)
    for seed in range(2, 6):
        added = some(seed, share=0.001)
        state.update(added)
        assert log.flush(Position(3, seed), state, added) < whole / 20
    log.close()
    found = recover_cursor_log(tmp_path, 7, STORE)
    assert found is not None
    assert (found.deltas, found.mark_delete) == (4, Position(3, 5))
    assert found.acknowledged == state


def test_replay_is_bounded_by_number_and_by_bytes(tmp_path: Path) -> None:
    log = create(tmp_path, form(deltas=3))
    state = some(1)
    whole = log.write_state(Position(3, -1), state)
    sizes = [log.flush(Position(3, -1), state, some(9, share=0.001)) for _ in range(4)]
    assert [size >= whole for size in sizes] == [False, False, False, True]
    large = some(5, 200_000)
    assert log.flush(Position(3, -1), large, large) >= whole
    log.close()


def test_without_deltas_every_flush_is_pip_381s(tmp_path: Path) -> None:
    log = create(tmp_path, form(deltas=0))
    whole = log.write_state(Position(3, -1), some(1))
    assert log.flush(Position(3, -1), some(1), some(2, share=0.001)) == whole
    log.close()
    parts = encode_state(encode_info(Position(3, -1), some(1)), entry_bytes=1024)
    assert len(parts) > 2
    assert payloads(tmp_path) == [*parts, *parts]


def payloads(folder: Path) -> list[bytes]:
    """Entries of a cursor's log, without their envelopes."""
    path = data_path(folder, 7)
    index = recover_segment(path, 7, store_id=STORE, block_bytes=BLOCK_BYTES, first_row=0, describe=entry_traits).index
    data = path.read_bytes()
    places = zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
    entries = [data[at + FRAME_BYTES : at + FRAME_BYTES + size] for at, size in places]
    return [bytes(parse_entry(entry, "an entry").payload) for entry in entries]


def test_a_ledger_without_a_state_is_none(tmp_path: Path) -> None:
    create(tmp_path).close()
    assert recover_cursor_log(tmp_path, 7, STORE) is None


def test_a_ledger_with_enough_entries_is_full(tmp_path: Path) -> None:
    log = create(tmp_path, form(entries=2))
    log.write_state(Position(3, -1), PositionSet())
    assert not log.is_full
    log.write_state(Position(3, -1), PositionSet())
    assert log.is_full
    log.close()


class Written:
    """A ledger of two whole states, the second in chunks, and where it ended after each."""

    def __init__(self, folder: Path) -> None:
        shape = form(deltas=4)
        log = create(folder, shape)
        self.states = [some(1, 300), joined(some(1, 300), some(2, 20_000, 0.3))]
        log.write_state(Position(3, -1), self.states[0])
        self.index = index_path(folder, 7).read_bytes()
        self.after_first = log._writer.end_offset
        log.write_state(Position(3, -1), self.states[1])
        added = some(3, 50_000, 0.002)
        self.states.append(joined(self.states[1], added))
        log.flush(Position(3, -1), self.states[2], added)
        self.end = log._writer.end_offset
        log.close()
        self.data = data_path(folder, 7).read_bytes()[: self.end]
        self.index_after = index_path(folder, 7).read_bytes()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("written"))


@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.fault)])
def test_truncated_anywhere_the_newest_whole_state_is_found(
    step: int, written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The sidecar knows of the first state only, as after a loss of power: what is beyond may be torn anywhere."""
    caplog.set_level(logging.CRITICAL)
    steps = {*range(written.after_first, written.end, step), written.end - 1, written.end}
    seen = set()
    for end in sorted(steps):
        data_path(tmp_path, 7).write_bytes(written.data[:end])
        index_path(tmp_path, 7).write_bytes(written.index)
        at = written.states.index(recovered(tmp_path))
        seen.add(at)
        assert at == 0 or end > written.after_first + 1000
    assert seen == {0, 1, 2}


def test_truncated_below_what_was_acknowledged_is_an_error(written: Written, tmp_path: Path) -> None:
    for end in (written.after_first - 5, written.after_first + 1, written.end - 1):
        data_path(tmp_path, 7).write_bytes(written.data[:end])
        index_path(tmp_path, 7).write_bytes(written.index_after)
        with pytest.raises(Corrupt, match=r"7\.ledger"):
            recover_cursor_log(tmp_path, 7, STORE)


def test_a_damaged_chunk_of_an_acknowledged_state_is_an_error(written: Written, tmp_path: Path) -> None:
    """An older whole state is there; to take it would forget what was answered as durable."""
    data = bytearray(written.data)
    data[written.after_first + 500] ^= 1
    data_path(tmp_path, 7).write_bytes(data)
    index_path(tmp_path, 7).write_bytes(written.index)
    assert recovered(tmp_path) == written.states[0]
    index_path(tmp_path, 7).write_bytes(written.index_after)
    with pytest.raises(Corrupt, match=r"7\.ledger entry 1 has CRC32C"):
        recover_cursor_log(tmp_path, 7, STORE)


def test_what_was_added_is_no_delta_when_it_is_too_long_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pyspark_ledger.ledger.cursor.cursor_log", "pyspark_ledger.ledger.positions.position_chunks"):
        monkeypatch.setattr(f"{module}.STATE_BYTES_MAX", 2000)
    log, every_other = create(tmp_path), PositionSet()
    log.write_state(Position(3, -1), some(1))
    every_other.add_entries(3, np.arange(0, 40_000, 2))
    log.flush(Position(3, -1), joined(some(1), every_other), every_other)
    log.close()
    assert recovered(tmp_path) == joined(some(1), every_other)


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.fault)])
def test_any_bit_flipped_is_the_same_an_older_state_or_an_error(
    step: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    source = tmp_path / "source"
    log = create(source)
    older, newer = some(1, 40), some(1, 60)
    log.write_state(Position(3, -1), older)
    index = index_path(source, 7).read_bytes()
    log.write_state(Position(3, -1), newer)
    end = log._writer.end_offset
    log.close()
    sound, sidecars = data_path(source, 7).read_bytes()[:end], (index, index_path(source, 7).read_bytes())
    errors = 0
    for bit in range(8 * 128, 8 * end, step):
        data = bytearray(sound)
        data[bit >> 3] ^= 1 << (bit & 7)
        data_path(tmp_path, 7).write_bytes(data)
        index_path(tmp_path, 7).write_bytes(sidecars[bit & 1])
        try:
            found = recover_cursor_log(tmp_path, 7, STORE)
        except LedgerError:
            errors += 1
            continue
        assert found is not None
        assert found.acknowledged in (older, newer)
        assert found.acknowledged == newer or not bit & 1, "the newer one was acknowledged"
    assert errors > end // step


@pytest.mark.parametrize("seed", range(8))
def test_a_history_cut_between_any_two_writes(seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The recovered set is a subset of the acknowledged one, and contains everything that a flush confirmed."""
    caplog.set_level(logging.CRITICAL)
    dice, folder = random.Random(seed), tmp_path / "log"
    log = create(folder, form(deltas=dice.choice([0, 2, 5]), compression=dice.choice([NONE, ZSTD])))
    state, confirmed = PositionSet(), PositionSet()
    for number in range(14):
        added = some(100 * seed + number, dice.choice([50, 4000, 30_000]), dice.choice([0.01, 0.5]))
        state.update(added)
        before, start = index_path(folder, 7).read_bytes(), log._writer.end_offset
        log.flush(Position(3, -1), state, None if number == 0 else added)
        copy = tmp_path / f"cut{number}"
        copy.mkdir()
        data = data_path(folder, 7).read_bytes()
        torn = dice.randrange(start, log._writer.end_offset + 1)
        data_path(copy, 7).write_bytes(data[:torn])
        index_path(copy, 7).write_bytes(before)
        found = recover_cursor_log(copy, 7, STORE)
        got = PositionSet() if found is None else found.acknowledged
        assert not confirmed.difference(got), "everything that was confirmed"
        assert not got.difference(state), "nothing that was not given"
        shutil.rmtree(copy)
        confirmed = state.copy()
        assert recovered(folder) == state
    log.close()
