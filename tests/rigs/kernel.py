"""Functions that execute cells in a real Jupyter kernel with this interpreter and this checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient


def run_cells(directory: Path, *cells: str, timeout: int = 120) -> list[list[dict[str, Any]]]:
    """Execute cells in a new kernel. Return each cell's outputs at the end; an updated picture replaces the earlier."""
    kernel = AsyncKernelManager()
    kernel.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, km=kernel, timeout=timeout, resources={"metadata": {"path": str(directory)}}).execute()
    return [list(cell.outputs) for cell in notebook.cells]


def html_of(outputs: list[dict[str, Any]]) -> list[str]:
    """Return the pictures among the outputs of a cell."""
    return [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]


def printed(outputs: list[dict[str, Any]]) -> str:
    """Return the printed text of a cell."""
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")
