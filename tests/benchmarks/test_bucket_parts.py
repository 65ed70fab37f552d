"""Goal: small parts of a stream do not become segments. Method: the simulation, for hours of eight parts a second."""

from __future__ import annotations

import pytest

from benchmarks.bucket_parts import SIZES, TASKS, Simulation
from pyspark_ledger.ledger.settings.broker import Settings

HOUR = 3_600


@pytest.mark.parametrize("name", ["10 kB", "100 kB", "900 kB"])
def test_small_parts_go_into_the_open_segment(name: str) -> None:
    counts = Simulation(SIZES[name]).run(2 * HOUR)
    assert counts.parts == 2 * HOUR * TASKS
    assert 1 <= counts.segments < 100, "less than 1,200 a day"
    assert counts.puts < counts.parts, "the parts of a batch share an object of the log"


def test_parts_below_the_limit_by_one_entry_stay_small() -> None:
    assert Simulation([Settings().stagedPartPromotionMinBytes - 2 * 2**20] * TASKS).run(60).segments < 60


def test_each_large_part_becomes_a_segment() -> None:
    assert Simulation(SIZES["33 MiB"]).run(HOUR).segments == HOUR * TASKS


def test_small_parts_beside_a_large_part_are_joined() -> None:
    counts = Simulation(SIZES["one of 33 MiB, seven of 100 kB"]).run(HOUR)
    assert counts.segments == 3 * HOUR, "small parts, the large part, small parts"


def test_without_the_limit_each_small_part_would_be_a_segment() -> None:
    assert Simulation(SIZES["100 kB"], upload_from=0).run(HOUR).segments == HOUR * TASKS
