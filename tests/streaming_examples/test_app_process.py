"""Goal: a killed application is gone with everything it started. Method: children, one in a new group."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming_examples.acts.app_process import AppProcess, session_members

PROGRAM = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
time.sleep(600)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], AppProcess]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(text: str) -> AppProcess:
        (tmp_path / "an_application.py").write_text(text, encoding="utf-8")
        return AppProcess("an_application", [], tmp_path / "log")

    return write


def test_kill_leaves_nothing(module: Callable[[str], AppProcess]) -> None:
    application = module(PROGRAM)
    until = time.monotonic() + 60
    while len(session_members(application.pid)) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    assert len(session_members(application.pid)) == 3
    application.require_alive()
    application.kill()
    assert session_members(application.pid) == []
    application.kill()


def test_an_application_that_ended_says_why(module: Callable[[str], AppProcess]) -> None:
    application = module("raise SystemExit('no flights today')")
    assert application.wait(30) == 1
    with pytest.raises(RuntimeError, match=r"status 1.*\n.*no flights today"):
        application.require_alive()
