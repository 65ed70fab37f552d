"""One way of measuring: ours against a base, in one run, as a ratio.

Rules of this file. Two loops that are compared run in turns (ours, base, ours, base …), so that a slow
minute of the machine hits both. Each round yields a ratio; the result is their median, which one bad round
cannot move. The first round warms up and is not counted. Ratios are speeds: 1.0 is as fast as the base,
more is faster; where a benchmark states a ratio of times (`of_time`), it is ours over the base and less is
faster. An absolute number of one machine says little and is printed for the eye only.

The last line of every comparison is `ratio <name> <value>`, for programs to read.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS_MIN = 7

# Does the work once. Returns the seconds that count, or None when all of the call counts.
Loop = Callable[[], "float | None"]


@dataclass(frozen=True)
class Comparison:
    """What was measured: `rounds[i]` is (ours, base) in seconds."""

    name: str
    rounds: tuple[tuple[float, float], ...]
    of_time: bool = False

    @property
    def ratios(self) -> list[float]:
        """The ratio of each round."""
        return [ours / base if self.of_time else base / ours for ours, base in self.rounds]

    @property
    def ratio(self) -> float:
        """The median over the rounds: the speed of ours in units of the base, or its time."""
        return statistics.median(self.ratios)


def compare(
    name: str, ours: Loop, base: Loop, rounds: int = ROUNDS_MIN, work_bytes: int = 0, *, of_time: bool = False
) -> Comparison:
    """Run both loops in turns, print a table and the ratio.

    Args:
        name: one word; it stands in the last line.
        ours: does the work once, through the project.
        base: does the same work without it.
        rounds: how many ratios the median is taken from; at least `ROUNDS_MIN`.
        work_bytes: what one call moves, for the column of MB/s; 0 leaves it out.
        of_time: the ratio is that of the times, not that of the speeds.

    Raises:
        ValueError: fewer rounds than a median deserves.
    """
    if rounds < ROUNDS_MIN:
        message = f"{name}: {rounds} rounds, at least {ROUNDS_MIN} are needed for a median"
        raise ValueError(message)
    _seconds(ours)
    _seconds(base)
    comparison = Comparison(name, tuple((_seconds(ours), _seconds(base)) for _ in range(rounds)), of_time)
    _show(comparison, work_bytes)
    return comparison


def _seconds(loop: Loop) -> float:
    start = time.perf_counter()
    reported = loop()
    return time.perf_counter() - start if reported is None else reported


def _show(comparison: Comparison, work_bytes: int) -> None:
    """The table of rounds, and the line that programs read."""
    print(f"\n{comparison.name}\n  {'round':>5} {'ours s':>9} {'base s':>9} {'ratio':>7}", flush=True)
    for number, ((ours, base), ratio) in enumerate(zip(comparison.rounds, comparison.ratios, strict=True), start=1):
        rate = f"{work_bytes / ours / 1e6:>9.0f} MB/s" if work_bytes else ""
        print(f"  {number:>5} {ours:>9.4f} {base:>9.4f} {ratio:>7.3f}{rate}")
    print(f"ratio {comparison.name} {comparison.ratio:.3f}", flush=True)
