"""Goal: what a platform forbids is said in words. Method: real processes and sockets, and what a task may answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ledger.connector.doctor import platform
from pyspark_ledger.connector.doctor.platform import check_process, compare, probe_platform

pytestmark = pytest.mark.timeout(60)


def test_a_process_that_may_not_start_or_fails_is_a_problem(tmp_path: Path) -> None:
    assert check_process().state == "ok"
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o600)
    for command, told in ((str(program),), "Permission denied"), (("sh", "-c", "exit 3"), "status 3"):
        found = check_process(command)
        assert (found.state, told in found.found) == ("problem", True), found
        assert "ledger serve" in found.do


@pytest.mark.thorough
def test_a_process_that_hangs_is_ended_in_time() -> None:
    found = check_process(("sleep", "60"))
    assert (found.state, "timed out" in found.found) == ("problem", True), found


def test_what_a_task_finds_otherwise_is_a_problem_with_its_remedy() -> None:
    assert compare("python", "3.11", "3.11", "Set it").lines().__next__() == "ok      python: 3.11"
    found = compare("python", "3.11", "3.12", "Set it")
    assert [*found.lines()] == ["problem python: 3.12, expected 3.11", "        → Set it"]


def test_a_listener_hears_who_connects() -> None:
    with platform._listener("localhost") as (port, heard):
        platform.socket.create_connection(("localhost", port), 5).close()
        assert heard.wait(10)
    with pytest.raises(OSError, match="Cannot assign"), platform._listener("203.0.113.9"):  # nobody has this address
        pass


def test_a_report_without_spark_says_why(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pyspark'] = None; from pyspark_ledger.connector.doctor.platform import "
    code += "probe_platform; print(probe_platform())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.startswith("ok      platform: no session, pyspark-ledger ")
    assert "warning task: there is no session, so no task was tested: ModuleNotFoundError" in done.stdout


def test_a_session_that_fails_ends_in_a_report() -> None:
    found = {one.check: one for one in probe_platform(object()).findings}  # type: ignore[arg-type]
    assert found["task"].state == "warning"
    assert "AttributeError" in found["task"].found
