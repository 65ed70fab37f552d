"""Goal: the simulator compares fairly. Method: orders that can be counted by hand, and every cache against the optimum
over short traces of all shapes, twice with the same result.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cache_simulator import Simulation, best_of, outcomes, table
from benchmarks.cache_traces import (
    Step,
    Trace,
    backfill_and_tail,
    catch_up,
    key_shared_replay,
    load_trace,
    rolling_restart,
    tail_with_pauses,
)
from benchmarks.cache_yardsticks import LruPolicy, S3Fifo, Sieve, optimum, reads_of
from pyspark_ledger.ledger.cache.eviction.registry import POLICIES

SHORT = [
    catch_up(4, blocks=60),
    tail_with_pauses(3, blocks=80, cache=12),
    key_shared_replay(3, blocks=80, cache=12),
    backfill_and_tail(blocks=40, cache=12),
    rolling_restart(seconds=2, step_ms=100),
]


def order(blocks: str, cache: int) -> Trace:
    """Reads of blocks named by letters, by one reader."""
    steps = [Step(float(number), "read", 0, ord(block) - ord("a"), "r") for number, block in enumerate(blocks)]
    return Trace(blocks, cache, 1 << 20, steps)


@pytest.mark.parametrize(
    ("blocks", "cache", "reads"),
    [("abab", 2, 2), ("abcabc", 2, 4), ("abcdabcd", 3, 5), ("aaaa", 1, 1), ("abcba", 1, 4)],
)
def test_the_optimum_is_what_can_be_counted_by_hand(blocks: str, cache: int, reads: int) -> None:
    assert optimum(order(blocks, cache)) == reads


def test_what_is_cleared_is_read_again_and_what_was_appended_is_not_read() -> None:
    steps = [Step(0, "append", 0, 0), Step(1, "read", 0, 0, "r"), Step(2, "clear", 0, 0), Step(3, "read", 0, 0, "r")]
    trace = Trace("cleared", 4, 1 << 20, steps)
    assert optimum(trace) == reads_of(Sieve(4), trace) == reads_of(S3Fifo(4), trace) == 1
    assert Simulation(trace, LruPolicy).run("lru").reads == 1


@pytest.mark.parametrize("trace", SHORT, ids=lambda trace: trace.name)
def test_simulated_caches_read_between_the_optimum_and_every_request(trace: Trace) -> None:
    best = best_of(trace)
    for found in outcomes(trace):
        assert best.reads <= found.reads <= best.requests, found.name
        assert found.held_bytes <= trace.cache_blocks * trace.block_bytes, found.name


def test_the_same_seed_is_the_same_outcome(tmp_path: Path) -> None:
    first, second = (Simulation(catch_up(3, blocks=80), POLICIES["cursor-distance"]).run("x") for _ in range(2))
    assert (first.reads, first.held_bytes) == (second.reads, second.held_bytes)
    recorded = tmp_path / "recorded.jsonl"
    trace = catch_up(3, blocks=80)
    recorded.write_text("".join(f'[{s.ms}, "{s.kind}", {s.ledger}, {s.block}, "{s.reader}"]\n' for s in trace.steps))
    again = load_trace(recorded, trace.cache_blocks, trace.block_bytes)
    assert again.steps == trace.steps
    assert "cursor-distance *" in table({"recorded": outcomes(again)})
