"""Fixtures of metadata, and of a store that has some: see `tests.rigs.cursors`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.cursors import rig

__all__ = ["path", "rig"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"
