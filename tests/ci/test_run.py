"""Goal: CI is never green when something failed. Method: run .ci/run over a Makefile of chosen steps."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / ".ci" / "run"
GOOD = "=== 3 passed, 1 skipped in 61.02s (0:01:01) ==="
THOROUGH, DOCS, SESSIONS = 5, 2, 4
OTHER_STEPS = 4  # set-up, check, site, and one of demo, notebooks and wheels


def run_with(directory: Path, **steps: str) -> tuple[int, str]:
    """Exit code and last line of .ci/run when `steps` are the shell lines of the targets named."""
    (directory / ".ci").mkdir()
    shutil.copy(RUN, directory / ".ci" / "run")
    targets = [
        "setup",
        "check",
        "docs",
        "test",
        "test-thorough",
        "test-docs",
        "test-tables",
        "test-faults",
        "test-sessions",
        "demo",
        "notebooks",
        "smoke",
        "smoke-spark41",
        "smoke-lowest",
    ]
    counted = {
        "test": GOOD,
        "test_docs": f"{DOCS} passed in 9.00s",
        "test_thorough": f"{THOROUGH} passed in 2.00s",
        "test_faults": "1 passed in 2.00s",
        "test_sessions": f"{SESSIONS} passed in 2.00s",
    }
    said = {name: f"echo '{line}'" for name, line in counted.items()} | steps
    lines = [f"{target}:\n\t@{said.get(target.replace('-', '_'), 'true')}\n" for target in targets]
    (directory / "Makefile").write_text("".join(lines), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(
        [str(directory / ".ci" / "run")], capture_output=True, text=True, env=environment, check=False
    )
    return done.returncode, done.stdout.splitlines()[-1]


def test_tests_and_steps_are_counted(tmp_path: Path) -> None:
    assert run_with(tmp_path) == (0, f"{3 + THOROUGH + DOCS + SESSIONS + 1 + OTHER_STEPS} passed, 0 failed")


def test_failures_and_errors_of_tests_are_counted(tmp_path: Path) -> None:
    failing = "echo '= 2 failed, 5 passed, 1 error in 9.10s ='; exit 1"
    assert run_with(tmp_path, test=failing) == (
        1,
        f"{5 + THOROUGH + DOCS + SESSIONS + 1 + OTHER_STEPS} passed, 3 failed",
    )


@pytest.mark.parametrize("step", ["check", "demo", "notebooks", "smoke", "smoke_spark41", "smoke_lowest"])
def test_any_step_can_fail_the_run_and_the_rest_still_runs(tmp_path: Path, step: str) -> None:
    assert run_with(tmp_path, **{step: "exit 3"}) == (
        1,
        f"{3 + THOROUGH + DOCS + SESSIONS + 1 + OTHER_STEPS - 1} passed, 1 failed",
    )


def test_a_run_of_no_tests_at_all_is_a_failure(tmp_path: Path) -> None:
    nothing = "echo '= no tests ran in 0.02s ='; exit 5"
    counted = 3 + THOROUGH + DOCS + SESSIONS + OTHER_STEPS
    assert run_with(tmp_path, test_faults=nothing) == (1, f"{counted} passed, 1 failed")


def test_without_an_environment_nothing_else_is_tried(tmp_path: Path) -> None:
    assert run_with(tmp_path, setup="exit 1") == (1, "0 passed, 1 failed")
