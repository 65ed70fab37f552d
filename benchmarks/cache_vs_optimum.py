"""Storage reads of the cache's policies over those of the optimum, for the same order of requests.

The optimum is an algorithm that knows all future requests. Every pattern of `benchmarks.cache_traces` runs through the
broker's own cache. The ratio of a pattern is (reads per entry + 0.02) / (the optimum's reads per entry + 0.02). The
result is the ratio of the worst pattern, with the default policy. Nothing is timed, so one run suffices.

The same is shown for both values of PIP-430's switch `cacheEvictionByExpectedReadCount`. True selects the policy
`expected-reads`, and keeps recently read entries. False selects `slowest-reader`.
`python -m benchmarks.cache_simulator` shows every policy and other caches.
"""

from __future__ import annotations

from benchmarks.cache_simulator import Simulation, SimulationResult, best_of
from benchmarks.cache_traces import Trace, all_traces
from pyspark_ledger.ledger.cache.eviction.registry import DEFAULT_POLICY, policy_of
from pyspark_ledger.ledger.settings.broker import Settings

SWITCHED = {
    "by_expected_read_count_false": Settings(cacheEvictionPolicy="slowest-reader"),
    "by_expected_read_count_true": Settings(
        cacheEvictionPolicy="expected-reads", managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed=1
    ),
}


def worst(settings: Settings, best: list[tuple[Trace, SimulationResult]]) -> float:
    """Simulate every trace, and return the ratio of the worst."""
    name, ratios = settings.cacheEvictionPolicy, list[float]()
    print(f"\n{name}\n{'trace':<20}{'reads/entry':>12}{'optimum':>9}{'ratio':>7}")
    for trace, optimum in best:
        ours = Simulation(trace, policy_of(settings), settings).run(name)
        ratios.append(ours.over(optimum))
        print(f"{trace.name:<20}{ours.per_entry:>12.3f}{optimum.per_entry:>9.3f}{ratios[-1]:>7.3f}", flush=True)
    return max(ratios)


def main() -> None:
    """Simulate every trace under both values of the switch, then under the default policy."""
    best = [(trace, best_of(trace)) for trace in all_traces()]
    for name, settings in SWITCHED.items():
        print(f"ratio cache_vs_optimum_{name} {worst(settings, best):.3f}", flush=True)
    print(f"ratio cache_vs_optimum {worst(Settings(cacheEvictionPolicy=DEFAULT_POLICY), best):.3f}")


if __name__ == "__main__":
    main()
