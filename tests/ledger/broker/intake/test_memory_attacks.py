"""Goal: nobody takes much memory of a broker, with or without a token, and others are served meanwhile.

Method: each attack on a broker of its own, over TLS, from a process of its own. The test reads the broker's memory from
/proc. It compares memory and counts; `benchmarks/memory_attacks.py` measures the times of honest calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.client.broker_environment import bounded_allocator
from tests.rigs.attacked_broker import AttackedBroker
from tests.rigs.memory_attacks import ATTACKS, MIB

pytestmark = pytest.mark.slow
Rig = Any
DURING, AFTER = 512 * MIB, 256 * MIB


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_takes_little_memory(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable, value in bounded_allocator({}).items():
        monkeypatch.setenv(variable, value)
    with AttackedBroker(rig, tmp_path / "broker.toml") as broker:
        most, refused = broker.attack(name)
        assert most <= DURING
        assert broker.settled(AFTER) <= AFTER
        broker.figures()  # the honest client still appends
    assert "Traceback" not in rig.log()
    if name == "staging_streams":
        assert not refused
    if name == "silent_staging_streams":
        assert not [error for error in refused if "navailable" not in error and "UNAVAILABLE" not in error]
