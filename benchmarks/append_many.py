"""Durable appends to 100 ledgers at once, against the same bytes to one ledger with equally large syncs.

Ours has 100 ledgers in one store, and one append of 64 KiB in flight to each. The base has one ledger and 100 such
appends in flight. When all are acknowledged, the base makes the next 100 appends. So a sync has about 6.25 MiB. Both
use the store in this process, so they differ only in the number of files and syncs. Memory is warmed and page cache is
dropped as in `benchmarks.raw_disk`.

The floor writes the same bytes to 100 files and syncs each file, with eight threads, and does nothing else. The figures
depend on the device: on the time of one sync, and on the number of syncs that the device does at once.
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from benchmarks.append import entry_of
from benchmarks.harness import Loop, compare_with_floor
from benchmarks.raw_disk import bench_dir, drop_page_cache, warm_memory
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store

LEDGERS, SIZE, APPENDS = 100, 64 * 1024, 20  # per ledger and round
SYNC_THREADS = 8
_TOTAL = LEDGERS * SIZE * APPENDS


def many_loop(ledgers: list[ManagedLedger], entry: bytes, folder: Path) -> Loop:
    """Return a loop with one append in flight to each ledger."""

    def loop() -> float:
        warm_memory(_TOTAL)
        answered: SimpleQueue[tuple[int, Future[Position]]] = SimpleQueue()

        def send(number: int) -> None:
            future = ledgers[number].append([entry])
            future.add_done_callback(lambda done: answered.put((number, done)))

        left = [APPENDS] * LEDGERS
        start = time.perf_counter()
        for number in range(LEDGERS):
            send(number)
        for _ in range(LEDGERS * APPENDS):
            number, future = answered.get()
            future.result()
            left[number] -= 1
            if left[number]:
                send(number)
        seconds = time.perf_counter() - start
        drop_page_cache(folder)
        return seconds

    return loop


def one_loop(ledger: ManagedLedger, entry: bytes, folder: Path) -> Loop:
    """Return a loop with the same number of appends in flight to one ledger."""

    def loop() -> float:
        warm_memory(_TOTAL)
        start = time.perf_counter()
        for _ in range(APPENDS):
            for future in [ledger.append([entry]) for _ in range(LEDGERS)]:
                future.result()
        seconds = time.perf_counter() - start
        drop_page_cache(folder)
        return seconds

    return loop


def floor_loop(folder: Path, threads: int) -> Loop:
    """Return a loop that writes 64 KiB to each of 100 files and syncs each, as often as a round of ours."""
    data = os.urandom(SIZE)

    def append(fd: int) -> None:
        os.write(fd, data)
        os.fdatasync(fd)

    def loop() -> float:
        warm_memory(_TOTAL)
        files = [os.open(folder / f"{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for number in range(LEDGERS)]
        start = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(APPENDS):
                for done in [pool.submit(append, fd) for fd in files]:
                    done.result()
        seconds = time.perf_counter() - start
        for fd in files:
            os.close(fd)
        drop_page_cache(folder)
        return seconds

    return loop


def main() -> None:
    """Compare both on one store, and with the floor."""
    entry = b"".join(bytes(part) for part in entry_of(os.urandom(SIZE - 64), 7))
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        store = Store.open(Path(name) / "store", settings=Settings(), clock=system_clock_ms, create=True)
        many = [store.create_ledger(CreateLedger(f"ledger-{number}")) for number in range(LEDGERS)]
        one = store.create_ledger(CreateLedger("one"))
        folder = store.path / "ledgers"
        (bare := Path(name) / "bare").mkdir()
        loops = many_loop(many, entry, folder), one_loop(one, entry, folder), floor_loop(bare, SYNC_THREADS)
        compare_with_floor("append_many", *loops, 9)
        store.close()


if __name__ == "__main__":
    main()
