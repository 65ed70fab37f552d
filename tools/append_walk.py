"""Walk of one `Ledger.append`: the product files that it enters, and the hand-overs between threads.

    python -m tools.append_walk [--calls]     prints the numbers, each thread with its files and calls

Method: caller and broker run in one process, as in the tests. A profile function (`sys.setprofile`) sees every call of
a Python function in every thread. A row is appended several times. The walk is what each of these appends does between
its call and its answer, so that background threads and first calls do not count.

- A file is *entered* if one of its functions is called. An entered file is *passed* if it calls a function of another
  file, or if at least three of its functions are called. A clock or a checksum is only asked, so it does not count.
- A *hand-over* passes the append to another thread or process. Each thread of the walk passes it on once, and the last
  thread passes the answer back to the caller. So there are as many hand-overs as threads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tests.rigs.broker_thread import served

ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = tuple(f"{ROOT / folder}/" for folder in ("ledger", "connector", "offload", "pyspark_ledger"))
_WARM_UP, _APPENDS = 20, 30
_FUNCTIONS_OF_A_STAGE = 3


class Step(NamedTuple):
    """Call of a function of the product by a thread. `caller` is the file of the calling function, or empty."""

    thread: str
    file: str
    function: str
    caller: str


class Walk(NamedTuple):
    """Steps that all measured appends have in common, in the order of the last append."""

    steps: list[Step]

    @property
    def entered(self) -> list[str]:
        """The entered files, in the order of their first call."""
        return list(dict.fromkeys(step.file for step in self.steps))

    @property
    def passed(self) -> list[str]:
        """The passed files, in the order of their first call."""
        callers = {step.caller for step in self.steps if step.caller != step.file}
        functions = {file: {step.function for step in self.steps if step.file == file} for file in self.entered}
        return [file for file in self.entered if file in callers or len(functions[file]) >= _FUNCTIONS_OF_A_STAGE]

    @property
    def threads(self) -> list[str]:
        """The threads, in the order of their first call."""
        return list(dict.fromkeys(step.thread for step in self.steps))


class _Recorder:
    """Profile function of all threads that start after it was installed. It keeps steps while it is recording."""

    def __init__(self) -> None:
        self.steps: list[Step] | None = None
        self._names: dict[str, str] = {}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        steps = self.steps
        if event != "call" or steps is None:
            return
        file, back = self._file(frame), frame.f_back
        if not file:
            return
        while back is not None and not self._file(back):
            back = back.f_back
        caller = "" if back is None else self._file(back)
        steps.append(Step(threading.current_thread().name, file, frame.f_code.co_qualname, caller))

    def _file(self, frame: FrameType) -> str:
        """Return the file of a frame, relative to the project. Empty for a file that is not of the product."""
        name = frame.f_code.co_filename
        if name not in self._names:
            path = str(Path(name).resolve())
            self._names[name] = str(Path(path).relative_to(ROOT)) if path.startswith(_FOLDERS) else ""
        return self._names[name]


@contextmanager
def _installed(recorder: _Recorder) -> Iterator[None]:
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walk_of(path: Path) -> Walk:
    """Return the walk of an append of one row to a new store at `path`."""
    recorder = _Recorder()
    appends: list[list[Step]] = []
    with _installed(recorder), served(path) as store:
        ledger = store.ledger("orders")
        for number in range(_WARM_UP + _APPENDS):
            recorder.steps = steps = list[Step]()
            ledger.append([{"id": number}])
            recorder.steps = None
            appends.append(steps)
    measured = appends[_WARM_UP:]
    common = set(measured[0]).intersection(*measured)
    return Walk([step for step in measured[-1] if step in common])


def main() -> int:
    """Print the walk. Return the exit status of the process."""
    parser = argparse.ArgumentParser(description="print the files and hand-overs of one append")
    parser.add_argument("--calls", action="store_true", help="also print each call")
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as directory:
        walk = walk_of(Path(directory) / "store")
    passed = walk.passed
    for thread in walk.threads:
        steps = [step for step in walk.steps if step.thread == thread]
        print(f"{thread}: {len(steps)} calls")
        for file in dict.fromkeys(step.file for step in steps):
            called = [step.function for step in steps if step.file == file]
            print(f"  {'*' if file in passed else ' '} {file}: {', '.join(called) if calls else len(called)}")
    counts = f"{len(passed)} files passed (*) of {len(walk.entered)} entered, {len(walk.steps)} calls"
    print(f"{counts}, {len(walk.threads)} hand-overs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
