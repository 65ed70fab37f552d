"""Peak memory of a worker that consumes and acknowledges 10 GB in 10 million rows, over the 8 partitions of a ledger.

The worker, the broker and the writer are processes of their own. The worker is the program of docs/cursors.md: a loop
with `ack="after"` and the default limits. A thread of this process samples `RssAnon` + `RssShmem` of the worker and of
the broker. Mapped files of the store (`RssFile`) do not count, because the kernel can drop them.

    ratio worker_memory <peak of the worker in MB>
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import StopBroker

PARTITIONS, APPENDS, ROWS = 8, 1000, 10_000
BODY_BYTES = 1000
_SAMPLE_SECONDS = 0.005


class Peak:
    """Peak of the anonymous and shared memory of a process, in bytes, since the creation of this object."""

    def __init__(self, pid: int) -> None:
        self.first = self.value = memory_bytes(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, args=(pid,))
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self, pid: int) -> None:
        with suppress(OSError):  # the process has ended
            while not self._ended.wait(_SAMPLE_SECONDS):
                self.value = max(self.value, memory_bytes(pid))


def memory_bytes(pid: int) -> int:
    """Return `RssAnon` + `RssShmem` of a process; 0 for a process that is about to end."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * sum(int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem")))


def main() -> None:
    """Print the peaks. The last line has that of the worker, in MB."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as scratch:
        path = Path(scratch) / "store"
        store = connect(path)
        try:
            rides = store.create_partitioned("rides", PARTITIONS)
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-m", "benchmarks.worker_memory", "write", str(path)], check=True)
            size = rides.describe().size_bytes
            cursor = rides.cursor("worker")
            print(
                f"{APPENDS * ROWS:,} rows, {size:,} bytes, written in {time.perf_counter() - begun:.0f} s", flush=True
            )
            begun, broker = time.perf_counter(), Peak(store.client.hello().pid)
            command = [sys.executable, "-m", "benchmarks.worker_memory", "work", str(path)]
            with subprocess.Popen(command) as process:
                worker = Peak(process.pid)
                code = process.wait()
            seconds = time.perf_counter() - begun
            for peak in (worker, broker):
                peak.end()
            if code or (left := cursor.state(precise=False).backlog_entries):
                message = f"the worker ended with status {code}, {left if not code else 'its'} entries are left"
                raise ValueError(message)
            print(f"worked in {seconds:.0f} s: {size / seconds / 1e6:.0f} MB/s")
            print(f"broker: {broker.first / 1e6:.0f} MB before, {broker.value / 1e6:.0f} MB at most")
            print(f"worker: {worker.value / 1e6:.0f} MB at most")
            print(f"ratio worker_memory {worker.value / 1e6:.0f}", flush=True)
        finally:
            store.client.ask(StopBroker())
            time.sleep(1)


def write(path: str) -> None:
    """Append all rows: an id and random bytes, which no codec shrinks."""
    with connect(path) as store:
        rides = store.ledger("rides")
        for number in range(APPENDS):
            ids = np.arange(number * ROWS, (number + 1) * ROWS)
            noise = pa.py_buffer(np.random.default_rng(number).bytes(ROWS * BODY_BYTES))
            body = pa.FixedSizeBinaryArray.from_buffers(pa.binary(BODY_BYTES), ROWS, [None, noise])
            rides.append(pa.table({"id": ids, "body": body}))


def work(path: str) -> None:
    """Consume and acknowledge all rows."""
    count, total = 0, 0
    with connect(path) as store, store.ledger("rides").cursor("worker").batches(wait=0, ack="after") as batches:
        for batch in batches:
            count += batch.num_rows
            total += pc.sum(batch.table.column("id")).as_py()
    everything = APPENDS * ROWS
    if count != everything or total != everything * (everything - 1) // 2:
        message = f"{count:,} rows with the sum {total:,} were read of {everything:,}"
        raise ValueError(message)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"write": write, "work": work}[sys.argv[1]](sys.argv[2])
    else:
        main()
