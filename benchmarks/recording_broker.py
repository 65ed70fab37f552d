"""Broker that records the number of bytes of each of its syncs. Otherwise the broker is unchanged.

    python -m benchmarks.recording_broker RECORD --store DIR …        the rest as for `offload.broker`

For each sync, the file `RECORD` gets a line with a decimal number, before the synced appends are acknowledged. The file
should not be on the measured disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.segment.format import HEADER_BYTES
from pyspark_ledger.ledger.segment.writer import SegmentWriter
from pyspark_ledger.offload.broker import main as serve

_START_MS = 20_000


class SyncRecord:
    """Reader of the sizes that a broker recorded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[int]:
        """Return the sizes since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        self._offset += len(text)
        return [int(line) for line in text.split()]


@contextmanager
def recording_broker(directory: Path, record: Path) -> Iterator[tuple[Client, SyncRecord]]:
    """Yield a client of a new broker's store in `directory`, and its record. The broker ends with the block."""
    record.touch()
    command = [sys.executable, "-m", "benchmarks.recording_broker", str(record), "--store", str(directory)]
    process = subprocess.Popen([*command, "--create", "--idle", "0"])
    try:
        yield connected(directory, process), SyncRecord(record)
    finally:
        process.terminate()
        process.wait()


def connected(directory: Path, process: subprocess.Popen[bytes]) -> Client:
    """Wait until the process is a ready broker, and return a client of it."""
    until = monotonic_ms() + _START_MS
    while True:
        try:
            return connect_store(directory, start=False)
        except LedgerError:
            if process.poll() is not None or monotonic_ms() > until:
                raise
            pause(20)


def _record_syncs(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    ends: dict[int, int] = {}
    end_sync = SegmentWriter.end_sync

    def recorded(writer: SegmentWriter, error: OSError | None) -> None:
        end = writer.unsynced().end
        end_sync(writer, error)
        os.write(descriptor, b"%d\n" % (end - ends.get(writer.ledger_id, HEADER_BYTES)))
        ends[writer.ledger_id] = end

    SegmentWriter.end_sync = recorded  # type: ignore[method-assign]


if __name__ == "__main__":
    _record_syncs(Path(sys.argv[1]))
    sys.exit(serve(sys.argv[2:]))
