"""Goal: no cursor and no trim passes the first chunk of an unfinished message. Method: a real store."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pyspark_ledger.ledger.log.unfinished_chunks import GIVEN_UP_MS, ChunkRanges
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from tests.rigs import entry as entries
from tests.rigs.log import MINUTE, LogRig

AT_ONCE = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


def chunk(producer: str, uuid: str, number: int, count: int) -> bytes:
    return entries.chunk(b"c", number, count, uuid, count, producer)


def put(rig: LogRig, *entries: bytes) -> list[Position]:
    log = rig.log()
    return [log.append([entry]).result() for entry in entries]


def test_cursor_stops_before_an_unfinished_chunked_message(rig: LogRig) -> None:
    rig.append(b"a")
    first, *_ = put(rig, chunk("p", "m-1", 0, 3), chunk("q", "m-2", 0, 2), chunk("p", "m-1", 1, 3))
    *_, end = rig.append(b"named m-1 in its payload", b"b")
    rig.cursor("c")
    rig.acknowledge("c", end)
    assert rig.left_of("c").next_position == first
    last_of_q, last_of_p = put(rig, chunk("q", "m-2", 1, 2), chunk("p", "m-1", 2, 3))
    rig.acknowledge("c", last_of_p)
    assert rig.left_of("c").next_position == first, "its last chunk is not acknowledged yet"
    rig.acknowledge("c", last_of_p.next())
    assert rig.left_of("c").next_position == last_of_p.next()
    assert last_of_q < last_of_p


def test_acknowledging_entry_by_entry_stops_there_too(rig: LogRig) -> None:
    before, *_ = rig.append(b"a")
    first, *_ = put(rig, chunk("p", "m-1", 0, 2))
    after, *_ = rig.append(b"b")
    rig.cursor("c")

    def acknowledge(*positions: Position) -> Position:
        ledgers = np.array([position.ledger_id for position in positions])
        entries = np.array([position.entry_id for position in positions])
        given = acknowledge_batch(ledgers, entries, np.full(len(positions), -1))
        return rig.store.cursors.acknowledge("log", "c", [given]).next_position

    assert acknowledge(before, after) == first
    last, *_ = put(rig, chunk("p", "m-1", 1, 2))
    rig.acknowledge("c", last)
    assert rig.left_of("c").next_position == first
    assert acknowledge(last) == last.next()


def test_a_message_is_given_up_with_its_producer_or_with_time(rig: LogRig) -> None:
    lost, *_ = put(rig, chunk("p", "m-1", 0, 3), chunk("p", "m-2", 0, 2), chunk("p", "m-2", 1, 2))
    end = rig.store.ledger("log").snapshot.end
    rig.cursor("c")
    rig.acknowledge("c", end)
    assert rig.left_of("c").next_position == end > lost
    begun, *_ = put(rig, chunk("q", "m-3", 0, 2))
    rig.append(b"x")
    end = rig.store.ledger("log").snapshot.end
    rig.acknowledge("c", end)
    assert rig.left_of("c").next_position == begun
    rig.now += GIVEN_UP_MS + 1
    rig.acknowledge("c", end)
    assert rig.left_of("c").next_position == end


def test_nothing_is_trimmed_from_the_first_chunk_on(rig: LogRig) -> None:
    rig.append(b"a", b"b", b"c")
    first, *_ = put(rig, chunk("p", "m-1", 0, 2))
    rig.append(*[b"x"] * 8)
    rig.policy(**AT_ONCE)
    rig.now += MINUTE
    assert rig.store.ledger("log").trim().ledgers == [0]
    rig.reopen()
    rig.now += MINUTE
    assert rig.store.ledger("log").trim().ledgers == []
    assert rig.ids()[0] == first.ledger_id
    put(rig, chunk("p", "m-1", 1, 2))
    rig.append(b"y", b"y", b"y")
    rig.now += MINUTE
    assert rig.store.ledger("log").trim().ledgers[0] == first.ledger_id


@pytest.mark.thorough
def test_the_floor_is_that_of_all_chunks_read_one_by_one(rig: LogRig) -> None:
    dice, spans = random.Random(7), ChunkRanges()
    state: dict[str, tuple[str, int, int]] = {}
    done: list[tuple[Position, Position]] = []
    begun: dict[str, Position] = {}
    for number in range(300):
        producer = f"p{dice.randrange(4)}"
        if dice.random() < 0.5:
            rig.append(f"m{dice.randrange(number + 1)}".encode())
        else:
            uuid, chunk_id, count = state.pop(producer, (f"m{number}", 0, dice.randrange(2, 5)))
            (position,) = put(rig, chunk(producer, uuid, chunk_id, count))
            if chunk_id == 0:
                begun[producer] = position
            if chunk_id < count - 1:
                state[producer] = (uuid, chunk_id + 1, count)
            else:
                done.append((begun.pop(producer), position))
        if number % 7 == 0:
            snapshot = rig.store.ledger("log").snapshot
            for part in snapshot.split(PositionRange(EARLIEST, snapshot.end), 1, 1000)[:: dice.randrange(1, 9)]:
                place = part.range.end
                inside = [first for first, last in done if first < place <= last]
                inside += [first for first in begun.values() if first < place]
                assert spans.floor(snapshot, place, rig.now) == min([place, *inside])


def test_a_log_of_rows_is_not_looked_through(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.append(*[b"x"] * 10)
    monkeypatch.setattr(ChunkRanges, "_parse_chunk", lambda *_: pytest.fail("an entry was parsed"))
    end = rig.store.ledger("log").snapshot.end
    rig.cursor("c")
    rig.acknowledge("c", end)
    assert rig.left_of("c").next_position == end
