"""Fixtures of the offload tests: rigs over a directory or an address, closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.offload import OffloadRig


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., OffloadRig]]:
    """Factory of rigs over a directory, or over an address."""
    made: list[OffloadRig] = []

    def make(address: str = "", options: Any = None, **rest: Any) -> OffloadRig:
        made.append(OffloadRig(tmp_path / f"store{len(made)}", address or str(tmp_path / "objects"), options, **rest))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def rig(make_rig: Callable[..., OffloadRig]) -> OffloadRig:
    return make_rig()
