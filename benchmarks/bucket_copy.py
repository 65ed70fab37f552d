"""Longest wait of an append while a commit copies an object in the bucket, before or during the commit's turn.

A Spark task has put one part into the bucket of a store. The part's segment id is lower than the id of a later segment
of its ledger. So the commit must copy the object under a new id. Ours is the commit of the project, which copies before
its run waits in the log's queue of appends. The base copies in the write stage of the log, where all appends of the
ledger wait. The project also does this, but only if the log gets another segment during the copy.

Meanwhile two clients append one entry every 20 ms, one to the ledger of the commit, one to another ledger. The ratio is
of the longest waits in the ledger of the commit, for parts of 1 GiB. The other lines are medians. `COPY_MIB` (128,1024)
has the sizes of the part.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

from benchmarks.append import entry_of
from benchmarks.bucket_store import bucket_bench
from benchmarks.harness import compare
from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.staging.direct_run import DirectRun
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.commits import CommitRun, PartRun, StagedPart
from pyspark_ledger.offload.direct.upload import DirectPlace, DirectUpload
from pyspark_ledger.offload.format.object_names import ObjectKey
from pyspark_ledger.offload.index_objects import direct_metadata
from pyspark_ledger.offload.offloader import ObjectStoreOffloader

MIB = 1024 * 1024
SIZES = [int(size) for size in os.environ.get("COPY_MIB", "128,1024").split(",")]
EVERY_S = 0.02
SMALL = b"".join(bytes(part) for part in entry_of(b"x" * 100, 1))


def put(opened: BucketStore, size: int) -> StagedPart:
    """Put a part whose id is lower than all ids of the log. No reservation has its key, so no commit deletes it."""
    offloader = opened.store._context.offloader()  # noqa: SLF001 — the bucket of the store
    assert isinstance(offloader, ObjectStoreOffloader)  # noqa: S101 — for the type checker
    upload = DirectUpload(PartRun("q", 1, 7, 1, 64 * MIB, 1), 0)
    upload.begin(DirectPlace(offloader.store, ObjectKey(uuid.uuid4(), 0), direct_metadata({}, 1)))
    for _ in range(size // (4 * MIB)):
        upload.write([os.urandom(4 * MIB - 4096)], 1)
    return upload.close()


@contextmanager
def in_the_write_stage() -> Iterator[None]:
    """Let the first check of a run pass, so that the second check, in the write stage, finds the low ids."""
    follows, passed = DirectRun.follows, [True]
    DirectRun.follows = lambda run, highest: bool(passed and passed.pop()) or follows(run, highest)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        DirectRun.follows = follows  # type: ignore[method-assign,assignment]


def longest_wait(log: ManagedLedger, stopped: threading.Event) -> float:
    """Append until the event is set. Return the longest time of an append."""
    longest = 0.0
    while not stopped.wait(EVERY_S):
        started_s = time.perf_counter()
        log.append([SMALL]).result()
        longest = max(longest, time.perf_counter() - started_s)
    return longest


class Commits:
    """Commits of one part, each with its own batch number, beside appends to both ledgers."""

    def __init__(self, opened: BucketStore, size: int) -> None:
        self._opened = opened
        self._part = put(opened, size)
        self._logs = [opened.store.create_ledger(CreateLedger(f"{name}-{size}")) for name in ("committed", "other")]
        self._batches = count(1)
        self.others: list[float] = []
        self.seconds: list[float] = []

    def ours(self) -> float:
        """Commit. Return the longest wait of an append to the same ledger."""
        stopped = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            same, other = (pool.submit(longest_wait, log, stopped) for log in self._logs)
            time.sleep(0.2)
            started_s = time.perf_counter()
            self._opened.store.commit(CommitRun(self._logs[0].name, "q", next(self._batches), 7, 1, [self._part]))
            self.seconds.append(time.perf_counter() - started_s)
            stopped.set()
        self.others.append(other.result())
        return same.result()

    def base(self) -> float:
        """Commit, with the copy in the write stage."""
        with in_the_write_stage():
            return self.ours()


def main() -> None:
    """Print the waits for each size. The last line is the ratio of the largest."""
    for size in SIZES:
        with bucket_bench() as bench, bench.open() as opened:
            commits = Commits(opened, size * MIB)
            compare(f"bucket_copy_{size}", commits.ours, commits.base, of_time=True)
            for side, first in (("before the queue", 0), ("in the write stage", 1)):
                took, others = statistics.median(commits.seconds[first::2]), statistics.median(commits.others[first::2])
                print(f"{size} MiB, copied {side}: commit {took:.2f} s, longest wait in another ledger {others:.3f} s")


if __name__ == "__main__":
    main()
