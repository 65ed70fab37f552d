"""Execute every notebook of streaming_examples/, each in its own directory; fail with the first bad cell.

The notebooks themselves are left as they are: outputs are not written back.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from streaming_examples.broker_control import stop_broker_of

ROOT = Path(__file__).resolve().parent.parent
CELL_SECONDS_MAX = 300


def execute(path: Path) -> float:
    """Seconds that the notebook took; an error in a cell is raised with the cell's text."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        notebook = nbformat.read(path, as_version=4)
        try:
            NotebookClient(
                notebook,
                timeout=CELL_SECONDS_MAX,
                kernel_name="python3",
                resources={"metadata": {"path": directory}},
            ).execute()
        finally:
            # The broker of a store in a directory that goes away would wait for work until it is idle long enough.
            stop_broker_of(Path(directory) / "ledger-store")
    return time.monotonic() - start


def main() -> int:
    """Run them all; how many there were is said even when there were none."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    paths = sorted((ROOT / "streaming_examples").rglob("*.ipynb"))
    for path in paths:
        print(f"{path.relative_to(ROOT)}: executed in {execute(path):.0f} s", flush=True)
    print(f"{len(paths)} notebooks executed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
