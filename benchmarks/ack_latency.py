"""Append latency of one producer, against a bare Flight server that only writes and syncs.

One message of 1 KiB is in flight at a time. Ours is an append through the producer. The broker verifies, writes and
syncs the message. Before it acknowledges the message, it reads the store's epoch again. The base sends the same bytes
to a server that makes one pwrite to a preallocated file and one fdatasync, and answers.

Each round measures some hundred appends of both sides. Its ratio is of times, and compares the 99th percentiles. The
result is the median of the rounds' ratios.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyarrow import flight

from benchmarks.append import entry_of
from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import ENTRY_SCHEMA, CreateLedger, StopBroker
from pyspark_ledger.ledger.transport.shared_ring import entry_batch

MESSAGE_BYTES = 1024
APPENDS = 400
ROUNDS = 15
_FILE_BYTES = 256 * 1024 * 1024
_SERVER_SECONDS = 30


class BareServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight server that writes and syncs each batch, and answers."""

    def __init__(self, location: str, file: Path) -> None:
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self._fd, 0, _FILE_BYTES)
        os.pwrite(self._fd, bytes(_FILE_BYTES), 0)  # like the broker's segments: a sync converts no extents
        os.fsync(self._fd)
        super().__init__(location)

    def do_put(
        self,
        _context: flight.ServerCallContext,
        _descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Serve one stream."""
        at = 0
        while True:
            try:
                data = reader.read_chunk().data.column(0).buffers()[2]
            except StopIteration:
                return
            at = at % (_FILE_BYTES - 2 * MESSAGE_BYTES) + os.pwrite(self._fd, data, at)
            os.fdatasync(self._fd)
            writer.write(b"done")


def latencies(append: Callable[[int], object], medians: list[float]) -> Loop:
    """Return the 99th percentile of the latency of some appends."""

    def loop() -> float:
        took = []
        for number in range(APPENDS):
            start = time.perf_counter()
            append(number)
            took.append(time.perf_counter() - start)
        medians.append(statistics.median(took))
        return statistics.quantiles(took, n=100)[98]

    return loop


def bare_append(address: str, payload: bytes) -> Callable[[int], object]:
    """Send the same entries to the bare server."""
    connection = flight.connect(address)
    writer, reader = connection.do_put(flight.FlightDescriptor.for_command(b""), ENTRY_SCHEMA)

    def append(number: int) -> object:
        writer.write_batch(entry_batch([b"".join(memoryview(part) for part in entry_of(payload, number))]))
        return reader.read()

    return append


def main() -> None:
    """Measure both sides in turns."""
    payload = os.urandom(MESSAGE_BYTES)
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as text:
        folder = Path(text).resolve()
        address = f"grpc+unix://{folder}/bare.sock"
        server = subprocess.Popen([sys.executable, "-m", "benchmarks.ack_latency", address, str(folder / "bare")])
        client = connect(folder / "store").client
        try:
            until = time.monotonic() + _SERVER_SECONDS
            while not (folder / "bare.sock").exists() and server.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            client.ask(CreateLedger("bench"))
            ours_medians: list[float] = []
            base_medians: list[float] = []
            with client.producer("bench") as producer:
                compare(
                    "ack_latency",
                    latencies(lambda number: producer.append(*entry_of(payload, number)).result(), ours_medians),
                    latencies(bare_append(address, payload), base_medians),
                    rounds=ROUNDS,
                    of_time=True,
                )
            ours, base = statistics.median(ours_medians), statistics.median(base_medians)
            print(f"  median of an append {ours * 1e6:.0f} us, of the base {base * 1e6:.0f} us: {ours / base:.2f}")
        finally:
            server.terminate()
            server.wait()
            client.ask(StopBroker())
            time.sleep(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BareServer(sys.argv[1], Path(sys.argv[2])).serve()
    main()
