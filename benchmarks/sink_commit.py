"""Batch of the sink in a local store, against one write and one sync of as many bytes.

Ours writes a batch of 128 MiB as two parts, in two threads instead of two tasks of Spark, and commits the batch. The
time includes all syncs of the tasks and of the broker, but not the encoding of the rows. The base writes the same
number of bytes to a preallocated file, and syncs it once (`benchmarks.raw_disk`).

The ratio is of times. A ratio of 1 means that the tasks and the commit cost no more than one durable write of the
rows. Memory is warmed and page cache is dropped as in `benchmarks.raw_disk`.
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir, drop_page_cache, raw_append, warm_memory
from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.commits import CommitRun, PartRun, StagedPart
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.transport.part_writer import PartWriter

TASKS, ENTRY, ENTRIES = 2, 4 * 1024 * 1024, 16  # entries per task, of the default size of option entryBytes
TOTAL = TASKS * ENTRY * ENTRIES
ROUNDS = 9


def entry_of(payload: bytes, batch: int) -> list[Buffer]:
    """Return an entry of a run, as a task of the sink makes it."""
    metadata = MessageMetadata(
        producer_name="bench", sequence_id=0, publish_time=1, txnid_most_bits=1, txnid_least_bits=batch
    )
    return encode_entry(metadata, payload)


def commit_loop(store: Store) -> Loop:
    """Return a loop that stages and commits one batch."""
    ledger = store.create_ledger(CreateLedger("sink"))
    payload, batches = os.urandom(ENTRY), count()
    block_bytes = Settings().ledgerBlockSizeBytes

    def stage(entry: list[Buffer], batch: int) -> StagedPart:
        with PartWriter.to_file(
            store.commits.open_part("bench", batch), PartRun("bench", batch, 1, batch, block_bytes, 1)
        ) as part:
            for _ in range(ENTRIES):
                part.write(entry, 1)
            return part.close()

    def loop() -> float:
        batch = next(batches)
        entry = entry_of(payload, batch)
        warm_memory(2 * TOTAL)
        start = time.perf_counter()
        with ThreadPoolExecutor(TASKS) as pool:
            parts = [task.result() for task in [pool.submit(stage, entry, batch) for _ in range(TASKS)]]
        store.commits.commit(CommitRun(ledger.name, "bench", batch, 1, batch, parts))
        seconds = time.perf_counter() - start
        drop_page_cache(store.path)
        return seconds

    return loop


def main() -> None:
    """Compare a batch with a write of its bytes."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        directory = Path(name)
        store = Store.open(directory / "store", settings=Settings(), clock=system_clock_ms, create=True)
        base = lambda: raw_append(directory, [TOTAL])  # noqa: E731 — a loop without a name
        compare("sink_commit", commit_loop(store), base, ROUNDS, TOTAL, of_time=True)
        store.close()


if __name__ == "__main__":
    main()
