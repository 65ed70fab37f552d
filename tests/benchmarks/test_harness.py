"""Goal: a ratio is what it says. Method: loops that report known seconds, and the order in which they ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness import compare
from benchmarks.raw_disk import raw_append


def scripted(calls: list[str], who: str, seconds: list[float]) -> Callable[[], float]:
    """A loop that notes its turn and reports the next of `seconds`."""
    remaining = iter(seconds)

    def loop() -> float:
        calls.append(who)
        return next(remaining)

    return loop


def test_the_ratio_is_the_median_of_rounds_run_in_turns(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []
    ours = scripted(calls, "ours", [99.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 50.0])
    base = scripted(calls, "base", [0.01, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    comparison = compare("half", ours, base)
    assert calls == ["ours", "base"] * 8, "a warm-up round and seven counted ones, in turns"
    assert comparison.ratio == 0.5, "neither the warm-up nor one bad round moves it"
    assert capsys.readouterr().out.splitlines()[-1] == "ratio half 0.500"


def test_a_ratio_of_times_is_the_other_way_round(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("double", lambda: 2.0, lambda: 1.0, of_time=True).ratio == 2.0
    assert capsys.readouterr().out.splitlines()[-1] == "ratio double 2.000"


def test_too_few_rounds_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="hasty: 3 rounds, at least 7"):
        compare("hasty", lambda: 1.0, lambda: 1.0, rounds=3)


def test_a_loop_without_a_report_is_timed() -> None:
    comparison = compare("idle", lambda: None, lambda: None)
    assert all(ours > 0 and base > 0 for ours, base in comparison.rounds)


def test_the_raw_loop_leaves_nothing_behind(tmp_path: Path) -> None:
    assert raw_append(tmp_path, [4096, 100, 4096]) > 0
    assert list(tmp_path.iterdir()) == []
