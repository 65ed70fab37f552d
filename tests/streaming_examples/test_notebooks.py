"""Goal: each notebook is its script, is listed, and needs the wheel only. Method: compare bytes and names; run scripts
in an environment that has the wheel and not the checkout.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pyspark_ledger.ledger.client.connect import stop_broker
from tools.wheel_environment import ROOT as CHECKOUT
from tools.wheel_environment import build_wheel, check_text, environment_variables, make_environment

ROOT = Path(__file__).resolve().parents[2]
# How every notebook gets its session: `session` returns a running one.
SESSION = "spark = session("
INSTALL = "# Databricks notebook source\n# MAGIC %pip install -q 'pyspark-ledger[demo]'\n\n# COMMAND ----------\n"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_notebooks", ROOT / "tools" / "make_notebooks.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


tool = load_tool()


def test_there_is_a_notebook() -> None:
    assert tool.scripts()


@pytest.mark.parametrize("script", tool.scripts(), ids=lambda path: path.stem)
def test_the_notebook_is_current(script: Path) -> None:
    made = tool.notebook_text(script.read_text(encoding="utf-8"))
    committed = script.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert committed == made, "run: .venv/bin/python tools/make_notebooks.py"


@pytest.mark.parametrize("script", tool.scripts(), ids=lambda path: path.stem)
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_readers_are_told_of_the_notebook(script: Path, page: str) -> None:
    assert f"streaming_examples/{script.stem}.ipynb)" in (ROOT / page).read_text(encoding="utf-8")


def test_cells_are_text_or_code() -> None:
    source = "# Databricks notebook source\n# MAGIC %md\n# MAGIC # Title\n# MAGIC\n# MAGIC words\n\n"
    source += "# COMMAND ----------\n\nx = 1  # a comment stays\n"
    cells = json.loads(tool.notebook_text(source))["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code"]
    assert ["".join(cell["source"]) for cell in cells] == ["# Title\n\nwords", "x = 1  # a comment stays"]


def test_a_pip_cell_installs_only_what_is_missing() -> None:
    source = "# Databricks notebook source\n# MAGIC %pip install -q 'a[b]'\n\n# COMMAND ----------\n\nx = 1\n"
    cells = json.loads(tool.notebook_text(source))["cells"]
    lines = "".join(cells[0]["source"]).splitlines()
    assert [cell["cell_type"] for cell in cells] == ["code", "code"]
    assert lines[-2].startswith("if not all(map(find_spec, ")
    assert lines[-1] == "    %pip install -q 'a[b]'"


@pytest.mark.parametrize("script", tool.scripts(), ids=lambda path: path.stem)
def test_a_notebook_installs_the_package_first(script: Path) -> None:
    assert script.read_text(encoding="utf-8").startswith(INSTALL)


@pytest.mark.parametrize("script", tool.scripts(), ids=lambda path: path.stem)
def test_a_notebook_imports_nothing_of_the_checkout(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    tops = {name.partition(".")[0] for name in imported}
    assert not tops & {path.name for path in ROOT.iterdir() if path.is_dir()} - {"pyspark_ledger"}
    assert "streaming_examples" not in source


@pytest.mark.parametrize("script", tool.scripts(), ids=lambda path: path.stem)
def test_a_notebook_takes_the_active_session_and_never_stops_it(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    assert source.count("session(") == source.count(SESSION) + source.count("session(delta=True)")
    assert ".stop()" not in source


@pytest.fixture(scope="module")
def wheel_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter that has the built wheel and cannot import the checkout."""
    assert CHECKOUT == ROOT
    return make_environment(build_wheel(tmp_path_factory.mktemp("dist")), tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "tmp"
    directory.mkdir()
    yield directory
    for store in directory.glob("*/store"):
        stop_broker(store)


def run_script(name: str, python: Path, temporary: Path, before: str = "", after: str = "") -> str:
    """Run a notebook's script in an empty directory, between two pieces of code. Return its output."""
    empty = temporary.parent / "empty"
    empty.mkdir()
    script = ROOT / "streaming_examples" / name
    program = f"{check_text(python.parents[1])}{before}\nimport runpy\nnames = runpy.run_path({str(script)!r})\n{after}"
    done = subprocess.run(
        [str(python), "-c", program],
        cwd=empty,
        env=environment_variables(temporary),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.sessions
@pytest.mark.timeout(300)
def test_a_script_without_spark_runs_with_the_wheel_only(wheel_python: Path, temporary: Path) -> None:
    assert "all 336,776 flights are acknowledged" in run_script("06_cursors.py", wheel_python, temporary)


@pytest.mark.sessions
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_script_runs_on_the_session_that_is_there(wheel_python: Path, temporary: Path) -> None:
    before = "import os, sys\nfrom pyspark.sql import SparkSession\nos.environ['PYSPARK_PYTHON'] = sys.executable\n"
    before += "mine = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false').getOrCreate()"
    after = "assert names['spark'] is mine\nprint('rows:', mine.read.format('ledger').load('flights').count())"
    said = run_script("01_flights.py", wheel_python, temporary, before, after)
    assert "January: 27004 rows read" in said
    assert "February: 24951 rows read" in said
    assert "rows: 51955" in said


def test_another_file_is_refused() -> None:
    with pytest.raises(ValueError, match="Databricks notebook source"):
        tool.notebook_text("print(1)\n")
