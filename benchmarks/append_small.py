"""Durable messages of 1 KiB through the producer that gathers them into batches, against the disk alone.

Ours sends the messages as an Arrow column (`send_column`) and is done when all are acknowledged. The base has the
bytes in memory and writes them with one pwrite and one fdatasync for each sync that the broker made in this very round,
of exactly the size that sync covered: see `benchmarks.append`. What is left is the way from the caller to the disk.

For the eye comes the same message by message (`send`, a future each), which costs a Python call per message.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.append import replay_loop
from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir, let_go, warm_memory
from benchmarks.recording_broker import recording_broker
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore

SIZE = 1024
COUNT = int(os.environ.get("APPEND_SMALL_MESSAGES") or 200_000)
ONE_BY_ONE = COUNT // 8
ROUNDS = 7
BATCH = {"batching_max_messages": 1000, "batching_max_bytes": 1024 * 1024}


def send_loop(log: Ledger, store: Path) -> Loop:
    """Sends message by message; returns the seconds from the first call to the last acknowledgement."""
    value = os.urandom(SIZE)

    def loop() -> float:
        with log.producer(**BATCH) as producer:
            start = time.perf_counter()
            sent = [producer.send(value) for _ in range(ONE_BY_ONE)]
            producer.flush()
            seconds = time.perf_counter() - start
            assert all(one.done() for one in sent[-1000:])  # noqa: S101 — what is measured is whole
        let_go(store / "ledgers")
        return seconds

    return loop


def column_loop(log: Ledger, store: Path) -> Loop:
    """Sends the same messages as a column."""
    column = pa.array([os.urandom(SIZE)] * COUNT, pa.large_binary())

    def loop() -> float:
        with log.producer(**BATCH) as producer:
            warm_memory(SIZE * COUNT)
            start = time.perf_counter()
            producer.send_column(column).result()
            seconds = time.perf_counter() - start
        let_go(store / "ledgers")
        return seconds

    return loop


def main() -> None:
    """Both ways; the last line is that of `send_column`."""
    ratios = []
    for name, make in (("append_small_one_by_one", send_loop), ("append_small", column_loop)):
        with (
            tempfile.TemporaryDirectory(dir=bench_dir()) as folder,
            tempfile.NamedTemporaryFile(prefix="syncs-", dir="/dev/shm") as record_file,
            tempfile.TemporaryDirectory(dir=folder) as store,
            recording_broker(Path(store), Path(record_file.name)) as (client, record),
        ):
            log = LedgerStore(client).create("bench")
            record.new()
            syncs: list[list[int]] = []
            base = replay_loop(Path(folder), record, syncs)
            ratios.append(compare(name, make(log, Path(store)), base, rounds=ROUNDS).ratio)
            print(f"  syncs per round {[len(sizes) for sizes in syncs[1:]]}")
    print(f"ratio append_small {ratios[-1]:.3f}")


if __name__ == "__main__":
    main()
