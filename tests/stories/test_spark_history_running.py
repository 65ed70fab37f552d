"""Goal: while a publisher runs, reads with `history` have the ledger's rows, also while the ledger is trimmed.

Method: the real publisher runs in a thread, and a query with one checkpoint is stopped and started. The main thread
writes, records each new row from the ledger alone, and compares random ranges with reads of `history`. The retention
changes in phases: nothing is trimmed; published segments are trimmed; segments older than the retention are trimmed.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ledger import configure
from pyspark_ledger.connector.publish.publisher import PublishedSegment, Publisher
from pyspark_ledger.connector.publish.request import Publishing
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from tests.rigs.available_now import run_all
from tests.rigs.published_history import append, as_set, place_of
from tests.rigs.scan import read_rows

pytest.importorskip("delta")
pytestmark = [pytest.mark.tables, pytest.mark.feature("tables of Delta: publish and history")]
PHASES = ("kept", "published goes", "retention")
SEGMENTS_IN_A_PHASE = 2
AHEAD = 12


class Reference:
    """Rows read from the ledger alone. A cursor keeps them from being trimmed before they are recorded."""

    def __init__(self, store: Path, ledger: Ledger) -> None:
        self.store, self.ledger = store, ledger
        self.cursor = ledger.cursor("reference")
        self.rows: list[dict[str, Any]] = []
        self.end = ledger.end().start

    def catch_up(self) -> None:
        end = self.ledger.end().end
        if end > self.end:
            self.rows += self.log_alone(self.end, end)
            self.end = end

    def log_alone(self, start: Position, end: Position) -> list[dict[str, Any]]:
        return read_rows(self.store, includeMetadata="true", startingPosition=str(start), endingPosition=str(end))

    def some(self, dice: random.Random) -> tuple[Position, Position, list[dict[str, Any]]]:
        """Return a random range of the rows. Half of the ranges start at the beginning, and half end at the end."""
        places = sorted({place_of(row) for row in self.rows})
        first, last = sorted(dice.choices(range(len(places)), k=2))
        first = 0 if dice.random() < 0.5 else first
        start = Position(*places[first])
        end = self.end if dice.random() < 0.5 else Position(*places[last])
        return start, end, [row for row in self.rows if start <= Position(*place_of(row)) < end]


@contextmanager
def publishing(publisher: Publisher) -> Iterator[list[PublishedSegment]]:
    """Run the publisher in a thread, and yield the published segments. An error of the thread fails the test."""
    done: list[PublishedSegment] = []
    failed: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        try:
            publisher.run(done.append, 100, stop)
        except BaseException as error:  # noqa: BLE001  # raised again in the test's thread
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()
    assert not failed


def streamed(spark: SparkSession, table: Path, place: Path) -> Callable[..., StreamingQuery]:
    """Start the query with its checkpoint."""

    def start(**trigger: Any) -> StreamingQuery:
        read = spark.readStream.format("ledger").options(history=str(table), includeMetadata="true")
        write = read.option("maxRowsPerTrigger", 16).load("orders").writeStream.format("parquet")
        write = write.options(checkpointLocation=str(place / "checkpoint"), path=str(place / "out"))
        return write.trigger(**trigger).start()

    return start


@pytest.mark.slow
def test_table_and_log_are_the_log_row_by_row(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    configure(spark_session, store=str(store))
    api, table, dice = connect(store), tmp_path / "table", random.Random(11)
    api.client.ask(CreateLedger("orders", max_entries_per_ledger=2))
    ledger = api.ledger("orders")
    append(ledger, 0, 3)
    publisher = Publisher(spark_session, "orders", str(table), {"store": str(store)}, Publishing.of([]))
    (first,) = publisher.publish()
    reference, number = Reference(store, ledger), 3
    start = streamed(spark_session, table, tmp_path)
    query, compared, crossed = start(processingTime="1 second"), 0, 0
    with publishing(publisher) as done:
        while (phase := len(done) // SEGMENTS_IN_A_PHASE) < len(PHASES):
            more = dice.randint(0, 2) if number < 2 * len(done) + AHEAD else 0
            append(ledger, number, number + more)
            number += more
            reference.catch_up()
            let_go(ledger, reference, PHASES[phase], ([first, *done])[-1].segment)
            begin, end, wanted = reference.some(dice)
            border = ([first, *done])[-1].segment
            edges = {"startingPosition": str(begin), "endingPosition": str(end)}
            found = read_rows(store, includeMetadata="true", history=str(table), **edges)
            assert as_set(found) == as_set(wanted), (edges, PHASES[phase])
            if PHASES[phase] == "kept":
                assert as_set(found) == as_set(reference.log_alone(begin, end))
            compared, crossed = compared + 1, crossed + (begin.ledger_id <= border < end.ledger_id)
            if compared % 12 == 0:
                query.stop()
                query = start(processingTime="1 second")
            assert query.exception() is None
    query.stop()
    assert crossed > len(PHASES), f"{crossed} of {compared} ranges were in both"
    assert ledger.end().start.ledger_id > first.segment, "the log has let go of nothing"
    run_all(lambda: start(availableNow=True))
    out = [row for file in streamed_files(tmp_path / "out") for row in rows_of(file)]
    assert as_set(out) == as_set(reference.rows)
    found = spark_session.read.format("ledger").options(history=str(table), columns="n").load("orders")
    assert sorted(row.n for row in found.collect()) == list(range(2 * number))


def let_go(ledger: Ledger, reference: Reference, phase: str, published: int) -> None:
    """Trim the ledger by the phase's policy. Every trimmed row must be in the reference or in the table."""
    if phase == "kept":
        return
    if phase == "published goes":
        ledger.set_policy(deleteAfterPublish=1)
    else:
        ledger.set_policy(deleteAfterPublish=0, retentionTimeInMinutes=0, retentionSizeInMB=0)
    reference.cursor.acknowledge(min(Position(published + 1, 0), reference.end))
    ledger.trim()


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Return the rows that the sink wrote. Spark writes times in UTC without a zone."""
    found = pq.read_table(file)
    kinds = [
        field.with_type(pa.timestamp("us", tz="UTC")) if pa.types.is_timestamp(field.type) else field
        for field in found.schema
    ]
    return found.cast(pa.schema(kinds)).to_pylist(maps_as_pydicts="strict")


def streamed_files(out: Path) -> list[Path]:
    """Return the files in the sink's commit log. Its directory also has files of failed batches."""
    found = []
    for batch in sorted((out / "_spark_metadata").iterdir()):
        if not batch.name.startswith("."):
            lines = batch.read_text(encoding="utf-8").splitlines()[1:]
            found += [Path(json.loads(line)["path"].removeprefix("file://")) for line in lines]
    return sorted(set(found))
