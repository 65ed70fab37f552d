"""Goal: a message in several chunks is acknowledged with its last chunk, as a whole. Method: a real store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions.position_info import decode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.cursors import AskAckedRanges, CursorState
from tests.rigs.cursors import given
from tests.rigs.entry import chunk, entry
from tests.rigs.log import LogRig


class ChunkRig(LogRig):
    """Log with three chunks of A around a chunk of B, the last chunk of B, and two small messages. `c` is at its start.

    0:0 first of A · 0:1 first of B · 0:2 second of A · 0:3 last of A · 0:4 last of B · 1:0 x · 1:1 y
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        log = self.log(entries=5)
        for stored in (
            chunk(b"a", 0, 3, "A", 3),
            chunk(b"b", 0, 2, "B", 2, "q"),
            chunk(b"a", 1, 3, "A", 3),
            chunk(b"a", 2, 3, "A", 3),
            chunk(b"b", 1, 2, "B", 2, "q"),
            entry(b"x"),
            entry(b"y"),
        ):
            log.append([stored]).result()
        self.cursor("c", Position(0, 0))

    def ack(self, *places: tuple[int, int]) -> CursorState:
        return self.store.cursors.acknowledge("log", "c", given(*places))

    def exported(self) -> set[Position]:
        asked = AskAckedRanges("log", "c", PositionRange(EARLIEST, LATEST), whole=True)
        acked = decode_info(self.store.cursors.acked_ranges(asked).info, "").acknowledged
        return {
            Position(runs.ledger_id, number)
            for runs in acked.runs()
            for start, end in zip(runs.starts, runs.ends, strict=True)
            for number in range(int(start), int(end))
        }

    def store_chunks_as_before(self, *places: Position) -> None:
        """Store the acknowledgements of single chunks, as earlier versions did."""
        snapshot = self.store.ledger("log").snapshot
        stored = self.store.metadata.cursors.get(snapshot.name, "c")
        assert stored is not None
        acks = self.store.acknowledgements.of(stored.cursor, snapshot)
        positions = PositionSet()
        for place in places:
            positions.add_run(place.ledger_id, place.entry_id, place.entry_id + 1)
        acks.add(positions)
        acks.flush(stored.cursor.next_position)
        self.store.metadata.cursors.put(stored.cursor.in_ledger(acks.ledger_id), stored.version)


@pytest.fixture
def rig(store_path: Path) -> Iterator[ChunkRig]:
    rig = ChunkRig(store_path)
    yield rig
    rig.store.close()


def test_a_chunk_that_is_not_the_last_counts_for_nothing(rig: ChunkRig, caplog: pytest.LogCaptureFixture) -> None:
    before = rig.left_of("c")
    with caplog.at_level(logging.WARNING):
        assert rig.ack((0, 0), (0, 2)) == before
        assert rig.ack((0, 1)) == before
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "the acknowledgement of 0:0 has no effect, because this entry has no row" in warning
    assert not rig.exported()


def test_the_last_chunk_acknowledges_the_message(rig: ChunkRig) -> None:
    assert rig.ack((0, 3)).next_position == Position(0, 1), "B begins between the chunks of A"
    assert rig.left_of("c").backlog_rows == 3
    assert rig.ack((0, 4)).next_position == Position(0, 5)
    assert rig.ack((1, 0), (1, 1)).backlog_rows == 0
    rig.store.ledger("log").roll_over()
    rig.retain(0, 0)
    assert rig.store.ledger("log").trim().ledgers == [0, 1]


def test_an_export_has_every_chunk_of_an_acknowledged_message(rig: ChunkRig) -> None:
    rig.ack((0, 4), (1, 1))
    assert rig.left_of("c").next_position == Position(0, 0)
    assert rig.exported() == {Position(0, 1), Position(0, 4), Position(1, 1)}
    rig.ack((0, 3))
    assert rig.exported() == {Position(1, 1)}


def test_a_position_between_chunks_acknowledges_no_part_of_a_message(rig: ChunkRig) -> None:
    rig.acknowledge("c", Position(0, 3))
    assert (rig.left_of("c").next_position, rig.exported()) == (Position(0, 0), set())
    rig.acknowledge("c", Position(0, 4))
    assert (rig.left_of("c").next_position, rig.exported()) == (Position(0, 1), set()), "B ends at 0:4"
    rig.acknowledge("c", Position(0, 5))
    assert rig.left_of("c").next_position == Position(0, 5)


@pytest.mark.parametrize("is_closed", [True, False])
def test_chunks_that_an_earlier_version_acknowledged_are_left_out(rig: ChunkRig, is_closed: bool) -> None:
    before = rig.left_of("c")
    rig.store_chunks_as_before(Position(0, 0), Position(0, 2), Position(1, 1))
    dead = None if is_closed else rig.crash()
    if is_closed:
        rig.reopen()
    assert rig.exported() == {Position(1, 1)}
    state = rig.left_of("c")
    assert (state.next_position, state.backlog_rows) == (Position(0, 0), before.backlog_rows - 1)
    assert rig.ack((0, 3), (0, 4), (1, 0)).backlog_rows == 0
    if dead is not None:
        dead.close()
