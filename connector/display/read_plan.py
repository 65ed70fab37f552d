"""Plan of a batch read: its columns, and the ranges that each task reads, as a value, a text and a picture.

The page docs/concepts.md explains the words entry and segment.

    orders  1,200 rows in 40 entries
    ▇▇▇▇▇▇▇▇ ▇▇▇▇▇▇ ▇▇▇▇ ▇▇▇ ▇▇        segments by place
         ━━━━━━━━━ ━━━━━━━━━ ━━        tasks

Rules
- `explain` returns the plan that Spark would get now. Spark plans again when it runs a query. So the query also reads
  rows that are appended until then.
- No entry is read.
- In a plan of a bucket, tasks are listed and not drawn, because no broker describes the segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.options.options import LedgerOptions, read_options
from pyspark_ledger.connector.read.bucket.task import BucketTask
from pyspark_ledger.connector.read.ledger.task import LedgerTask
from pyspark_ledger.connector.read.planner import Task, TaskPartition
from pyspark_ledger.connector.read.table.task import TableTask
from pyspark_ledger.ledger.display.amounts import counted, size_words
from pyspark_ledger.ledger.display.ledger_picture import facts
from pyspark_ledger.ledger.display.markup import COLOURS, Element, bar, card, shown, soft_line, svg, written
from pyspark_ledger.ledger.display.strip import Strip
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.names import canonical_name, partition_name, short_name
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import DescribeLedger, LedgerDescription
from pyspark_ledger.ledger.version import __version__

_LISTED, _DRAWN_LEDGERS, _DRAWN_TASKS = 20, 8, 240
_STRIP, _TASK = 14, 6


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """Part of a task: a range of one ledger, read from the log, the bucket or the table.

    `size_bytes` is -1 for a part in the log, because the driver does not know this size. `files` is the number of files
    for a part in a table.
    """

    task: int
    ledger: str
    source: Literal["log", "bucket", "table"]
    range: PositionRange
    size_bytes: int = -1
    files: int = 0

    def __str__(self) -> str:
        name = shown(short_name(self.ledger)) if self.ledger else "rows"
        size = "" if self.size_bytes < 0 else f", {size_words(self.size_bytes)}"
        files = f", {counted(self.files, 'file')}" if self.files else ""
        return f"task {self.task}: {name} {self.range} from the {self.source}{files}{size}"


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Plan of a read. `tasks` is the number of Spark's tasks. `ledgers` describes the first ledgers of the plan."""

    columns: tuple[str, ...]
    tasks: int
    parts: tuple[PlannedPart, ...]
    ledgers: tuple[LedgerDescription, ...] = ()

    def __repr__(self) -> str:
        lines = [f"ReadPlan: {self._summary()}", f"  columns: {shown(', '.join(self.columns))}"]
        for described in self.ledgers:
            strip = Strip(described)
            lines.append(f"  {shown(short_name(described.name))}: {facts(described)} {strip.text()}")
        return "\n".join([*lines, *(f"  {line}" for line in self._list())])

    def _repr_html_(self) -> str:
        drawn = [element for described in self.ledgers for element in self._drawn(described)]
        columns = soft_line(f"columns: {', '.join(self.columns)}")
        return written(card("Plan of a read", self._summary(), columns, *drawn, *map(soft_line, self._list())))

    def _summary(self) -> str:
        logs = len({part.ledger for part in self.parts})
        return f"{counted(self.tasks, 'task')}, {counted(logs, 'ledger')}" if self.tasks else "nothing to read"

    def _list(self) -> list[str]:
        more = len(self.parts) - _LISTED
        return [str(part) for part in self.parts[:_LISTED]] + ([f"and {counted(more, 'more part')}"] * (more > 0))

    def _drawn(self, described: LedgerDescription) -> list[Element]:
        strip, parts = Strip(described), [part for part in self.parts if part.ledger == described.name]
        bars = [_part_bar(strip, part) for part in parts[:_DRAWN_TASKS]]
        label = f"tasks on the segments of {short_name(described.name)}"
        drawing = svg(_STRIP + _TASK + 4, label, *strip.drawn(0, _STRIP), *bars)
        return [soft_line(f"{short_name(described.name)}: {facts(described)}"), drawing, strip.legend()]


def _part_bar(strip: Strip, part: PlannedPart) -> Element:
    start, end = strip.x(part.range.start), strip.x(part.range.end)
    opacity = ".9" if part.task % 2 == 0 else ".5"
    fill = COLOURS["table"] if part.source == "table" else "currentColor"
    return bar(start, _STRIP + 4, max(end - start - 1, 1), _TASK, str(part), rx=2, fill=fill, fill_opacity=opacity)


def explain(options: Mapping[str, str]) -> ReadPlan:
    """Return the plan of a read with these options of `format("ledger")`. Raises the errors of such a read."""
    parsed = read_options(options)
    if parsed.bucket is None and not parsed.store:  # otherwise each step prints the default store
        options = {**options, "store": store_location(None)}
    source = LedgerSource(options, __version__)
    named = canonical_name(parsed.ledger) if parsed.ledger and parsed.table is None else ""
    schema = source.schema()
    partitions = source.batch_reader(schema).partitions()
    tasks = [partition.value for partition in partitions if isinstance(partition, TaskPartition)]
    parts = tuple(part for number, task in enumerate(tasks) for part in planned_parts(number, task, named))
    return ReadPlan(tuple(schema.fieldNames()), len(tasks), parts, _described(parsed, parts))


def planned_parts(number: int, task: Task, named: str) -> list[PlannedPart]:
    """Return the parts of a task. A read with the option `table`, of facts about the store, has tasks without parts.

    `named` is the ledger of the read, or empty if the read has several ledgers. A task of a published table does not
    name its ledger, so it has the ledger `named`.
    """
    if isinstance(task, LedgerTask):
        return [PlannedPart(number, part.ledger, "log", part.range) for part in task.ranges]
    if isinstance(task, TableTask):
        wanted, files = task.part.wanted, task.part.files
        size = sum(share.size_bytes for share in files)
        ledger = named if task.partition < 0 or not named else partition_name(named, task.partition)
        return [PlannedPart(number, ledger, "table", wanted.range, size, len(files))]
    if isinstance(task, BucketTask) and task.part.ranges:
        first, last = task.part.ranges[0], task.part.ranges[-1]
        range_ = PositionRange(Position(first.ledger_id, first.first), Position(last.ledger_id, last.end))
        size = sum(part.end_offset - part.offset for part in task.part.ranges)
        return [PlannedPart(number, task.topic, "bucket", range_, size)]
    return []


def _described(options: LedgerOptions, parts: Sequence[PlannedPart]) -> tuple[LedgerDescription, ...]:
    """Return the descriptions of the first ledgers. Empty if the broker or one of the ledgers is not found."""
    names = list(dict.fromkeys(part.ledger for part in parts if part.ledger))[:_DRAWN_LEDGERS]
    if options.bucket is not None or not names:
        return ()
    connection = DriverConnection(store_location(options.store), credentials=options.credentials())
    try:
        return tuple(connection.ask(DescribeLedger(name)) for name in names)
    except LedgerError:
        return ()
