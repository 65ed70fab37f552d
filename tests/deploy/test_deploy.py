"""Goal: the files of `deploy/` are valid, and name commands and options that exist.

Method: each file is read by its own parser or program. The notebook runs in an empty directory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


@pytest.mark.parametrize("script", sorted(path.name for path in DEPLOY.rglob("*.sh")))
def test_shell_scripts_are_valid_and_executable(script: str) -> None:
    (path,) = DEPLOY.rglob(script)
    assert os.access(path, os.X_OK)
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_json_files_are_valid() -> None:
    found = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in DEPLOY.rglob("*.json")}
    assert found["step.json"][0]["Args"][0] == "spark-submit"
    assert "#environment" in found["serverless-job.json"]["sparkSubmit"]["sparkSubmitParameters"]


def test_unit_and_container_start_the_broker_with_known_options() -> None:
    unit = (DEPLOY / "systemd" / "ledger-broker.service").read_text(encoding="utf-8")
    container = (DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8")
    (start,) = re.findall(r"^ExecStart=\S+/ledger (.*)$", unit, re.MULTILINE)
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", container, re.MULTILINE)
    words = json.loads(entry)
    assert words[0] == "ledger"
    assert start.split() == words[1:]
    help_text = CliRunner().invoke(app, [words[1], "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert all(word in help_text for word in words if word.startswith("--"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "ledger-broker.service").read_text(encoding="utf-8")
    unit = tmp_path / "ledger-broker.service"
    unit.write_text(text.replace("/opt/ledger/bin/ledger", "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "ledger-broker" not in done.stderr


@pytest.mark.sessions
@pytest.mark.slow
@pytest.mark.spark
def test_the_notebook_of_the_bundle_runs_in_an_empty_directory(tmp_path: Path) -> None:
    notebook = DEPLOY / "databricks" / "ledger_example.py"
    done = subprocess.run(
        [sys.executable, str(notebook)], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "copied: 100000" in done.stdout
    assert re.search(r"ok +driver's address: .* reached", done.stdout)
