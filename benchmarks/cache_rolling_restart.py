"""Hit rate of the cache in the scenario of PIP-430's pull request, in which Pulsar's cache reached 98.4 %.

The broker's cache classes run the trace `benchmarks.cache_traces.rolling_restart`. It has 10 partitions, 10
subscriptions, and 50,000 messages of 8 KB per second. The cache has 250 MB. Brokers restart three times in 30 seconds.
"""

from __future__ import annotations

from benchmarks.cache_simulator import Simulation
from benchmarks.cache_traces import rolling_restart
from pyspark_ledger.ledger.cache.eviction.registry import DEFAULT_POLICY, POLICIES


def main() -> None:
    """Simulate half a minute of the scenario."""
    found = Simulation(rolling_restart(), POLICIES[DEFAULT_POLICY]).run(DEFAULT_POLICY)
    print(f"{found.requests:,} blocks wanted, {found.reads:,} read from storage, {found.held_bytes >> 20} MiB held")
    print(f"ratio cache_rolling_restart {found.hit_rate:.4f}")


if __name__ == "__main__":
    main()
