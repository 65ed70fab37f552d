"""Cache simulator: the broker's cache classes under recorded or generated traffic, compared with other caches.

    python -m benchmarks.cache_simulator [FILE.png]

For each trace and policy it prints four numbers:
- entries read from storage per requested entry;
- this number divided by that of the optimum (`benchmarks.cache_yardsticks.optimum`);
- the maximum of cached bytes;
- the time per operation.

With a file it draws the first number. `EntryCache`, its policies and its readers are the broker's own code. The
simulated storage returns blocks without bytes. The cache only counts their sizes, as for blocks of local files. The
trace also sets the clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.cache_traces import Trace, all_traces
from benchmarks.cache_yardsticks import LruPolicy, S3Fifo, Sieve, optimum, reads_of
from pyspark_ledger.ledger.cache.block import CachedBlock
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.eviction.policy import CacheLimits, EvictionPolicy
from pyspark_ledger.ledger.cache.eviction.registry import DEFAULT_POLICY, POLICIES, limits_of
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.segment.index import Integers
from pyspark_ledger.ledger.settings.broker import Settings

ENTRIES = 64  # per block
_ALIVE_MS = 2**40
_LITTLE = 0.02  # reads per entry that are negligible


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Result of a policy for a trace. `reads`, `wanted` and `requests` are numbers of blocks."""

    name: str
    reads: int
    wanted: int
    requests: int
    held_bytes: int = 0
    microseconds: float = 0.0

    @property
    def per_entry(self) -> float:
        """Storage reads per requested entry."""
        return self.reads / self.wanted

    @property
    def hit_rate(self) -> float:
        """The share of requests that were served without storage."""
        return 1 - self.reads / self.requests

    def over(self, best: SimulationResult) -> float:
        """Return the reads over the optimum's. A constant is added to both, for traces with hardly any reads."""
        return (self.per_entry + _LITTLE) / (best.per_entry + _LITTLE)


class Simulation:
    """Simulation of a policy under a trace."""

    def __init__(
        self, trace: Trace, policy: Callable[[CacheLimits], EvictionPolicy], settings: Settings | None = None
    ) -> None:
        self._trace = trace
        self._now = 0.0
        self._ends: dict[str, int] = {}
        limits = replace(limits_of(settings or Settings()), local_file_size=trace.cache_blocks * trace.block_bytes)
        self.cache = EntryCache(policy, limits, lambda: int(self._now), readers_of=self._readers_of)
        self._held = 0

    def run(self, name: str) -> SimulationResult:
        """Run all steps of the trace."""
        began, expired = time.process_time(), 0.0
        for ms, kind, ledger, block, reader in self._trace.steps:
            self._now = ms
            if ms - expired >= 100:
                self.cache.expire()
                expired = ms
            log, first, end = str(ledger), block * ENTRIES, (block + 1) * ENTRIES
            if kind == "append":
                self._ends[log] = end
                self.cache.append(log, self._block(first, end))
            elif kind == "read":
                self._ends[log] = max(self._ends.get(log, 0), end)
                self.cache.fetch(log, reader, 0, first, end, self._block)
                with self.cache.moving(log) as readers:
                    readers.served(reader, 0, first, end)
            else:
                self._change(kind, log, first, end, reader)
            self._held = max(self._held, self.cache.files.held)
        took = time.process_time() - began
        counts = [ledger.counts for ledger in self.cache.ledgers()]
        reads = sum(count.misses for count in counts) // ENTRIES
        return _result(name, self._trace, reads, self._held, took)

    def _change(self, kind: str, log: str, first: int, end: int, reader: str) -> None:
        if kind == "clear":
            for span in self.cache.ledger(log).cache:
                whole = PositionRange(Position(0, span.first), Position(0, span.end))
                self.cache.invalidate(log, whole)
            return
        with self.cache.moving(log) as readers:
            if kind == "follow":
                readers.follow(reader, Position(0, first), _ALIVE_MS)
            elif kind == "leave":
                readers.leave(reader, int(self._now))
            elif kind == "commit":
                readers.commit(reader, Position(0, first))
            elif kind == "reset":
                readers.reset(reader, Position(0, first))
            else:
                readers.again(reader, PositionRange(Position(0, first), Position(0, end)))

    def _block(self, first: int, end: int) -> CachedBlock:
        size = self._trace.block_bytes // ENTRIES

        def edges(first: int, end: int) -> Integers:
            return np.arange(end - first + 1, dtype=np.int64) * size

        return CachedBlock(0, first, end, size * (end - first), edges)

    def _readers_of(self, log: str) -> LedgerReaders:
        return LedgerReaders(end=lambda: Position(0, self._ends.get(log, 0)))


def _result(name: str, trace: Trace, reads: int, held: int = 0, seconds: float = 0.0) -> SimulationResult:
    requests = [(step.ledger, step.block) for step in trace.steps if step.kind == "read"]
    operations = sum(step.kind in ("read", "append") for step in trace.steps)
    return SimulationResult(name, reads, len(set(requests)), len(requests), held, seconds / operations * 1e6)


def best_of(trace: Trace) -> SimulationResult:
    """Return the optimum for a trace."""
    return _result("optimum", trace, optimum(trace))


def outcomes(trace: Trace) -> list[SimulationResult]:
    """Return the results of the broker's policies, then of the yardsticks, the optimum last."""
    ours = [Simulation(trace, policy).run(name) for name, policy in {**POLICIES, "lru": LruPolicy}.items()]
    others = [
        _result("s3-fifo", trace, reads_of(S3Fifo(trace.cache_blocks), trace)),
        _result("sieve", trace, reads_of(Sieve(trace.cache_blocks), trace)),
    ]
    return [*ours, *others, best_of(trace)]


def table(found: dict[str, list[SimulationResult]]) -> str:
    """Print one line per policy and trace."""
    lines = [
        f"{'trace':<20}{'policy':<22}{'reads/entry':>12}{'x optimum':>11}{'hit rate':>10}{'MiB held':>10}{'us/op':>8}"
    ]
    for trace, results in found.items():
        for result in results:
            mark = " *" if result.name == DEFAULT_POLICY else ""
            lines.append(
                f"{trace:<20}{result.name + mark:<22}{result.per_entry:>12.3f}{result.over(results[-1]):>11.2f}"
                f"{result.hit_rate:>10.4f}{result.held_bytes / 2**20:>10.0f}{result.microseconds:>8.1f}"
            )
    return "\n".join(lines)


def draw(found: dict[str, list[SimulationResult]], path: Path) -> None:
    """Draw the reads per entry of every policy and trace as bars."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [result.name for result in next(iter(found.values()))]
    figure, axes = plt.subplots(figsize=(11, 4.5))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        ratios = [next(r for r in results if r.name == name).over(results[-1]) for results in found.values()]
        places = [place + (number - len(names) / 2) * width for place in range(len(found))]
        axes.bar(places, ratios, width, label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylabel("storage reads over the optimum's")
    axes.set_xticks(range(len(found)), list(found))
    axes.tick_params(axis="x", labelsize=8)
    axes.legend(fontsize=8, ncols=3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Simulate everything and print it. The last line is the worst ratio of the default policy."""
    found = {trace.name: outcomes(trace) for trace in all_traces()}
    print(table(found))
    if len(sys.argv) > 1:
        draw(found, Path(sys.argv[1]))
    worst = max(one.over(all_of[-1]) for all_of in found.values() for one in all_of if one.name == DEFAULT_POLICY)
    print(f"ratio cache_simulator {worst:.3f}")


if __name__ == "__main__":
    main()
