"""Start of a broker on a store of 10,000 managed ledgers, against a start on a store of 10.

Both stores are real: each ledger was created and appended to. A killed broker left the segments of the last 500 ledgers
open. Stores are made in memory, where a sync costs nothing, and then copied to the disk. A start is measured from the
command of the process to its first answer. `open_many_store` is the time to open and close the store in this process.
The ratios are of times.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.append import entry_of
from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir
from benchmarks.recording_broker import connected
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store

MANY, FEW = 10_000, 10
_OPENED_AT_ONCE = 500


def fill(directory: Path, ledgers: int) -> None:
    """Make a store with `ledgers` ledgers of one entry. The last ledgers are left open."""
    entry = b"".join(bytes(part) for part in entry_of(b"x" * 100, 1))
    for first in range(0, ledgers, _OPENED_AT_ONCE):
        last = first + _OPENED_AT_ONCE >= ledgers
        store = Store.open(directory, settings=Settings(), clock=system_clock_ms, create=True)
        numbers = range(first, min(first + _OPENED_AT_ONCE, ledgers))

        def append(number: int, store: Store = store) -> None:
            store.create_ledger(CreateLedger(f"ledger-{number}")).append([entry]).result()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(append, numbers))
        if last:
            os._exit(0)
        store.close()


def made(folder: Path, ledgers: int) -> Path:
    """Make a store of `ledgers` ledgers in memory, and copy it to `folder`. Return the path of the copy."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        store = Path(memory) / "store"
        subprocess.run([sys.executable, "-m", "benchmarks.open_many", str(store), str(ledgers)], check=True)
        shutil.copytree(store, folder / f"store-{ledgers}", ignore=shutil.ignore_patterns("lock*"))
    path = folder / f"store-{ledgers}"
    Store.open(path, settings=Settings(), clock=system_clock_ms, take_over=True).close()
    os.sync()
    return path


def start_loop(store: Path) -> Loop:
    """Return a loop that starts a broker and requests the names of ledgers."""
    command = [sys.executable, "-m", "pyspark_ledger.ledger.broker.main", "--store", str(store), "--idle", "0"]

    def loop() -> float:
        start = time.perf_counter()
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            connected(store, process).close()
            return time.perf_counter() - start
        finally:
            process.terminate()
            process.wait()

    return loop


def open_loop(store: Path) -> Loop:
    """Return a loop that opens and closes the store in this process."""

    def loop() -> None:
        Store.open(store, settings=Settings(), clock=system_clock_ms).close()

    return loop


def main() -> None:
    """Measure the store alone, then the process, which is the result."""
    if len(sys.argv) == 3:
        fill(Path(sys.argv[1]), int(sys.argv[2]))
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        many, few = made(Path(name), MANY), made(Path(name), FEW)
        compare("open_many_store", open_loop(many), open_loop(few), of_time=True)
        compare("open_many", start_loop(many), start_loop(few), of_time=True)


if __name__ == "__main__":
    main()
