"""Storage reads of the cache's default policy over those of the optimum, for the same order of requests.

The optimum is an algorithm that knows all future requests. Every pattern of `benchmarks.cache_traces` runs through the
broker's own cache. The ratio of a pattern is (reads per entry + 0.02) / (the optimum's reads per entry + 0.02). The
result is the ratio of the worst pattern. Nothing is timed, so one run suffices.
`python -m benchmarks.cache_simulator` shows every policy and other caches.
"""

from __future__ import annotations

from benchmarks.cache_simulator import Simulation, best_of
from benchmarks.cache_traces import all_traces
from pyspark_ledger.ledger.cache.eviction.registry import DEFAULT_POLICY, POLICIES


def main() -> None:
    """Simulate every trace under the default policy."""
    worst = 0.0
    print(f"{'trace':<20}{'reads/entry':>12}{'optimum':>9}{'ratio':>7}")
    for trace in all_traces():
        ours, best = Simulation(trace, POLICIES[DEFAULT_POLICY]).run(DEFAULT_POLICY), best_of(trace)
        print(f"{trace.name:<20}{ours.per_entry:>12.3f}{best.per_entry:>9.3f}{ours.over(best):>7.3f}", flush=True)
        worst = max(worst, ours.over(best))
    print(f"ratio cache_vs_optimum {worst:.3f}")


if __name__ == "__main__":
    main()
