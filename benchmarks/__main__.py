"""`python -m benchmarks [NAME]`: run one benchmark, or all, each in a process of its own.

A benchmark is a module of this folder with a `main()`. Its own process keeps what it allocates and what it
tunes away from the next. At the end every `ratio` line is said again, so that a run ends in its result.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def benchmarks() -> list[str]:
    """Names of the modules that have a `main()`."""
    modules = [path for path in sorted(FOLDER.glob("*.py")) if path.stem != "__main__"]
    return [path.stem for path in modules if "\ndef main(" in path.read_text(encoding="utf-8")]


def run(name: str) -> tuple[int, list[str]]:
    """Exit code of one benchmark and its `ratio` lines; its output is passed on as it comes."""
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    ratios = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=FOLDER.parent) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith("ratio "):
                ratios.append(line.strip())
    return process.returncode, ratios


def main(names: list[str]) -> int:
    """Run `names`, or all; the number of those that failed."""
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
