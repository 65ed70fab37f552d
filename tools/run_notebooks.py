"""Execute every notebook of streaming_examples/ with the built wheel; fail with the first bad cell.

    python tools/run_notebooks.py [WHEEL]         the wheel is the one in dist/ unless it is given

Each notebook runs in a new kernel, in an empty directory. The kernel imports the package from the wheel, not from the
checkout, and an added first cell checks this. No output is written into the notebooks.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from pyspark_ledger.ledger.client.connect import stop_broker
from tools.wheel_environment import ROOT, check_text, environment_variables, make_environment

CELL_SECONDS_MAX = 300


def execute(path: Path, python: Path) -> float:
    """Execute a notebook. Return its seconds. Raises the error of a cell, with the text of the cell."""
    start = time.monotonic()
    kernel = AsyncKernelManager()
    kernel.kernel_spec.argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(check_text(python.parents[1])))
    # The JVM may still write while the directory is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        empty, temporary = Path(directory, "empty"), Path(directory, "tmp")
        empty.mkdir()
        temporary.mkdir()
        client = NotebookClient(
            notebook, km=kernel, timeout=CELL_SECONDS_MAX, resources={"metadata": {"path": str(empty)}}
        )
        try:
            client.execute(env=environment_variables(temporary))
        finally:
            # Without this, the brokers would run on after their directory is deleted, until their idle time is over.
            for store in temporary.glob("*/store"):
                stop_broker(store)
    return time.monotonic() - start


def main() -> int:
    """Execute all notebooks, and print their number even if there is none."""
    wheel = Path(sys.argv[1]) if len(sys.argv) > 1 else next((ROOT / "dist").glob("*.whl"))
    paths = sorted((ROOT / "streaming_examples").glob("*.ipynb"))
    with tempfile.TemporaryDirectory() as directory:
        python = make_environment(wheel, Path(directory))
        for path in paths:
            print(f"{path.relative_to(ROOT)}: executed in {execute(path, python):.0f} s", flush=True)
    print(f"{len(paths)} notebooks executed with {wheel.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
