"""Goal: Spark's tasks deliver what the producer divides. Method: a real broker, every cut of the log, no Spark."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.connector.read.ledger.task import LedgerTask, ReadSource, read_rows
from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.rows.shape import RowOptions, row_shape
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.position import EARLIEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskEnd, CreateLedger
from pyspark_ledger.ledger.protocol.reads import SplitRequest


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_large_messages_are_rows_wherever_the_log_is_cut(store: Path, compression: str) -> None:
    api = connect(store)
    name = "public/default/persistent/large"
    api.client.ask(CreateLedger(name, max_entries_per_ledger=3))
    sizes = [3000, 10, 999, 1001, 1000, 0, 4500]
    sent = [random.Random(size).randbytes(size) for size in sizes]
    with api.ledger("large").producer(
        "p", compression=compression, chunk_max_bytes=1000, batching_max_publish_delay_ms=0
    ) as producer:
        for value in sent:
            producer.send(value, key=f"k{len(value)}")
    end = api.client.ask(AskEnd(name))
    shape = row_shape(None, None, RowOptions(include_metadata=True), name)
    source = ReadSource.of(api.client, shape)

    def read(range_: PositionRange) -> list[tuple[bytes, str]]:
        part = LedgerRange(name, end.incarnation, range_)
        table = pa.Table.from_batches(list(read_rows(api.client, LedgerTask(source, (part,)))), shape.schema)
        return list(zip(table["value"].to_pylist(), table["__key"].to_pylist(), strict=True))

    wanted = [(value, f"k{len(value)}") for value in sent]
    assert read(PositionRange(EARLIEST, end.end)) == wanted
    cuts = [part.range for part in api.client.ask(SplitRequest(name, PositionRange(EARLIEST, end.end), 1, 1000)).parts]
    assert len(cuts) > len(sizes)
    assert [row for cut in cuts for row in read(cut)] == wanted
