"""Goal: Spark's readers depend only on planners. Method: readers over planners of this file; a scan of the sources."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructType

from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.read.batch_reader import LedgerBatchReader
from pyspark_ledger.connector.read.offsets import LedgerOffset, StreamOffset
from pyspark_ledger.connector.read.planner import BatchPlanner, StreamPlanner, TaskPartition
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.ledger.position import Position

CONNECTOR = Path(__file__).parents[3] / "connector"
SMALLEST_LINES_MAX = 25


@dataclass(frozen=True)
class Numbers:
    first: int
    end: int

    def read(self) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": list(range(self.first, self.end))})


class NumbersScan(BatchPlanner):
    def schema(self) -> StructType:
        return StructType().add("n", LongType())

    def tasks(self) -> list[Numbers]:
        return [Numbers(0, 3), Numbers(3, 5)]


class NumbersStream(StreamPlanner):
    end = 5

    def initial(self) -> StreamOffset:
        return offset(0)

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        read = start.ledgers["n"].position.entry_id
        return offset(min(read + 2, self.end) if limited else self.end) if read < self.end else None

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[Numbers]:
        return [Numbers(*(one.ledgers["n"].position.entry_id for one in (start, end)))]

    def pin_end(self) -> None:
        self.end = 3


def offset(number: int) -> StreamOffset:
    return StreamOffset({"n": LedgerOffset(Position(0, number), "life")})


def read(reader: LedgerBatchReader | LedgerStreamReader, parts: list[InputPartition]) -> list[int]:
    """Return the rows of pickled copies of the tasks, as executors read them."""
    copy, parts = pickle.loads(pickle.dumps((reader, parts)))  # noqa: S301 — our own bytes
    assert vars(copy) == {}, "tasks say all that an executor needs"
    return [n for part in parts for batch in copy.read(part) for n in batch.column("n").to_pylist()]


def test_a_bounded_planner_is_read_by_sparks_reader() -> None:
    reader = LedgerBatchReader(NumbersScan())
    assert read(reader, list(reader.partitions())) == [0, 1, 2, 3, 4]
    for nothing in (None, InputPartition(None)):
        assert list(reader.read(nothing)) == []


def test_a_stream_planner_is_read_by_sparks_reader() -> None:
    made: list[NumbersStream] = []

    def plan() -> NumbersStream:
        made.append(NumbersStream())
        return made[0]

    reader = LedgerStreamReader(read_options({"path": "n"}), plan)
    reader.stop()
    assert made == [], "a reader that only pickles makes no planner"
    start = reader.initialOffset()
    first = reader.latestOffset(start, None)
    assert read(reader, list(reader.partitions(start, first))) == [0, 1]
    reader.prepareForTriggerAvailableNow()
    last = reader.latestOffset(first, None)
    assert read(reader, list(reader.partitions(first, last))) == [2]
    assert reader.latestOffset(last, None) is last, "an offset that did not move goes out as it came"
    reader.commit(last)
    assert reader.reportLatestOffset() is None
    assert len(made) == 1


def test_sparks_readers_exist_once() -> None:
    found: dict[str, list[str]] = {}
    for path in CONNECTOR.rglob("*.py"):
        if path.parent.name == "doctor":  # a probe of the platform, which reads no ledger
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for base in node.bases if isinstance(node, ast.ClassDef) else []:
                found.setdefault(ast.unparse(base), []).append(node.name)
    assert found["DataSourceReader"] == [LedgerBatchReader.__name__]
    assert found["*stream_reader_classes()"] == [LedgerStreamReader.__name__]
    assert "DataSourceStreamReader" not in found
    assert found["InputPartition"] == [TaskPartition.__name__]
    assert len(found["BatchPlanner"]) >= 5


def test_the_smallest_planner_is_small() -> None:
    listing = ast.parse((CONNECTOR / "read" / "bucket" / "listing.py").read_text(encoding="utf-8"))
    classes = [node for node in listing.body if isinstance(node, ast.ClassDef)]
    assert [node.name for node in classes] == ["ListingTask", "ListingScan"]
    assert sum((node.end_lineno or 0) - node.lineno + 1 for node in classes) <= SMALLEST_LINES_MAX
