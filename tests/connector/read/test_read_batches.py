"""Goal: plan, tasks and acknowledgement of a batch have one id. Method: offsets in Spark's order of calls."""

from __future__ import annotations

from pathlib import Path

from pyspark_ledger.connector.read.offsets import REPORT_KEY
from pyspark_ledger.connector.read.planner import TaskPartition
from pyspark_ledger.connector.read.read_batches import ReadBatches
from pyspark_ledger.ledger.api.ledger import Ledger
from tests.rigs.stream import reader, text

A, B, C = {"at": 0}, {"at": 1}, {"at": 2}


def test_a_batch_has_one_id_from_its_start_to_its_end() -> None:
    batches = ReadBatches()
    first = batches.after(A)
    assert batches.after(A) == first, "nothing was found, and the same start is planned again"
    assert batches.between(A, B) == first
    second = batches.after({**B, REPORT_KEY: {"v": 1}})
    assert second != first
    assert batches.after(B) == second, "a report is no part of the offset"
    assert batches.ending_at(B) == first
    assert batches.between(B, C) == second
    assert batches.ending_at(A) is None
    assert ReadBatches().after(A) != first, "another run"


def test_only_the_newest_ends_are_kept() -> None:
    batches = ReadBatches()
    for number in range(20):
        batches.between({"at": number}, {"at": number + 1})
    assert len(batches._ends) == 8
    assert batches.ending_at({"at": 20}) == batches.newest


def test_partitions_and_the_report_of_a_batch_have_its_id(store: Path, orders: Ledger) -> None:
    stream = reader(store, startingPosition="earliest", subscription="billing")
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, None))
    parts = stream.partitions(start, end)
    ids = {part.batch for part in parts if isinstance(part, TaskPartition)}
    report = stream.reportLatestOffset()
    assert report is not None
    assert ids == {report["batch"]["id"]} == {stream._batches.newest.batch}
    assert stream._batches.ending_at(end) == stream._batches.newest
    stream.stop()
