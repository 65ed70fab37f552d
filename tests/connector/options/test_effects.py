"""Goal: no option is without effect; to hard-wire any of them to its default fails here. Method: a table of options.
Each row asks the data source as Spark does, once without the option and once with each of its texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.connector.options.table import OPTIONS
from tests.connector.options import bucket_effects, read_effects, write_effects
from tests.rigs.broker import session_run_directory
from tests.rigs.data_source import OptionDrive, World

__all__ = ["session_run_directory"]
AREAS = (read_effects, write_effects, bucket_effects)
DRIVES = [(name, drive) for area in AREAS for name, drives in area.DRIVES.items() for drive in drives]
CASES = [pytest.param(*case, id=f"{case[0]}-{number}") for number, case in enumerate(DRIVES)]


@pytest.fixture(scope="module")
def world(session_run_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(session_run_directory))
        world = World(tmp_path_factory.mktemp("world"), patch)
        yield world
        world.close()


def test_every_option_is_driven() -> None:
    assert {name for name, _ in DRIVES} == {option.name for option in OPTIONS}
    assert all(drive.default != seen for _, drive in DRIVES for seen in drive.seen.values())


@pytest.mark.parametrize(("name", "drive"), CASES)
def test_an_option_has_its_effect(world: World, name: str, drive: OptionDrive) -> None:
    assert drive.observe(world, drive.also) == drive.default
    for text, expected in drive.seen.items():
        assert drive.observe(world, {**drive.also, name: text}) == expected
