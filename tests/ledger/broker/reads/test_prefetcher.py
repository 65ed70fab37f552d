"""Goal: of many plans the blocks that are prefetched, and their order, are those of the plainest account of them.

Method: random plans beside a model that looks through all of them each time; no thread, each step is taken by hand.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from pyspark_ledger.ledger.broker.reads.offloaded_reads import ReaderId
from pyspark_ledger.ledger.broker.reads.prefetcher import BrokerPrefetcher
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.segment.reader import SegmentBlock

ROOM, LENGTH = 500, 100


class BlockStorage(NamedTuple):
    """Names of block locations."""

    mappable: bool


REMOTE, LOCAL = BlockStorage(mappable=False), BlockStorage(mappable=True)


class Reads:
    """Knows what is cached."""

    def __init__(self) -> None:
        self.cached: set[SegmentBlock] = set()

    def is_missing(self, block: SegmentBlock, _ledger: str) -> bool:
        return block not in self.cached


class Model:
    """Everything is looked through, each time."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads
        self.plans: dict[ReaderId, tuple[list[SegmentBlock], list[SegmentBlock]]] = {}

    def plan(self, reading: ReaderId, blocks: list[SegmentBlock]) -> None:
        _, before = self.plans.get(reading, ([], []))
        begun = [block for block in before if block in blocks]
        self.plans[reading] = [block for block in blocks if block not in begun], begun

    def passed(self, reading: ReaderId, at: Position) -> None:
        if reading in self.plans:
            coming, begun = ([one for one in blocks if end(one) > at] for blocks in self.plans[reading])
            self.plans[reading] = coming, begun
            if not coming and not begun:
                del self.plans[reading]

    def next(self) -> tuple[ReaderId, SegmentBlock] | None:
        if sum(block.length for _, begun in self.plans.values() for block in begun) >= ROOM:
            return None
        for reading, (coming, begun) in list(self.plans.items()):
            while coming:
                block = coming.pop(0)
                self.plans[reading] = self.plans.pop(reading)
                if block.source is not REMOTE:
                    return reading, block
                if block not in self.reads.cached:
                    begun.append(block)
                    return reading, block
        return None


def end(block: SegmentBlock) -> Position:
    return Position(block.ledger_id, block.first_entry + block.entries)


def blocks(ledger_id: int, first: int, count: int) -> list[SegmentBlock]:
    homes = (REMOTE, REMOTE, LOCAL, None)
    return [
        SegmentBlock(ledger_id, number, 1, Path("x"), number * LENGTH, LENGTH, homes[(ledger_id + number) % 4])
        for number in range(first, first + count)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_plans_are_followed_in_turn_as_a_plain_account_of_them_says(seed: int) -> None:
    dice, reads = random.Random(seed), Reads()
    prefetcher, model = BrokerPrefetcher(reads, lambda: ROOM, 0), Model(reads)  # type: ignore[arg-type]
    readings = [ReaderId(f"log{number}", "q") for number in range(12)]
    begun = 0
    for _ in range(2_000):
        number = dice.randrange(len(readings))
        reading, at = readings[number], dice.randrange(20)
        kind = dice.choice(["plan", "plan", "next", "next", "next", "passed", "passed", "cached", "forget"])
        if kind == "plan":
            wanted = blocks(number, at, dice.randrange(1, 12))
            prefetcher.plan(reading, wanted)
            model.plan(reading, wanted)
        elif kind == "next":
            found = prefetcher._next()
            assert found == model.next()
            begun += found is not None
        elif kind == "passed":
            prefetcher.passed(reading, Position(number, at))
            model.passed(reading, Position(number, at))
        elif kind == "cached":
            reads.cached.update(blocks(number, at, 1))
        elif not dice.randrange(5):
            prefetcher.forget(reading)
            model.plans.pop(reading, None)
        check(prefetcher)
        assert {one: (list(plan.pending), plan.started) for one, plan in prefetcher._plans.items()} == model.plans
    assert begun > 100


def check(prefetcher: BrokerPrefetcher) -> None:
    """Compare the counters with the contents."""
    plans = prefetcher._plans
    assert prefetcher._pending_count == sum(len(plan.pending) for plan in plans.values())
    assert prefetcher._prefetched_bytes == sum(block.length for plan in plans.values() for block in plan.started)
    assert dict(prefetcher._queue) == {plan.queue_number: reading for reading, plan in plans.items() if plan.pending}


def test_prefetcher_of_many_ledgers_serves_each_once_before_any_twice() -> None:
    prefetcher = BrokerPrefetcher(Reads(), lambda: 10**9, 0)  # type: ignore[arg-type]
    readings = [ReaderId(f"log{number}", "q") for number in range(1_000)]
    for number, reading in enumerate(readings):
        prefetcher.plan(reading, blocks(number, 0, 3))
    for _ in range(3):
        assert [found[0] for _ in readings if (found := prefetcher._next())] == readings
    assert prefetcher._next() is None
