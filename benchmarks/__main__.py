"""`python -m benchmarks [NAME]`: run one benchmark, or all, each in a process of its own.

A benchmark is a module of this folder with a `main()`. A process of its own isolates its memory and settings from the
next benchmark. At the end all `ratio` lines, which are the results, are printed again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def benchmarks() -> list[str]:
    """Return the names of the modules that have a `main()`."""
    modules = [path for path in sorted(FOLDER.glob("*.py")) if path.stem != "__main__"]
    return [path.stem for path in modules if "\ndef main(" in path.read_text(encoding="utf-8")]


def run(name: str) -> tuple[int, list[str]]:
    """Run one benchmark and pass its output on. Return its exit code and its `ratio` lines."""
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    ratios = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=FOLDER.parent) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith("ratio "):
                ratios.append(line.strip())
    return process.returncode, ratios


def main(names: list[str]) -> int:
    """Run `names`, or all. Return the number of failed benchmarks."""
    unknown = set(names) - set(benchmarks())
    if unknown:
        print(f"no benchmark {sorted(unknown)}; there are {benchmarks()}", file=sys.stderr)
        return 2
    failed, ratios = [], []
    for name in names or benchmarks():
        print(f"== {name}", flush=True)
        code, found = run(name)
        ratios += found
        if code:
            failed.append(name)
    print("\n" + "\n".join(ratios))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
