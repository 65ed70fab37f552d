"""Attacks on the memory of a broker: the memory that each takes, and the times of an honest client meanwhile.

The base is the same client at the same broker, right before the attack. So the ratio `memory_attacks_NAME` is of times:
the p99 of appends during the attack over the p99 of an idle broker. Broker, attackers and honest client are processes
that share this host. `LEDGER_ATTACKS` names the attacks of one run, separated by commas (`tests/rigs/memory_attacks`).
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from pyspark_ledger.ledger.client.broker_environment import bounded_allocator
from tests.rigs.attacked_broker import AttackedBroker
from tests.rigs.broker import BrokerRig
from tests.rigs.memory_attacks import ATTACKS, MIB

ROUNDS = 7
_IDLE_SECONDS = 5


def main() -> None:
    """Measure each attack `ROUNDS` times, each on a new broker. Print the median ratio, and the worst other figures."""
    os.environ |= bounded_allocator({})
    for name in os.environ.get("LEDGER_ATTACKS", ",".join(ATTACKS)).split(","):
        rounds = [_measured(name) for _ in range(ROUNDS)]
        most, after, health, p99 = (max(found[place] for found in rounds) for place in range(4))
        print(
            f"{name}: +{most // MIB} MiB during, +{after // MIB} MiB after; append p99 at most {1000 * p99:.1f} ms; "
            f"health at most {health:.2f} s"
        )
        print(f"ratio memory_attacks_{name} {statistics.median(found[4] for found in rounds):.2f}", flush=True)


def _measured(name: str) -> tuple[int, int, float, float, float]:
    """Return memory during and after one attack, the slowest health, the p99, and its ratio to the idle p99."""
    with tempfile.TemporaryDirectory(prefix="ledger-attack-") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory
        rig = BrokerRig(Path(directory) / "store")
        try:
            with AttackedBroker(rig, Path(directory) / "broker.toml") as broker:
                idle = broker.figures(_IDLE_SECONDS)
                most, refused = broker.attack(name)
                busy = broker.figures()
                after = broker.settled(256 * MIB)
        finally:
            rig.close()
    print(
        f"  {name}: idle p99 {1000 * idle['p99']:.1f} ms ({idle['appends']}), during {1000 * busy['p99']:.1f} ms "
        f"({busy['appends']}), {len(refused)} refused",
        flush=True,
    )
    return most, after, busy["health"], busy["p99"], busy["p99"] / idle["p99"]


if __name__ == "__main__":
    main()
