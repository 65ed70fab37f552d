"""A broker that writes down how many bytes each of its syncs covered; otherwise the broker as it is.

    python -m benchmarks.recording_broker RECORD --store DIR …        the rest as for `ledger.broker.main`

`RECORD` gets one decimal number per line, before the acknowledgement of what was synced leaves. It should not lie on
the disk that is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_ledger.ledger.broker.main import main as serve
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.segment.format import HEADER_BYTES
from pyspark_ledger.ledger.segment.writer import SegmentWriter

_START_MS = 20_000


class SyncRecord:
    """The sizes that a broker wrote down, read bit by bit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[int]:
        """The sizes since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        self._offset += len(text)
        return [int(line) for line in text.split()]


@contextmanager
def recording_broker(directory: Path, record: Path) -> Iterator[tuple[Client, SyncRecord]]:
    """A broker of a new store in `directory`, a client of it, and its record; the process ends with the block."""
    record.touch()
    command = [sys.executable, "-m", "benchmarks.recording_broker", str(record), "--store", str(directory)]
    process = subprocess.Popen([*command, "--create", "--idle", "0"])
    try:
        yield connected(directory, process), SyncRecord(record)
    finally:
        process.terminate()
        process.wait()


def connected(directory: Path, process: subprocess.Popen[bytes]) -> Client:
    """A client of the broker that a process is about to be."""
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
    sync = SegmentWriter.sync

    def recorded(writer: SegmentWriter) -> None:
        end = writer.end_offset
        sync(writer)
        os.write(descriptor, b"%d\n" % (end - ends.get(writer.ledger_id, HEADER_BYTES)))
        ends[writer.ledger_id] = end

    SegmentWriter.sync = recorded  # type: ignore[method-assign]


if __name__ == "__main__":
    _record_syncs(Path(sys.argv[1]))
    sys.exit(serve(sys.argv[2:]))
