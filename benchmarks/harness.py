"""Comparison of two loops, the project's ("ours") and a base, in one run, as a ratio.

Rules
- The loops run in turns (ours, base, ours, base …), so a slow minute of the machine affects both.
- Each round yields a ratio. The result is the median of the ratios, so one bad round hardly changes it.
- The first round is a warm-up and is not counted.
- A ratio is of speeds: 1.0 is as fast as the base, more is faster. With `of_time` the ratio is of times, ours over the
  base: less is faster.
- Absolute numbers depend on the machine and are printed for information only.
- The last line of every comparison is `ratio <name> <value>`, for programs to read.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS_MIN = 7

# Does the work once. Returns the seconds to count, or None to count the whole call.
Loop = Callable[[], "float | None"]


@dataclass(frozen=True)
class Comparison:
    """Measurement: `rounds[i]` is (ours, base) in seconds."""

    name: str
    rounds: tuple[tuple[float, float], ...]
    of_time: bool = False

    @property
    def ratios(self) -> list[float]:
        """The ratio of each round."""
        return [ours / base if self.of_time else base / ours for ours, base in self.rounds]

    @property
    def ratio(self) -> float:
        """The median over the rounds: the speed of ours over the base's, or the time."""
        return statistics.median(self.ratios)


def compare(
    name: str, ours: Loop, base: Loop, rounds: int = ROUNDS_MIN, work_bytes: int = 0, *, of_time: bool = False
) -> Comparison:
    """Run both loops in turns, print a table and the ratio.

    - `name`: one word for the last line.
    - `ours`: does the work once, through the project.
    - `base`: does the same work without the project.
    - `rounds`: number of ratios for the median. Raises ValueError if it is less than `ROUNDS_MIN`.
    - `work_bytes`: bytes that one call moves, for the column of MB/s; 0 omits the column.
    - `of_time`: the ratio is of times, not of speeds.
    """
    if rounds < ROUNDS_MIN:
        message = f"{name}: {rounds} rounds, at least {ROUNDS_MIN} are needed for a median"
        raise ValueError(message)
    _seconds(ours)
    _seconds(base)
    comparison = Comparison(name, tuple((_seconds(ours), _seconds(base)) for _ in range(rounds)), of_time)
    _show(comparison, work_bytes)
    return comparison


def compare_with_floor(name: str, ours: Loop, base: Loop, floor: Loop, rounds: int = ROUNDS_MIN) -> None:
    """Run all loops in turns, and print the floor over the base, ours over the floor, and ours over the base.

    The floor is a loop that does the least that is possible in the same place.
    """
    loops = (ours, base, floor)
    for loop in loops:
        _seconds(loop)
    taken = [[_seconds(loop) for loop in loops] for _ in range(rounds)]
    for part, first, second in ((f"{name}_floor", 2, 1), (f"{name}_of_floor", 0, 2), (name, 0, 1)):
        _show(Comparison(part, tuple((times[first], times[second]) for times in taken)), 0)


def _seconds(loop: Loop) -> float:
    start = time.perf_counter()
    reported = loop()
    return time.perf_counter() - start if reported is None else reported


def _show(comparison: Comparison, work_bytes: int) -> None:
    """Print the table of rounds, and the line for programs."""
    print(f"\n{comparison.name}\n  {'round':>5} {'ours s':>9} {'base s':>9} {'ratio':>7}", flush=True)
    for number, ((ours, base), ratio) in enumerate(zip(comparison.rounds, comparison.ratios, strict=True), start=1):
        rate = f"{work_bytes / ours / 1e6:>9.0f} MB/s" if work_bytes else ""
        print(f"  {number:>5} {ours:>9.4f} {base:>9.4f} {ratio:>7.3f}{rate}")
    print(f"ratio {comparison.name} {comparison.ratio:.3f}", flush=True)
