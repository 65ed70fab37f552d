"""Reads of cached entries that the broker sends (Flight's DoGet), against a bare Flight server that returns the same
bytes.

Both servers are processes of their own behind Unix sockets. The same loop reads from both: it takes every batch and
counts its bytes. The base has the broker's batches in memory, and Arrow sends them without Python code. The broker also
finds the blocks of the range in its index, takes each block from the cache, and counts it. All entries are cached. The
result is the lower ratio of two cases: entries of 1 KiB, and entries of 1 MiB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import flight

from benchmarks.append import entry_of
from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.position import EARLIEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import BLOCK_SCHEMA, AskEnd, ChangeSetting, CreateLedger, StopBroker
from pyspark_ledger.ledger.protocol.cache import AskCache
from pyspark_ledger.ledger.protocol.reads import ReadRequest

TOTAL_BYTES = 256 * 1024 * 1024
SIZES = {"1KiB": 1024, "1MiB": 1024 * 1024}
READS = 4  # per round: a single read takes a tenth of a second, which is too noisy
ROUNDS = 11
_SERVER_SECONDS = 30


class BareServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight server that returns the batches of a file for any ticket."""

    def __init__(self, location: str, file: Path) -> None:
        with pa.OSFile(str(file)) as source:
            self._batches = pa.ipc.open_stream(source).read_all().to_batches()
        super().__init__(location)

    def do_get(self, _context: flight.ServerCallContext, _ticket: flight.Ticket) -> flight.RecordBatchStream:
        """Return all batches."""
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(BLOCK_SCHEMA, self._batches))


def read_loop(connection: flight.FlightClient, ticket: flight.Ticket, options: flight.FlightCallOptions) -> Loop:
    """Return a loop that takes every batch of some reads."""

    def read() -> int:
        reader = connection.do_get(ticket, options)
        size = 0
        while True:
            try:
                size += reader.read_chunk().data.nbytes
            except StopIteration:
                return size

    def loop() -> None:
        size = sum(read() for _ in range(READS))
        if size < READS * TOTAL_BYTES * 0.9:
            message = f"{size} bytes were read of {READS * TOTAL_BYTES}"
            raise ValueError(message)

    return loop


def fill(client: Client, name: str, size: int) -> flight.Ticket:
    """Fill a ledger with entries of that size, and return the ticket to read it."""
    client.ask(CreateLedger(name, max_entries_per_ledger=10**6))
    payload = os.urandom(size - 100)
    with client.producer(name) as producer:
        for sequence in range(TOTAL_BYTES // size):
            producer.append(*entry_of(payload, sequence))
    end = client.ask(AskEnd(name)).end
    return flight.Ticket(msgspec.json.encode(ReadRequest(name, PositionRange(EARLIEST, end))))


def measure(client: Client, label: str, size: int, folder: Path) -> float:
    """Return the ratio of one size of entries."""
    ticket = fill(client, label, size)
    connection, options = client.connection(), client.options()
    file, socket = folder / f"{label}.arrow", folder / f"{label}.sock"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, BLOCK_SCHEMA) as writer:
        for batch in connection.do_get(ticket, options).read_all().to_batches():
            writer.write_batch(batch)
    address = f"grpc+unix://{socket}"
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.broker_read", address, str(file)])
    try:
        until = time.monotonic() + _SERVER_SECONDS
        while not socket.exists() and server.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        bare = flight.connect(address)
        ours, base = read_loop(connection, ticket, options), read_loop(bare, ticket, flight.FlightCallOptions())
        return compare(f"broker_read_{label}", ours, base, rounds=ROUNDS, work_bytes=READS * TOTAL_BYTES).ratio
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Measure both sizes. The last line is the lower ratio."""
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as text:
        folder = Path(text).resolve()
        client = connect(folder / "store").client
        try:
            client.ask(ChangeSetting("managedLedgerCacheSizeMB", 2048))
            ratios = [measure(client, label, size, folder) for label, size in SIZES.items()]
            cache = client.ask(AskCache())
            print(f"  {cache.misses:,} entries were read from files, {cache.hits:,} from the cache")
        finally:
            client.ask(StopBroker())
            time.sleep(1)
    print(f"ratio broker_read {min(ratios):.3f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BareServer(sys.argv[1], Path(sys.argv[2])).serve()
    main()
