"""Durable messages of 1 KiB through the batching producer, against the disk alone.

Ours sends the messages as an Arrow column (`send_column`). A round ends when all are acknowledged. The base has the
bytes in memory. For each sync of the broker in the same round, the base makes one pwrite and one fdatasync of exactly
as many bytes (`benchmarks.append`). The ratio shows the cost between caller and disk.

For information, the benchmark also measures `send`, which needs one Python call and one future for each message.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.append import replay_loop
from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir, drop_page_cache, warm_memory
from benchmarks.recording_broker import recording_broker
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore

SIZE = 1024
COUNT = int(os.environ.get("APPEND_SMALL_MESSAGES") or 200_000)
ONE_BY_ONE = COUNT // 8
ROUNDS = 7
BATCH = {"batching_max_messages": 1000, "batching_max_bytes": 1024 * 1024}


def send_loop(log: Ledger, store: Path) -> Loop:
    """Return a loop that sends message by message and returns the seconds until the last acknowledgement."""
    value = os.urandom(SIZE)

    def loop() -> float:
        with log.producer(**BATCH) as producer:
            start = time.perf_counter()
            sent = [producer.send(value) for _ in range(ONE_BY_ONE)]
            producer.flush()
            seconds = time.perf_counter() - start
            assert all(one.done() for one in sent[-1000:])  # noqa: S101 — all messages must be acknowledged
        drop_page_cache(store / "ledgers")
        return seconds

    return loop


def column_loop(log: Ledger, store: Path) -> Loop:
    """Return a loop that sends the same messages as a column."""
    column = pa.array([os.urandom(SIZE)] * COUNT, pa.large_binary())

    def loop() -> float:
        with log.producer(**BATCH) as producer:
            warm_memory(SIZE * COUNT)
            start = time.perf_counter()
            producer.send_column(column).result()
            seconds = time.perf_counter() - start
        drop_page_cache(store / "ledgers")
        return seconds

    return loop


def main() -> None:
    """Measure both ways. The last line is the ratio of `send_column`."""
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
