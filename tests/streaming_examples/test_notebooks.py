"""Goal: each notebook is its script, without outputs, and listed. Method: make it again, compare bytes; read lists."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


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


def test_another_file_is_refused() -> None:
    with pytest.raises(ValueError, match="Databricks notebook source"):
        tool.notebook_text("print(1)\n")
