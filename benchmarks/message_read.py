"""Rows per CPU-second of `ledger.read()` of a million Pulsar messages, against the decoder on the same blocks.

The messages are those of `pulsar_decode`: LZ4 batches of 100, with keys, properties and event times. Ours is one call
of the Python API, with all metadata columns. Our time is the CPU time of this process and of the broker. The base
starts with the same blocks, which were read before the rounds. It finds and parses the entries, and decodes them with
all metadata columns, as a task of Spark does.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks.harness import Loop, compare
from benchmarks.processor_time import processor_seconds
from benchmarks.pulsar_decode import ROWS, entries
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.connector.rows.message_rows import PulsarRows
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import Empty
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.rows.message_groups import MESSAGES
from pyspark_ledger.ledger.rows.metadata_columns import Topic
from pyspark_ledger.ledger.segment.reader import iter_frames

ROUNDS = 9


def fill(ledger: Ledger) -> None:
    """Append the entries."""
    with ledger.client.producer(ledger.name) as producer:
        for entry in entries():
            producer.append(entry)


def read(ledger: Ledger, broker: int) -> Loop:
    """Read through the Python API."""

    def loop() -> float:
        before = processor_seconds(os.getpid(), broker)
        _require(ledger.read().num_rows)
        return processor_seconds(os.getpid(), broker) - before

    return loop


def decode(ledger: Ledger) -> Loop:
    """Decode the blocks, which are read here once."""
    client, topic = ledger.client, Topic.of(ledger.name)
    request = ReadRequest(ledger.name, PositionRange(EARLIEST, ledger.end().end))
    blocks = [
        (block.ledger_id, block.first_entry, block.entries, bytes(block.frames))
        for block in client.read_blocks(request)
    ]
    shape = RowShape(schema_bytes(MESSAGES), 1, rescues=False, raw=True)

    def loop() -> float:
        before = processor_seconds(os.getpid())
        parsed = (
            (Position(ledger_id, entry_id), parse_entry(frame, "entry"))
            for ledger_id, first, count, frames in blocks
            for entry_id, frame in iter_frames(memoryview(frames), ledger_id, first, count)
        )
        _require(sum(batch.num_rows for batch in PulsarRows(topic, shape).batches(parsed)))
        return processor_seconds(os.getpid()) - before

    return loop


def _require(rows: int) -> None:
    if rows != ROWS:
        message = f"{rows} rows were read of {ROWS}"
        raise RuntimeError(message)


def main() -> None:
    """Measure both sides. The last line is the ratio of rows per CPU-second."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as folder:
        store = connect(Path(folder) / "store")
        try:
            ledger = store.ledger("messages")
            store.create("messages")
            fill(ledger)
            compare("message_read", read(ledger, store.client.hello().pid), decode(ledger), ROUNDS)
        finally:
            store.client.call("shutdown", Empty())


if __name__ == "__main__":
    main()
