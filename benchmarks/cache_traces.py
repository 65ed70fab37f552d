"""Traces for the cache simulator: actions of readers and producers, in order of time.

A trace is a list of steps over blocks of one size. Block `b` of a ledger has the entries `[b * n, (b + 1) * n)`:

    append  the block was written just now                read    a reader requests the block
    follow  a reader starts at block `b`                  leave   a reader ends
    commit  a reader acknowledged all before `b`          reset   a reader continues at `b`
    again   a reader will read the block once more        clear   the ledger moved to a broker with an empty cache

Every generator of a trace has a fixed seed, and states the size of its cache in blocks. A file of a recorded trace has
one step in each line, as a JSON array (`load_trace`).
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Step(NamedTuple):
    """Action at the time `ms`."""

    ms: float
    kind: str
    ledger: int
    block: int
    reader: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Steps in order of time, and the size of the cache."""

    name: str
    cache_blocks: int
    block_bytes: int
    steps: list[Step]


def load_trace(path: Path, cache_blocks: int, block_bytes: int) -> Trace:
    """Load a recorded trace."""
    steps = [Step(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return Trace(path.stem, cache_blocks, block_bytes, steps)


def catch_up(cursors: int, part: float = 0.1, *, blocks: int = 1200, seed: int = 1) -> Trace:
    """Generate cursors with different starts and speeds, over a backlog of `1 / part` times the cache."""
    dice = random.Random(seed)
    ways = []
    for number in range(cursors):
        interval = 10.0 * dice.uniform(1.0, 2.0)
        start = dice.uniform(0, 0.3) * blocks * 10.0
        ways.append(_going(f"r{number}", start, interval, range(blocks), dice))
    return Trace(f"catch-up of {cursors}", max(int(blocks * part), 2), 1 << 20, _in_order(ways))


def tail_with_pauses(readers: int = 8, *, blocks: int = 4000, cache: int = 120, seed: int = 2) -> Trace:
    """Generate a producer and tailing readers that sometimes pause and catch up at four times its speed."""
    dice = random.Random(seed)
    ways: list[Iterable[Step]] = [[Step(10.0 * block, "append", 0, block) for block in range(blocks)]]
    for number in range(readers):
        name, steps, free = f"r{number}", [Step(0.0, "follow", 0, 0, f"r{number}")], 0.0
        for block in range(blocks):
            if dice.random() < 0.004:
                free += 10.0 * dice.uniform(30, 400)
            free = max(free + 2.5 * dice.uniform(0.8, 1.2), 10.0 * block + 1 + number * 0.01)
            steps.append(Step(free, "read", 0, block, name))
            if block % 8 == 7:
                steps.append(Step(free, "commit", 0, block + 1, name))
        ways.append(steps)
    return Trace("tail with pauses", cache, 1 << 20, _in_order(ways))


def key_shared_replay(readers: int = 6, *, blocks: int = 3000, cache: int = 60, seed: int = 3) -> Trace:
    """Generate tailing readers that read some blocks again and acknowledge them only then."""
    dice = random.Random(seed)
    ways: list[Iterable[Step]] = [[Step(10.0 * block, "append", 0, block) for block in range(blocks)]]
    for number in range(readers):
        name, steps = f"r{number}", [Step(0.0, "follow", 0, 0, f"r{number}")]
        waiting: list[tuple[float, int]] = []
        for block in range(blocks):
            at = 10.0 * block + 1 + number + dice.uniform(0, 60)
            at = max(at, steps[-1].ms)
            steps.append(Step(at, "read", 0, block, name))
            if dice.random() < 0.15:
                steps.append(Step(at, "again", 0, block, name))
                waiting.append((at + dice.uniform(50, 900), block))
                ways.append([Step(waiting[-1][0], "read", 0, block, name)])
            if block % 8 == 7:
                waiting = [(back, held) for back, held in waiting if back >= at]
                first = min([held for _, held in waiting], default=block + 1)
                steps.append(Step(at, "commit", 0, first, name))
        ways.append(steps)
    return Trace("key-shared replay", cache, 1 << 20, _in_order(ways))


def backfill_and_tail(*, blocks: int = 3000, cache: int = 100, seed: int = 4) -> Trace:
    """Generate four tailing readers with short pauses, and three that read everything from the start."""
    dice = random.Random(seed)
    tail = tail_with_pauses(4, blocks=blocks, cache=cache, seed=seed)
    old = blocks * 2
    shifted = [step._replace(block=step.block + old) for step in tail.steps]
    ways: list[Iterable[Step]] = [shifted]
    everything = range(old + blocks // 2)
    ways += [_going(f"b{i}", i * 900.0, 4.0 * dice.uniform(1, 1.3), everything, dice) for i in range(3)]
    return Trace("backfill and tail", cache, 1 << 20, _in_order(ways))


def rolling_restart(*, seconds: int = 30, step_ms: int = 20, seed: int = 5) -> Trace:
    """Generate PIP-430's scenario of rolling restarts.

    It has 10 partitions on 3 brokers, 10 subscriptions, 50,000 messages of 8 KB per second, 250 MB, and 3 restarts. A
    partition of a restarted broker is unavailable for half a second, then on a broker with an empty cache. Its producer
    continues where it stopped. Each subscription returns after three round trips of 20 to 40 ms. It continues after its
    last acknowledgement, up to a receiver queue of 200 messages back. The new broker finds the leases in the metadata.
    """
    dice = random.Random(seed)
    messages = 50_000 * step_ms // 1000 // 10  # per partition and step
    ways: list[Iterable[Step]] = []
    for partition in range(10):
        restarts = [1000.0 * seconds * part / 4 for part in (1, 2, 3) if partition % 3 == part - 1]
        ways.append(_partition(partition, restarts, seconds * 1000 // step_ms, step_ms, messages, dice))
    return Trace("rolling restart", 250 * 1024 * 1024 // (messages * 8192), messages * 8192, _in_order(ways))


def _partition(
    partition: int, restarts: list[float], blocks: int, step_ms: int, messages: int, dice: random.Random
) -> list[Step]:
    steps, written = [], list[float]()
    for block in range(blocks):
        at = float(block * step_ms)
        for restart in restarts:
            if restart <= at < restart + 500:
                at = restart + 500 + (at - restart) / 25  # delayed messages are written at once
        written.append(max(at, written[-1] if written else 0))
        steps.append(Step(written[-1], "append", partition, block))
    for number in range(10):
        name, back_at = f"s{number}", list(restarts)
        steps.append(Step(0.0, "follow", partition, 0, name))
        block, free = 0, 0.0
        while block < blocks:
            free = max(free + step_ms / 8, written[block] + dice.uniform(0.5, 6))
            if back_at and free >= back_at[0]:
                restart = back_at.pop(0)
                began = restart + 500 + sum(dice.uniform(20, 40) for _ in range(3))
                block = max(block - -(-dice.randrange(200) // messages) - 1, 0)
                steps.append(Step(restart + 0.1, "reset", partition, block, name))
                free = began
                continue
            steps.append(Step(free, "read", partition, block, name))
            block += 1
            if block % 2 == 0:
                steps.append(Step(free, "commit", partition, block, name))
    return steps + [Step(restart, "clear", partition, 0) for restart in restarts]


def _going(name: str, start: float, interval: float, blocks: range, dice: random.Random) -> Iterator[Step]:
    yield Step(start, "follow", 0, blocks[0], name)
    at = start
    for block in blocks:
        at += interval * dice.uniform(0.6, 1.4)
        yield Step(at, "read", 0, block, name)
        if block % 8 == 7:
            yield Step(at, "commit", 0, block + 1, name)
    yield Step(at + 1, "leave", 0, 0, name)


def _in_order(ways: list[Iterable[Step]]) -> list[Step]:
    return list(heapq.merge(*[sorted(way, key=lambda step: step.ms) for way in ways], key=lambda step: step.ms))


def all_traces() -> list[Trace]:
    """Return a trace of every shape, each with its own seed."""
    return [
        catch_up(2),
        catch_up(8),
        catch_up(32, blocks=600),
        tail_with_pauses(),
        key_shared_replay(),
        backfill_and_tail(),
        rolling_restart(seconds=12),
    ]
