"""Recovery of a segment that a killed broker left open, against one read of the segment.

Ours opens a ledger whose only segment has 1 GiB and was left open by a killed process. Recovery finds the end,
compares the entries with the sidecar, seals the segment durably and updates its record. The base reads the same file
with `preadv` into one buffer of 1 MiB, which is the fastest method. For both, the file is in the page cache, and all of
its pages are also on the disk.

Before each round, untimed, files and metadata are restored to the state of the killed process. The memory for an index
is used once before (see `benchmarks.raw_disk`). The ratio is of times. The result is the higher ratio of two cases:
entries of 1 KiB, and entries of 1 MiB.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.append import entry_of
from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.segment.format import HEADER_BYTES
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store

SIZES = {"1KiB": 1024, "1MiB": 1024 * 1024}
TOTAL_BYTES = 1024 * 1024 * 1024
_GROUP_BYTES = 4 * 1024 * 1024
_INDEX_BYTES = 64 * 1024 * 1024
_READ_BYTES = 1024 * 1024
_BLOCK_BYTES = 64 * 1024 * 1024
_NAME = canonical_name("bench")
_SETTINGS = Settings(
    ledgerBlockSizeBytes=_BLOCK_BYTES,
    managedLedgerMaxEntriesPerLedger=2**31 - 1,
    managedLedgerMaxSizePerLedgerMbytes=4096,
)


def fill(directory: Path, size: int) -> None:
    """Append until the segment has 1 GiB, all of it acknowledged, then exit without closing the store."""
    store = Store.open(directory, settings=_SETTINGS, clock=system_clock_ms, create=True)
    ledger = store.create_ledger(CreateLedger(_NAME))
    group = max(1, _GROUP_BYTES // size)
    entry = b"".join(bytes(part) for part in entry_of(os.urandom(size - 64), 7))
    for _ in range(TOTAL_BYTES // size // group):
        ledger.append([entry] * group).result()
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Left:
    """State of the killed process, to be restored: copies of small files, and size and block headers of the data."""

    store: Path
    copies: Path
    data: Path
    size: int
    heads: tuple[bytes, ...]

    @classmethod
    def of(cls, store: Path, copies: Path) -> Left:
        """Record the current state of `store`."""
        copies.mkdir()
        for path in (*store.glob("metadata.sqlite*"), *store.glob("metadata.commit"), *store.glob("ledgers/*.index")):
            shutil.copyfile(path, copies / path.name)
        (data,) = store.glob("ledgers/*.ledger")
        size = data.stat().st_size
        with data.open("rb") as file:
            heads = tuple(os.pread(file.fileno(), HEADER_BYTES, at) for at in range(0, size, _BLOCK_BYTES))
        return cls(store, copies, data, size, heads)

    def restore(self) -> None:
        """Restore the state and fsync it."""
        for path in (*self.store.glob("metadata.sqlite*"), *self.store.glob("metadata.commit")):
            path.unlink()
        for copy in self.copies.iterdir():
            folder = self.store / "ledgers" if copy.suffix == ".index" else self.store
            shutil.copyfile(copy, folder / copy.name)
        with self.data.open("r+b") as file:
            start = self.data.stat().st_size
            if start < self.size:
                os.posix_fallocate(file.fileno(), start, self.size - start)
            for number, head in enumerate(self.heads):
                os.pwrite(file.fileno(), head, number * _BLOCK_BYTES)
        os.sync()


def open_loop(left: Left, entries: int) -> Loop:
    """Return a loop that opens the ledger and returns the seconds of the opening alone."""

    def loop() -> float:
        left.restore()
        read(left.data)
        store = Store.open(left.store, settings=_SETTINGS, clock=system_clock_ms)
        try:
            np.ones(_INDEX_BYTES, dtype=np.uint8)
            start = time.perf_counter()
            ledger = store.ledger(_NAME)
            seconds = time.perf_counter() - start
            if ledger.snapshot.end.entry_id != entries:
                message = f"{left.data}: recovered up to {ledger.snapshot.end}, {entries} entries were written"
                raise RuntimeError(message)
        finally:
            store.close()
        return seconds

    return loop


def read(path: Path) -> None:
    """Read a file once, into one buffer."""
    buffer = memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) as file:
        at = 0
        while got := os.preadv(file.fileno(), [buffer], at):
            at += got


def measure(label: str, size: int, folder: Path) -> float:
    """Return the ratio of one entry size."""
    store = folder / f"store-{label}"
    command = [sys.executable, "-m", "benchmarks.recovery", str(store), str(size)]
    code = subprocess.run(command, check=False).returncode
    if code != -signal.SIGKILL:
        message = f"{command} ended with {code}, it should have been killed"
        raise RuntimeError(message)
    left = Left.of(store, folder / f"copies-{label}")
    data = left.data
    ratio = compare(
        f"recovery_{label}",
        open_loop(left, TOTAL_BYTES // size),
        lambda: read(data),
        work_bytes=TOTAL_BYTES,
        of_time=True,
    ).ratio
    shutil.rmtree(store)
    return ratio


def main() -> None:
    """Measure both sizes. The last line is the higher ratio."""
    if len(sys.argv) == 3:
        fill(Path(sys.argv[1]), int(sys.argv[2]))
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        ratios = [measure(label, size, Path(name)) for label, size in SIZES.items()]
    print(f"ratio recovery {max(ratios):.3f}")


if __name__ == "__main__":
    main()
