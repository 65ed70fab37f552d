"""Durable appends through client, socket and broker, against the disk alone.

Ours builds each entry (metadata, checksum) and sends it, with 64 entries in flight. A round ends when all are
acknowledged. The base has the same bytes in memory and writes them to a preallocated file. For each sync of the broker
in the same round, the base makes one pwrite and one fdatasync of exactly as many bytes. So the base, too, profits from
the broker's group commit, which syncs several appends at once. The ratio shows the cost between caller and disk.

Both drop their page cache after each round (see `benchmarks.raw_disk`). The result is the lowest ratio of three entry
sizes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir, drop_page_cache, raw_append, warm_memory
from benchmarks.recording_broker import SyncRecord, recording_broker
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.protocol.actions import CreateLedger

SIZES = {"64KiB": (64 * 1024, 4096), "1MiB": (1024 * 1024, 512), "8MiB": (8 * 1024 * 1024, 128)}
IN_FLIGHT = 64
ROUNDS = 9


def entry_of(payload: bytes, sequence: int) -> list[bytes]:
    """Return an entry with a payload, as a producer of messages makes it."""
    metadata = MessageMetadata(producer_name="bench", sequence_id=sequence, publish_time=1)
    return encode_entry(metadata, payload)


def append_loop(client: Client, ledger: str, store: Path, size: int, count: int) -> Loop:
    """Return a loop that appends `count` entries of about `size` bytes.

    The loop returns the seconds from the first call to the last position.
    """
    payload = os.urandom(size - 64)

    def loop() -> float:
        with client.producer(ledger, max_in_flight_bytes=IN_FLIGHT * size) as producer:
            waiting: deque[Future[Position]] = deque()
            warm_memory(size * count)
            start = time.perf_counter()
            for sequence in range(count):
                if len(waiting) == IN_FLIGHT:
                    waiting.popleft().result()
                waiting.append(producer.append(*entry_of(payload, sequence)))
            while waiting:
                waiting.popleft().result()
            seconds = time.perf_counter() - start
        drop_page_cache(store / "ledgers")
        return seconds

    return loop


def replay_loop(directory: Path, record: SyncRecord, syncs: list[list[int]]) -> Loop:
    """Return a loop that writes and syncs the same sizes as the broker since the last call."""

    def loop() -> float:
        syncs.append(record.new())
        return raw_append(directory, syncs[-1])

    return loop


def measure(label: str, size: int, count: int, folder: Path) -> float:
    """Return the ratio of one entry size, on a store of its own."""
    with (
        tempfile.NamedTemporaryFile(prefix="syncs-", dir="/dev/shm") as record_file,
        tempfile.TemporaryDirectory(dir=folder) as store,
        recording_broker(Path(store), Path(record_file.name)) as (client, record),
    ):
        ledger = canonical_name("bench")
        client.ask(CreateLedger(ledger))
        record.new()
        syncs: list[list[int]] = []
        result = compare(
            f"append_{label}",
            append_loop(client, ledger, Path(store), size, count),
            replay_loop(folder, record, syncs),
            rounds=ROUNDS,
            work_bytes=size * count,
        )
        print(f"  bytes synced per byte appended {sum(syncs[-1]) / (size * count):.3f}")
        per_sync = statistics.median(size for sizes in syncs for size in sizes)
        print(f"  syncs per round {[len(sizes) for sizes in syncs[1:]]}, median {per_sync / 2**20:.2f} MiB")
        return result.ratio


def main() -> None:
    """Measure all sizes. The last line is the lowest ratio."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        chosen = os.environ.get("APPEND_SIZES", ",".join(SIZES)).split(",")
        ratios = [measure(label, *SIZES[label], Path(name)) for label in chosen]
    print(f"ratio {'append' if set(chosen) == set(SIZES) else 'append_in_part'} {min(ratios):.3f}")


if __name__ == "__main__":
    main()
