"""The same work on other versions of Spark: their environments, and processes that work in turns.

`make test-sparks SPARKS=spark413` makes the environment `.venv-spark413`. A benchmark on several versions starts a
process in each environment. A process has its own session, and does its work once for each line that it gets. All
processes use the same Java.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

ROOT = Path(__file__).parent.parent


def python_of(lock: str) -> str:
    """Return the interpreter of the environment of `requirements/<lock>.lock`. Raises FileNotFoundError without one."""
    python = ROOT / f".venv-{lock}" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python} is missing; make test-sparks SPARKS={lock}")
    return str(python)


class Turns:
    """A process that repeats one piece of work, started as `python -m MODULE WORDS…`."""

    def __init__(self, python: str, module: str, *words: str) -> None:
        command = [python, "-m", module, *words]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )
        self._input, self._output = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)

    def take(self) -> float:
        """Let the process do its work once. Return the seconds that it reports."""
        print("go", file=self._input, flush=True)
        for line in self._output:
            if line.startswith("took "):
                return float(line.split()[1])
        raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")

    def end(self) -> None:
        """End the process after its input, and wait for it."""
        self._input.close()
        self._process.wait()


def answer_turns(work: Callable[[], float]) -> None:
    """Do the work once for each line of the input, and print its seconds: what a process of `Turns` does."""
    for _ in sys.stdin:
        print(f"took {work()}", flush=True)
