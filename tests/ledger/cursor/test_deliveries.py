"""Goal: unacknowledged rows are redelivered, each with its count, after any crash. Method: a real store whose clock is
moved by hand; each decision is turned into rows and compared with a plain model.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pyspark_ledger.ledger.cursor.redelivery import skipped_rows
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.ledger.log.remaining import measure_left
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.positions.position_chunks import ENTRY_BYTES_MAX
from pyspark_ledger.ledger.protocol.cursors import (
    AckDeadLetters,
    AskDelivery,
    DecidedDelivery,
    NextDelivery,
    OpenCursor,
    ResetCursor,
)
from tests.rigs.deliveries import ROWS, TIMEOUT, DeliveryRig, Row, all_rows
from tests.rigs.entry import entry


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DeliveryRig]:
    made = DeliveryRig(tmp_path / "store")
    yield made
    made.store.close()


def test_rows_come_back_after_their_timeout_with_a_count(rig: DeliveryRig) -> None:
    assert rig.take() == Counter({(row, 0): 1 for row in all_rows()})
    assert rig.take() == Counter()
    rig.ack(*(row for row in all_rows() if row != (2, 1, 3)))
    rig.now += TIMEOUT - 1
    assert rig.take() == Counter()
    rig.now += 1
    assert rig.take() == Counter({((2, 1, 3), 1): 1})
    rig.now += TIMEOUT
    assert rig.take() == Counter({((2, 1, 3), 2): 1})
    rig.ack((2, 1, 3))
    rig.now += TIMEOUT
    assert rig.take() == Counter()
    assert rig.backlog() == 0


def test_given_back_rows_come_at_once_and_alone(rig: DeliveryRig) -> None:
    rig.take(Position(1, 0))
    rig.nack((0, 1, 1), (0, 3, 4))
    assert rig.take(Position(1, 0)) == Counter({((0, 1, 1), 1): 1, ((0, 3, 4), 1): 1})
    assert rig.take(Position(1, 0)) == Counter()
    rig.now += TIMEOUT
    again = rig.take(Position(1, 0))
    assert again[(0, 1, 1), 2] == again[(0, 0, 0), 1] == 1
    assert sum(again.values()) == 20


def test_what_comes_back_keeps_to_its_allowance_and_all_of_it_comes(rig: DeliveryRig) -> None:
    rig.take()
    rig.ack((0, 0, 0), (0, 1, 4), *((1, number, row) for number in range(4) for row in range(ROWS)))
    rig.now += TIMEOUT
    left = 100 - 2 - 20
    found: Counter[tuple[Row, int]] = Counter()
    for batch in range(20):
        assert rig.due().rows == left
        came = rig.take(back=12)
        assert 8 <= sum(came.values()) <= 12 or sum(came.values()) == left
        found += came
        left -= sum(came.values())
        if not left:
            break
        assert batch < 10
    assert found == Counter({(row, 1): 1 for row in all_rows() if row not in {(0, 0, 0), (0, 1, 4)} and row[0] != 1})
    assert rig.take(back=12) == Counter()
    rig.now += TIMEOUT
    assert rig.due().rows == 78


def test_an_entry_above_the_allowance_comes_back_alone(rig: DeliveryRig) -> None:
    rig.take(Position(1, 0))
    rig.now += TIMEOUT
    due = rig.due()
    assert (due.rows, due.head_rows) == (20, ROWS)
    assert due.size_bytes == 4 * due.head_bytes
    for number in range(4):
        assert rig.take(Position(1, 0), back=2) == Counter({((0, number, row), 1): 1 for row in range(ROWS)})
    assert rig.take(Position(1, 0), back=2) == Counter()


def test_what_was_given_back_and_found_no_room_comes_next(rig: DeliveryRig) -> None:
    rig.take(Position(1, 0))
    rig.nack((0, 0, 3), (0, 2, 1), (0, 3, 3))
    assert rig.due().rows == 3
    found = [rig.take(Position(1, 0), back=1) for _ in range(4)]
    assert found == [*(Counter({(row, 1): 1}) for row in ((0, 0, 3), (0, 2, 1), (0, 3, 3))), Counter()]


def test_what_was_given_back_is_in_the_batch_however_often_it_is_decided(rig: DeliveryRig) -> None:
    """Spark's driver may die before it has written down the batch, and a call whose answer was lost is repeated."""
    rig.take(Position(1, 0))
    rig.nack((0, 1, 1))
    assert rig.rows(rig.next(Position(1, 0)).record) == Counter({((0, 1, 1), 1): 1})
    rig.nack((0, 2, 2))
    assert rig.due().rows == 2
    assert rig.take(Position(1, 0)) == Counter({((0, 1, 1), 1): 1, ((0, 2, 2), 1): 1})
    assert rig.take(Position(1, 0)) == Counter()


def test_dead_letters_take_no_room(rig: DeliveryRig) -> None:
    rig.take(Position(2, 0), most=0)
    rig.now += TIMEOUT
    rig.take(Position(2, 0), most=0, back=1)
    assert sum(rig.rows(-1).values()) == 40


def test_what_is_not_outstanding_is_not_given_back(rig: DeliveryRig) -> None:
    rig.take(Position(1, 0))
    rig.ack((0, 0, 0))
    rig.nack((0, 0, 0), (3, 0, 0))
    assert rig.take(Position(1, 0)) == Counter()


def test_a_cursor_that_is_not_read_explicitly_gives_nothing_back(rig: DeliveryRig) -> None:
    """Nothing would come of it: neither before a first batch, nor of batches that leave out what is acknowledged."""
    for ledger in range(2):
        rig.ack((ledger, 2, 2))
        before = rig.backlog()
        with pytest.raises(
            Refused, match=r"no row of .*log' was delivered to subscription 'c' with ackMode 'explicit'"
        ):
            rig.nack((0, 1, 1))
        assert (rig.backlog(), rig.store.deliveries._nacked) == (before, {})
        assert rig.take(Position(ledger + 1, 0), explicit=False), "a batch with a record, because of its hole"
        rig.crash()
    with pytest.raises(NotFound, match="has no cursor 'd'"):
        rig.store.deliveries.nack("log", "d", rig.batches(((0, 1, 1),)))


@pytest.mark.parametrize("dies", [False, True])
def test_explicit_reader_may_nack_whatever_happens_to_broker_and_cursor(rig: DeliveryRig, dies: bool) -> None:
    rig.take(Position(1, 0))
    if dies:
        rig.crash()
    else:
        rig.store.cursors.reset(ResetCursor("log", "c", Position(0, 0)))
    rig.nack((0, 1, 1))
    assert (((0, 1, 1), 1) in rig.take(Position(1, 0))) is dies, "after a reset nothing is outstanding"


def test_a_record_delivers_the_same_whatever_is_acknowledged_since(rig: DeliveryRig) -> None:
    rig.ack((0, 0, 1), (1, 1, 0))
    first = rig.next()
    before = rig.rows(first.record)
    rig.ack(*all_rows())
    rig.crash()
    assert rig.rows(first.record) == before
    assert ((0, 0, 1), 0) not in before


def test_a_record_that_no_checkpoint_named_is_decided_anew(rig: DeliveryRig) -> None:
    rig.take(Position(1, 0))
    lost = rig.next()
    rig.ack((3, 0, 0))
    again = rig.next()
    assert again.record > lost.record
    with pytest.raises(DataLoss, match=f"no record {lost.record}"):
        rig.rows(lost.record)
    assert sum(rig.rows(again.record).values()) == 79


def test_records_before_the_committed_one_are_trimmed(rig: DeliveryRig) -> None:
    numbers = []
    for ledger in range(1, 5):
        rig.take(Position(ledger, 0))
        numbers.append(rig.after)
    with pytest.raises(DataLoss):
        rig.rows(numbers[-3])
    assert sum(rig.rows(numbers[-2]).values()) == sum(rig.rows(numbers[-1]).values()) == 20


def test_the_log_keeps_what_a_record_may_deliver_again(rig: DeliveryRig) -> None:
    rig.retain(0, 0)
    rig.take(Position(2, 0))
    rig.ack(*all_rows())
    rig.now += 10
    assert rig.store.ledger("log").trim().ledgers == []
    assert sum(rig.rows(rig.after).values()) == 40


def test_log_is_trimmed_once_rows_are_acknowledged_and_batch_committed(rig: DeliveryRig) -> None:
    rig.retain(0, 0)
    rig.take()
    rig.ack(*all_rows())
    rig.now += 10
    assert rig.store.ledger("log").trim().ledgers == []
    assert rig.take() == Counter()
    assert len(rig.store.ledger("log").trim().ledgers) == 4


@pytest.mark.parametrize("dies", [False, True])
def test_a_clock_that_is_set_back_holds_nothing_up(rig: DeliveryRig, dies: bool) -> None:
    rig.take()
    rig.now -= 3_600_000
    if dies:
        rig.crash()
    assert rig.take() == Counter()
    rig.now += TIMEOUT
    assert sum(rig.take().values()) == 100


@pytest.mark.thorough
def test_ten_million_holes_are_a_record(tmp_path: Path) -> None:
    """Half of twenty million rows at random: what is delivered is read as it was decided, by another broker, too."""
    rig, rows = DeliveryRig(tmp_path / "s"), 100_000
    log = rig.log("wide", 1000)
    log.append([entry(b"x%d" % number, rows=rows) for number in range(200)]).result()
    rig.store.cursors.open(OpenCursor("wide", "c", EARLIEST))
    end, (segment,) = log.snapshot.end, log.snapshot.segments
    gone = np.flatnonzero(np.random.default_rng(1).random(200 * rows) < 0.5)
    batch = acknowledge_batch(np.full(len(gone), segment.ledger_id), gone // rows, gone % rows)
    rig.store.cursors.acknowledge("wide", "c", [batch])
    decided = rig.store.deliveries.next(NextDelivery("wide", "c", 0, EARLIEST, end, explicit=True, ack_timeout_ms=1))
    asked = AskDelivery("wide", "c", decided.record)
    before = rig.store.deliveries.get(asked)
    assert measure_left(log.snapshot, before.shares[0].range, skipped_rows(before.shares[0]))[1] == 200 * rows - len(
        gone
    )
    held = sqlite3.connect(tmp_path / "s" / "metadata.sqlite").execute(
        "SELECT max(length(body)), sum(length(body)) FROM "
        "(SELECT body FROM delivery_row UNION ALL SELECT body FROM delivery_chunk_row)"
    )
    most, total = held.fetchone()
    assert most <= ENTRY_BYTES_MAX < total < 4_000_000
    rig.store.cursors.acknowledge(
        "wide", "c", [acknowledge_batch(*np.array([[segment.ledger_id] * 200, range(200), [-1] * 200]))]
    )
    rig.crash()
    assert rig.store.deliveries.get(asked) == before
    after = NextDelivery("wide", "c", decided.record, end, end, explicit=True, ack_timeout_ms=0)
    assert rig.store.deliveries.next(after).record == 0
    rig.store.close()


def test_a_record_too_large_is_refused_with_both_sizes(rig: DeliveryRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.metadata.delivery_records.BODY_BYTES_MAX", 20)
    monkeypatch.setattr("pyspark_ledger.ledger.metadata.delivery_records._DEFLATED_FROM", 10)
    with pytest.raises(Refused, match=r"has \d+ bytes, at most 20 are allowed"):
        rig.take()
    monkeypatch.undo()
    assert sum(rig.take().values()) == 100


def test_without_explicit_what_joined_mark_delete_is_not_delivered(rig: DeliveryRig) -> None:
    rig.ack(*all_rows(range(2)))
    assert rig.take(explicit=False) == Counter({(row, 0): 1 for row in all_rows(range(2, 5))})


def test_nothing_to_deliver_answers_the_start_as_it_came(rig: DeliveryRig) -> None:
    rig.ack(*all_rows())
    rig.position = Position(-1, 0)
    assert rig.next(explicit=False) == DecidedDelivery(0, Position(-1, 0))


def test_what_a_record_leaves_out_is_not_taken_back_by_a_crash(tmp_path: Path) -> None:
    """Acknowledgements are flushed once a second: those that no flush has seen are lost, and their rows come again."""
    rig = DeliveryRig(tmp_path / "s", managedLedgerDefaultMarkDeleteRateLimit=1)
    rig.take(Position(2, 0))
    rig.ack((0, 0, 0))
    rig.ack((0, 1, 1), (1, 2, 3))
    rig.take()
    rig.crash()
    rig.now += TIMEOUT
    assert sum(rig.take().values()) == rig.backlog() == 97
    rig.ack((4, 0, 0))
    rig.crash()
    rig.now += TIMEOUT
    assert sum(rig.take().values()) == rig.backlog()
    rig.store.close()


def test_dead_letters_that_are_buried_stay_so_after_a_crash(tmp_path: Path) -> None:
    rig = DeliveryRig(tmp_path / "s", managedLedgerDefaultMarkDeleteRateLimit=1)
    rig.take(Position(1, 0), most=0)
    rig.ack((0, 0, 0))
    rig.nack((0, 2, 2))
    assert rig.take(Position(1, 0), most=0) == Counter()
    rig.store.deliveries.ack_dead_letters(AckDeadLetters("log", "c", rig.dead))
    rig.crash()
    rig.take(Position(1, 0), most=0)
    rig.nack((0, 2, 2))
    rig.take(Position(1, 0), most=0)
    assert rig.dead == 0, "it would be buried a second time"
    assert rig.backlog() == 98
    rig.store.close()


def test_dead_letters_wait_until_they_are_buried(rig: DeliveryRig) -> None:
    rig.take(Position(1, 0), most=1)
    rig.ack(*(row for row in all_rows(range(1)) if row != (0, 2, 2)))
    rig.now += TIMEOUT
    assert rig.take(Position(1, 0), most=1) == Counter({((0, 2, 2), 1): 1})
    rig.now += TIMEOUT
    assert rig.take(Position(1, 0), most=1) == Counter()
    dead = rig.dead
    assert rig.rows(-1) == Counter({((0, 2, 2), 2): 1})
    rig.crash()
    rig.now += TIMEOUT
    assert rig.take(Position(1, 0), most=1) == Counter()
    assert rig.dead == dead
    for _ in range(2):
        rig.store.deliveries.ack_dead_letters(AckDeadLetters("log", "c", dead))
    assert rig.backlog() == 80
    assert rig.take(Position(1, 0), most=1) == Counter()
    assert rig.dead == 0


def test_after_a_reset_nothing_is_outstanding(rig: DeliveryRig) -> None:
    rig.take()
    rig.ack((0, 0, 0))
    rig.store.cursors.reset(ResetCursor("log", "c", Position(3, 0)))
    assert rig.take() == Counter({(row, 0): 1 for row in all_rows(range(3, 5))})


def test_a_reset_while_a_batch_is_decided_is_before_it_or_after(
    rig: DeliveryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that was kept after the reset would let the reader go on where it was, and leave out what is before."""
    rig.take(Position(4, 0))
    rig.ack(*all_rows(range(4)))
    decides, resets = rig.store.deliveries._decision, []

    def meanwhile(*given: object) -> object:
        if not resets:
            reset = ResetCursor("log", "c", Position(1, 0))
            resets.append(threading.Thread(target=rig.store.cursors.reset, args=(reset,)))
            resets[0].start()
            resets[0].join(0.3)
        return decides(*given)

    monkeypatch.setattr(rig.store.deliveries, "_decision", meanwhile)
    try:
        first = rig.take()
    except DataLoss:  # the reset came between the decision and its rows: the reader begins anew
        first = Counter[tuple[Row, int]]()
        rig.after, rig.position = 0, Position(1, 0)
    resets[0].join(60)
    assert {row for row, _ in first + rig.take()} == set(all_rows(range(1, 5)))
    assert rig.backlog() == 80


def test_without_explicit_only_holes_need_a_record(rig: DeliveryRig) -> None:
    assert rig.next(Position(1, 0), explicit=False) == DecidedDelivery(0, Position(1, 0))
    rig.ack((2, 2, 2), (2, 3, 0))
    rig.after, rig.position = 0, Position(1, 0)
    decided = rig.next(Position(2, 0), explicit=False)
    assert decided.record == 0
    rig.position = decided.position
    assert sum(rig.take(Position(3, 0), explicit=False).values()) == 18


def test_without_explicit_nothing_but_holes_is_no_batch(rig: DeliveryRig) -> None:
    rig.ack(*all_rows(range(2, 3)))
    rig.position = Position(2, 0)
    assert rig.next(Position(3, 0), explicit=False) == DecidedDelivery(0, Position(2, 0))


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 30))])
@pytest.mark.thorough
def test_every_row_is_delivered_until_it_is_acknowledged(seed: int, tmp_path: Path) -> None:
    """Each row is outstanding once, counts rise by one, acknowledged ones never come; crashes and lost records too.

    With a rate of flushes a crash takes acknowledgements back: their rows come until they are acknowledged again.
    """
    dice, rate = random.Random(seed), seed % 2
    rig = DeliveryRig(tmp_path / "s", managedLedgerDefaultMarkDeleteRateLimit=rate)
    counts: dict[Row, int] = {}
    left = set(all_rows())
    for _ in range(60):
        kind = dice.choice(["take", "take", "ack", "nack", "time", "crash", "lost"])
        if kind == "take":
            ledger = min(rig.position.ledger_id + dice.randrange(2), 4)
            end = Position(ledger, 4)
            back = dice.choice([1, 7, 30, 10**9])
            for (row, count), times in rig.take(max(end, rig.position), back=back).items():
                assert times == 1
                assert row in left
                assert count == counts.get(row, -1) + 1
                counts[row] = count
        elif kind in {"ack", "nack"} and counts:
            rows = dice.sample(sorted(counts), dice.randrange(1, 1 + min(len(counts), 15)))
            if kind == "ack":
                rig.ack(*rows)
                left -= set(rows)
            else:
                rig.nack(*rows)
        elif kind == "time":
            rig.now += dice.randrange(2 * TIMEOUT)
        elif kind == "crash":
            rig.crash()
            before, left = left, rig.left() if rate else left
            assert before <= left
        elif kind == "lost":
            rig.next()
        assert rig.backlog() == len(left)
    while left:
        rig.now += TIMEOUT
        batch = rig.take()
        rig.ack(*(row for row, _ in batch))
        left -= {row for row, _ in batch}
        assert batch
    assert rig.backlog() == 0
    rig.store.close()
