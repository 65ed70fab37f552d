"""Goal: the cache accounts for all memory in use, also for evicted blocks that readers still reference. Method: blocks
of real memory and readers that keep them as long as the test says; the account is compared with the live arrays.
"""

from __future__ import annotations

import random
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cache_yardsticks import LruPolicy
from pyspark_ledger.ledger.cache.block import CachedBlock
from pyspark_ledger.ledger.cache.block_storage import HeapStorage
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.eviction.expected_reads import StashPolicy
from pyspark_ledger.ledger.cache.eviction.registry import POLICIES
from pyspark_ledger.ledger.cache.ledger_cache import BlockPart
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from tests.rigs.cache import HandClock, cache_limits
from tests.rigs.cache_invariants import check_cache

LATER = 10_000_000
SIZE = 10


class Memory:
    """Storage whose blocks are arrays; `taken` are the bytes of those that are alive."""

    def __init__(self) -> None:
        self._arrays: list[weakref.ref[np.ndarray[tuple[int], np.dtype[np.uint8]]]] = []
        self.reads = 0

    def __call__(self, first: int, end: int) -> CachedBlock:
        array = np.repeat(np.arange(first, end, dtype=np.uint8), SIZE)
        self._arrays.append(weakref.ref(array))
        self.reads += 1
        return CachedBlock(
            1, first, end, (end - first) * SIZE,
            lambda first, end: np.arange(end - first + 1, dtype=np.int64) * SIZE, HeapStorage(pa.py_buffer(array)),
        )  # fmt: skip

    @property
    def taken(self) -> int:
        return sum(0 if array() is None else len(array()) for array in self._arrays)  # type: ignore[arg-type]


class Rig:
    """A cache over memory, and what readers have in their hands."""

    def __init__(self, policy: str, limit: int, **limits: int) -> None:
        self.clock = HandClock()
        made = {**POLICIES, "lru": LruPolicy}[policy]
        self.cache = EntryCache(made, cache_limits(limit, 2**28, **limits), self.clock)  # type: ignore[arg-type]
        self.memory = Memory()
        self.hands: list[list[pa.Buffer]] = []

    def read(self, first: int, end: int, reader: str = "a", *, keeps: bool = False) -> None:
        parts = self.cache.fetch("orders", reader, 1, first, end, self.memory)
        got = [_bytes(part) for part in parts]
        assert b"".join(bytes(one) for one in got) == bytes(np.repeat(np.arange(first, end, dtype=np.uint8), SIZE))
        if keeps:
            self.hands.append(got)

    def move(self, kind: str, reader: str, entry: int) -> None:
        with self.cache.moving("orders") as readers:
            if kind == "follow":
                readers.follow(reader, Position(1, entry), self.clock() + 10_000)
            elif kind == "commit":
                readers.commit(reader, Position(1, entry))
            else:
                readers.leave(reader, self.clock())

    def change(self, kind: str, first: int, end: int) -> None:
        if kind == "append":
            self.cache.append("orders", self.memory(first, end))
        elif kind == "ahead":
            self.cache.ahead("orders", 1, first, end, self.memory)
        else:
            self.cache.invalidate("orders", PositionRange(Position(1, first), Position(1, end)))

    def check(self) -> None:
        self.cache.memory.pinned.refresh()
        assert self.cache.size == self.memory.taken
        check_cache(self.cache)


def _bytes(part: BlockPart) -> pa.Buffer:
    assert part.held is not None
    offset, length = part.block.cut(part.first, part.end)
    return part.held.frames.slice(offset, length)


def test_what_a_reader_has_of_what_was_let_go_of_takes_room_of_the_limit() -> None:
    rig = Rig("lru", 220)
    rig.read(0, 10, keeps=True)
    rig.read(10, 20)
    assert rig.cache.memory.held == 200
    rig.cache.invalidate("orders", PositionRange(EARLIEST, LATEST))
    assert (rig.cache.memory.held, rig.cache.memory.pinned.size, rig.memory.taken) == (0, 100, 100)
    for first in range(20, 60, 5):
        rig.read(first, first + 5)
        rig.check()
        assert rig.cache.size <= 220
        assert rig.cache.ledger("orders").cache.missing(1, first, first + 5) == []  # others went for it
    rig.hands.clear()
    rig.check()
    assert rig.cache.memory.pinned.size == 0
    for first in range(60, 80, 5):
        rig.read(first, first + 5)
    assert rig.cache.memory.held > 100  # there is room again
    rig.check()


def test_a_pass_goes_on_until_enough_is_free_indeed() -> None:
    rig = Rig("lru", 100)
    rig.read(0, 3, keeps=True)
    rig.read(3, 6)
    rig.read(6, 9)
    rig.read(9, 12)  # 120: the oldest is referenced, so the next one is evicted too
    assert [span.first for span in rig.cache.ledger("orders").cache] == [6, 9]
    assert (rig.cache.memory.held, rig.cache.memory.pinned.size, rig.memory.taken) == (60, 30, 90)
    rig.check()


def test_one_entry_in_somebodys_hands_holds_all_of_its_block() -> None:
    rig = Rig("lru", 200)
    rig.read(0, 10)
    rig.read(4, 5, keeps=True)
    rig.cache.invalidate("orders", PositionRange(EARLIEST, LATEST))
    assert (sum(one.size for one in rig.hands[0]), rig.cache.size, rig.memory.taken) == (10, 100, 100)
    rig.check()


def test_what_finds_no_room_counts_once_and_until_its_reader_lets_go() -> None:
    rig = Rig("expected-reads-stash", 100)
    with rig.cache.moving("orders") as readers:
        for name in "ab":
            readers.follow(name, Position(1, 0), LATER)
    rig.read(0, 9)
    rig.read(9, 14, keeps=True)  # nothing else goes under this policy
    assert (rig.cache.memory.held, rig.cache.memory.pinned.size, rig.memory.taken) == (90, 50, 140)
    assert rig.cache.evictions.not_kept == 1
    rig.hands.clear()
    rig.check()
    assert rig.cache.size == 90


def test_expected_blocks_are_not_evicted_while_the_others_are_pinned() -> None:
    rig = Rig("expected-reads-stash", 100)
    rig.read(0, 5, keeps=True)
    rig.cache.invalidate("orders", PositionRange(EARLIEST, LATEST))
    with rig.cache.moving("orders") as readers:
        for name in "ab":
            readers.follow(name, Position(1, 10), LATER)
    rig.read(10, 14)
    rig.read(14, 17)
    rig.check()
    assert (rig.cache.memory.held, rig.cache.memory.pinned.size, rig.cache.evictions.not_kept) == (40, 50, 1)


def test_unneeded_unpinned_blocks_are_evicted_for_a_lone_reader() -> None:
    rig = Rig("cursor-distance", 110)
    rig.read(0, 3, keeps=True)
    rig.read(3, 6)
    rig.read(6, 9)
    rig.read(9, 12)
    assert [span.first for span in rig.cache.ledger("orders").cache] == [6, 9]
    assert (rig.cache.memory.held, rig.cache.memory.pinned.size) == (60, 30)
    rig.check()


@pytest.mark.parametrize("policy", POLICIES)
def test_readers_go_on_where_all_of_the_cache_is_in_somebodys_hands(policy: str) -> None:
    """Their blocks are read and not kept, and the readers get every byte."""
    rig = Rig(policy, 200)
    with rig.cache.moving("orders") as readers:
        for name in "ab":
            readers.follow(name, Position(1, 0), LATER)
    for first in range(0, 40, 5):
        rig.read(first, first + 5, keeps=True)
    assert rig.memory.taken == 400
    assert rig.cache.memory.held <= 200
    for _ in range(3):
        rig.read(100, 110, "b")
        rig.check()
        assert rig.cache.size == 400
    rig.hands.clear()
    rig.check()
    assert rig.cache.size <= 200
    rig.read(100, 110, "a")
    rig.check()


def test_a_limit_that_is_lowered_is_kept_as_soon_as_readers_let_go() -> None:
    rig = Rig("lru", 400)
    for first in range(0, 40, 10):
        rig.read(first, first + 10, keeps=first == 0)
    rig.cache.change(LruPolicy, cache_limits(150))
    assert (rig.cache.memory.held, rig.cache.memory.pinned.size) == (0, 100)  # 40 or less of blocks of 100
    rig.hands.clear()
    rig.cache.change(StashPolicy, cache_limits(0))
    rig.check()
    assert rig.memory.taken == rig.cache.size == 0


STEP = st.tuples(
    st.sampled_from(["read", "keep", "drop", "append", "follow", "commit", "leave", "time", "invalidate", "ahead"]),
    st.sampled_from("ab"), st.integers(0, 40), st.integers(1, 9),
)  # fmt: skip


@given(st.sampled_from(list(POLICIES)), st.lists(STEP, max_size=50))
def test_random_traffic_beside_the_memory_that_is_alive(policy: str, steps: list[tuple[str, str, int, int]]) -> None:
    """The account is what is alive. What is above the limit was read for want of room, and is in its reader's hands."""
    rig = Rig(
        policy,
        200,
        managedLedgerCacheEvictionTimeThresholdMillis=2_500,
    )
    cache, passed_on = rig.cache, 0
    for kind, reader, first, length in steps:
        end = first + length
        if kind in ("read", "keep"):
            rig.read(first, end, reader, keeps=kind == "keep")
        elif kind == "drop":
            del rig.hands[first % 3 :: 3]
        elif kind == "time":
            rig.clock.pass_ms(length * 500)
            cache.expire()
        elif kind in ("follow", "commit", "leave"):
            rig.move(kind, reader, first)
        else:
            rig.change(kind, first, end)
        rig.check()
        above = max(cache.size - 200, 0)
        passed_on = max(passed_on, above) if kind == "keep" else min(passed_on, above)
        assert above <= (passed_on if rig.hands else 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_threads_take_no_more_than_the_limit_and_what_each_reads_now(policy: str) -> None:
    rig, largest, threads = Rig(policy, 500), 30, 4

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(150):
            first = dice.randrange(150)
            with rig.cache.moving("orders") as readers:
                readers.follow(f"r{seed}", Position(1, max(first - 20, 0)), LATER)
            rig.read(first, first + dice.randrange(1, largest), f"r{seed}")
            assert rig.cache.size <= 500 + threads * largest * SIZE

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, seed) for seed in range(threads)]:
            done.result(60)
    rig.check()
    assert rig.cache.size <= 500
