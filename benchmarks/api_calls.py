"""Small calls of the Python API, each against the minimum number of bare Flight calls.

    append of one row                  1 action that writes the row and syncs it
    read of 1,000 rows                 1 action, then `do_get` of the same rows
    cursor.read + acknowledge          1 action, then `do_get` of the same rows, then 1 action that writes and syncs

An action is a Flight call with one answer, and `do_get` is a call that returns a stream of rows. The base is a bare
Flight server, a process of its own behind a Unix socket. It keeps the rows in memory as one batch, and writes to a
preallocated file. The project's broker also verifies, stamps, indexes, encodes and decodes rows, stores
cursors in its metadata, and reads the epoch before it answers.

One thread makes the calls, one after another. The rows for a cursor are appended untimed. Each round makes some of the
calls on each side. The ratio of a call is the median of the rounds. The last line is the worst ratio.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyarrow import flight

from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import Empty

ROWS = 1_000
CALLS = 100  # per round
ROUNDS = 11
_FILE_BYTES = 16 * 1024 * 1024
_SERVER_SECONDS = 30

Call = Callable[[], object]


def some_rows() -> pa.Table:
    """Return typical rows: a number, a name, an amount."""
    numbers = range(ROWS)
    names = [f"item {number}" for number in numbers]
    return pa.table({"id": list(numbers), "item": names, "total": [number / 7 for number in numbers]})


class BareServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight server that syncs on request and returns the same rows each time."""

    def __init__(self, location: str, file: Path) -> None:
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT)
        os.pwrite(self._fd, bytes(_FILE_BYTES), 0)  # like the broker's segments: a sync converts no extents
        os.fsync(self._fd)
        self._at = 0
        self._rows = some_rows()
        super().__init__(location)

    def do_action(self, _context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """Write and sync the body, if the action requests it."""
        if action.type == "write":
            body = action.body.to_pybytes()
            self._at = self._at % (_FILE_BYTES - 2 * len(body)) + os.pwrite(self._fd, body, self._at)
            os.fdatasync(self._fd)
        return [b"{}"]

    def do_get(self, _context: flight.ServerCallContext, _ticket: flight.Ticket) -> flight.RecordBatchStream:
        """Return all rows."""
        return flight.RecordBatchStream(self._rows)


class BareCalls:
    """Base of each call."""

    def __init__(self, address: str) -> None:
        self._connection = flight.connect(address)
        self._row = some_rows().slice(0, 1).to_batches()[0].serialize().to_pybytes()

    def append(self) -> None:
        """Call one synced action."""
        list(self._connection.do_action(flight.Action("write", self._row)))

    def read(self) -> None:
        """Call one action and read the rows."""
        list(self._connection.do_action(flight.Action("look", b"{}")))
        require(self._connection.do_get(flight.Ticket(b"{}")).read_all().num_rows)

    def read_and_acknowledge(self) -> None:
        """Read as `read` does, and call one synced action."""
        self.read()
        list(self._connection.do_action(flight.Action("write", b"[12,345]")))


def require(rows: int) -> None:
    """Raise ValueError unless a read returned all rows."""
    if rows != ROWS:
        message = f"{rows} rows were read of {ROWS}"
        raise ValueError(message)


def loop(call: Call, before: Call = lambda: None) -> Loop:
    """Return a loop that returns the seconds of some calls. An untimed call precedes each."""

    def seconds() -> float:
        took = 0.0
        for _ in range(CALLS):
            before()
            start = time.perf_counter()
            call()
            took += time.perf_counter() - start
        return took

    return seconds


def measure(folder: Path, bare: BareCalls) -> list[float]:
    """Return the ratio of each call."""
    store = connect(folder / "store")
    rows, one = some_rows(), [{"id": 1, "item": "tea", "total": 4.5}]
    small, read, followed = store.ledger("small"), store.ledger("read"), store.ledger("followed")
    read.append(rows)
    followed.append(rows)
    cursor = followed.cursor("billing", followed.end().end)

    def read_and_acknowledge() -> None:
        table, position = cursor.read()
        require(table.num_rows)
        cursor.acknowledge(position)

    try:
        sides = {
            "append": (loop(lambda: small.append(one)), loop(bare.append)),
            "read": (loop(lambda: require(read.read().num_rows)), loop(bare.read)),
            "cursor": (
                loop(read_and_acknowledge, lambda: followed.append(rows)),
                loop(bare.read_and_acknowledge, bare.append),
            ),
        }
        return [
            compare(f"api_calls_{name}", ours, base, rounds=ROUNDS, of_time=True).ratio
            for name, (ours, base) in sides.items()
        ]
    finally:
        store.client.call("shutdown", Empty())
        time.sleep(1)


def main() -> None:
    """Measure all calls. The last line is the worst ratio."""
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as text:
        folder = Path(text).resolve()
        socket = folder / "bare.sock"
        address = f"grpc+unix://{socket}"
        server = subprocess.Popen([sys.executable, "-m", "benchmarks.api_calls", address, str(folder / "bare")])
        try:
            until = time.monotonic() + _SERVER_SECONDS
            while not socket.exists() and server.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            ratios = measure(folder, BareCalls(address))
        finally:
            server.terminate()
            server.wait()
    print(f"ratio api_calls {max(ratios):.3f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BareServer(sys.argv[1], Path(sys.argv[2])).serve()
    main()
