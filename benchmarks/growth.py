"""Time of a call in a store with 10,000 things of one kind, over the time in a store with 10. The kinds are:
- segments, cursors and runs of a ledger;
- ledgers of a store;
- `holes`: entries of a cursor that are acknowledged individually.

For each kind there are two real stores, with the same number of entries. Only the count of the kind differs. Each store
has a broker of its own. A call is made in both stores in turns. The ratio is of times, the median of the rounds. The
benchmark calls the API like a user. Exception: it calls `latestOffset` of the stream reader, as Spark does. Stores are
filled through the log's own classes in memory, where a sync costs nothing, and then copied to the disk.

Timed calls
- `append`: one row. `roll over`: one row that seals the segment before it and opens another.
- `read`: the last 1,000 rows. `end`: the end of the log, and the number of entries after the first position.
- `describe`: without the lists of segments and cursors, as a writer calls it. With the lists, the answer has one item
  for each segment and cursor. So `describe, lists` is shown but is not part of the result.
- `state`: position and backlog of a cursor at the start of the log. `latestOffset`: the end of a limited batch of this
  backlog.
- `acknowledge`: all entries before a position. `acknowledge rows`: one entry out of order.
- `trim`: deletion of one segment that all cursors have read. `start`: start of a broker, from the command to its first
  answer.

`GROWTH=segments,runs/append` selects kinds, or calls of a kind. `GROWTH_MANY` is the larger count.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows

from benchmarks.harness import ROUNDS_MIN
from benchmarks.raw_disk import bench_dir
from benchmarks.recording_broker import connected
from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata, encode_rows
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.protocol.actions import AskEnd, CreateLedger, DescribeLedger, RegisterSchema
from pyspark_ledger.ledger.protocol.commits import CommitRun
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.transport.part_writer import PartWriter

FEW, MANY = 10, int(os.environ.get("GROWTH_MANY", "10000"))
TARGET = 3.0
ROWS, TAIL, SPARE = 100, 10, 30  # rows per entry; entries to read; segments to trim
_ENTRIES_MAX = "managedLedgerMaxEntriesPerLedger"
_COLUMNS = pa.schema([("n", pa.int64())])


def entry_of(rows: int, run: int | None = None) -> bytes:
    """Return an entry of `rows` rows."""
    batch = pa.record_batch([pa.array(np.arange(rows))], schema=_COLUMNS)
    metadata = arrow_metadata("growth", 0, system_clock_ms(), rows, 0, None if run is None else (7, run))
    return b"".join(bytes(part) for part in encode_entry(metadata, encode_rows([batch])))


class Filling:
    """Store in memory that is being filled, with its ledger `log`."""

    def __init__(self, path: Path) -> None:
        self.store = Store.open(path, settings=Settings(), clock=system_clock_ms, create=True)
        self.log: ManagedLedger = self.store.create_ledger(CreateLedger("log"))
        self.store.register_schema(RegisterSchema("log", schema_bytes(_COLUMNS), -1))

    def segments(self, count: int, entries: int = MANY) -> None:
        """Write `count` segments, which share the entries."""
        self.store.policies.change(ChangePolicy("log", values={_ENTRIES_MAX: 1}))
        entry = entry_of(ROWS)
        for _ in range(count):
            self.log.append([entry] * (entries // count)).result()
        self.store.policies.change(ChangePolicy("log", forget=[_ENTRIES_MAX]))

    def ledgers(self, count: int) -> None:
        """Create `count` ledgers besides `log`."""
        for number in range(count):
            self.store.create_ledger(CreateLedger(f"ledger-{number}"))

    def cursors(self, count: int) -> None:
        """Create `count` cursors at the end."""
        for number in range(count):
            self.store.cursors.open(OpenCursor("log", f"cursor-{number}", LATEST))

    def holes(self, count: int) -> None:
        """Acknowledge `count` single entries out of order. The ledger has three times `MANY` entries."""
        first = self.log.append([entry_of(1)] * 3 * MANY).result()
        entries = first.entry_id + 3 * np.arange(count)
        ledgers = np.full(count, first.ledger_id)
        self.store.cursors.open(OpenCursor("log", "billing", EARLIEST))
        lines = acknowledge_batch(ledgers, entries, np.full(count, -1))
        self.store.cursors.acknowledge("log", "billing", [lines])

    def runs(self, count: int) -> None:
        """Write `count` batches of one query, and one batch each of `count` queries. All share the entries."""
        for number in range(count):
            for query, batch in (("query", number), (f"query-{number}", 0)):
                with PartWriter.to_file(self.store.commits.open_part(query, batch)) as part:
                    for _ in range(MANY // count):
                        part.write([entry_of(1, run=number)], 1)
                    parts = [part.close()]
                self.store.commits.commit(CommitRun("log", query, batch, 7, number, parts, once=query != "query"))

    def close(self) -> None:
        """Append the rows that are read, create the two cursors, and close the store."""
        for cursor in ("billing", "slowest"):
            self.store.cursors.open(OpenCursor("log", cursor, EARLIEST))
        for _ in range(TAIL):
            self.log.append([entry_of(ROWS)]).result()
        self.store.close()


def made(folder: Path, number: str, count: int) -> Path:
    """Make a store in memory that has `count` objects of one kind, and copy it to `folder`. Return the copy."""
    path = folder / f"{number}-{count}"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        filling = Filling(Path(memory) / "store")
        if number != "segments":
            filling.segments(SPARE, SPARE)
        getattr(filling, number)(count)
        filling.close()
        shutil.copytree(Path(memory) / "store", path, ignore=shutil.ignore_patterns("lock*"))
    Store.open(path, settings=Settings(), clock=system_clock_ms, take_over=OwnerChange.BROKER).close()
    return path


class Side:
    """Store with its broker, and the timed calls. Each returns the seconds of `repeats` calls, or None."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.command = [sys.executable, "-m", "pyspark_ledger.offload.broker", "--store", str(path), "--idle", "0"]
        self.process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)
        self.client = connected(path, self.process)
        self.log = LedgerStore(self.client).ledger("log")
        self.name = canonical_name("log")
        self.billing = self.log.cursor("billing")
        described = self.log.describe()
        self.tail = Position(described.end.ledger_id, described.end.entry_id - TAIL)
        if self.tail.entry_id < 0:
            self.tail = Position(described.segments[-TAIL].ledger_id, 0)
        self.end_position = described.end
        self.places = [Position(part.ledger_id, part.entries) for part in described.segments]
        self.entries = self._entries(described.segments)
        self.acknowledged = 0
        source = LedgerSource(
            {"path": "log", "store": str(path), "subscription": "trigger", "startingposition": "earliest",
             "maxrowspertrigger": "1000"}, "growth",
        )  # fmt: skip
        self.reader: Any = source.stream_reader(source.schema())
        self.offset = self.reader.initialOffset()

    def _entries(self, segments: list[Any]) -> Iterator[tuple[int, int]]:
        """Return entries to acknowledge out of order, from the end backwards."""
        for part in reversed(segments):
            yield from ((part.ledger_id, number) for number in range(part.entries - 2, 0, -2))
        for part in reversed(segments):
            yield part.ledger_id, 0

    def read(self) -> None:
        """Read all of the last rows."""
        assert self.log.read(self.tail, self.end_position).num_rows == TAIL * ROWS  # noqa: S101 — all rows must be read

    def acknowledge(self) -> None:
        """Acknowledge all before the end of the next segment."""
        self.acknowledged += 1
        self.billing.acknowledge(self.places[min(self.acknowledged, len(self.places) - 1)])

    def trim(self) -> float:
        """Acknowledge the next segment, and trim it."""
        self.log.cursor("slowest").acknowledge(self.places.pop(0))
        began = time.perf_counter()
        trimmed = self.log.trim()
        seconds = time.perf_counter() - began
        assert len(trimmed.ledgers) == 1, trimmed  # noqa: S101 — as above
        return seconds

    def start(self) -> float:
        """Start a broker of the store, which has none."""
        began = time.perf_counter()
        process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)
        try:
            connected(self.path, process).close()
            return time.perf_counter() - began
        finally:
            process.terminate()
            process.wait()

    def rolling_over(self) -> None:
        """Make each append roll over."""
        self.log.set_policy(**{_ENTRIES_MAX: 1})

    def trimming(self) -> None:
        """Make `slowest` the only cursor that retains segments."""
        self.log.forget_policy(_ENTRIES_MAX)
        self.reader.stop()
        for cursor in ("billing", "trigger"):
            self.log.cursor(cursor).delete()
        self.places = [Position(part.ledger_id, part.entries) for part in self.log.describe().segments]
        self.log.set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)

    def leave(self) -> None:
        """End the broker."""
        self.client.close()
        self.process.terminate()
        self.process.wait()


_LISTS = "describe, lists"
Work = Callable[[Side], object]
CALLS: tuple[tuple[str, Work, int, Callable[[Side], None] | None], ...] = (
    ("read", Side.read, 3, None),
    ("end", lambda side: side.client.ask(AskEnd(side.name, since=EARLIEST)), 5, None),
    ("describe", lambda side: side.client.ask(DescribeLedger(side.name, lists=False)), 5, None),
    (_LISTS, lambda side: side.log.describe(), 1, None),
    ("state", lambda side: side.billing.state(), 5, None),
    ("latestOffset", lambda side: side.reader.latestOffset(side.offset, ReadMaxRows(1000)), 3, None),
    ("append", lambda side: side.log.append([{"n": 1}]), 3, None),
    ("acknowledge rows", lambda side: side.billing.acknowledge_rows([next(side.entries)]), 1, None),
    ("acknowledge", Side.acknowledge, 1, None),
    ("roll over", lambda side: side.log.append([{"n": 1}]), 2, Side.rolling_over),
    ("trim", Side.trim, 1, Side.trimming),
    ("start", Side.start, 1, Side.leave),
)
NUMBERS = ("segments", "ledgers", "cursors", "holes", "runs")


def timed(call: Work, side: Side, repeats: int) -> float:
    """Return the mean seconds of `repeats` calls. A call may return its own seconds."""
    began, reported = time.perf_counter(), 0.0
    for _ in range(repeats):
        said = call(side)
        reported += said if isinstance(said, float) else 0.0
    return (reported or time.perf_counter() - began) / repeats


def compared(name: str, call: Work, repeats: int, few: Side, many: Side) -> float:
    """Time one call in both stores in turns, and return the median of the ratios."""
    for side in (few, many):
        timed(call, side, 1)
    rounds = [(timed(call, few, repeats), timed(call, many, repeats)) for _ in range(ROUNDS_MIN)]
    quotient = statistics.median(large / small for small, large in rounds)
    small, large = (statistics.median(times) * 1000 for times in zip(*rounds, strict=True))
    print(f"  {name:<18}{small:>9.2f} ms{large:>9.2f} ms{quotient:>8.2f}", flush=True)
    return quotient


def measured(folder: Path, number: str, wanted: Callable[[str, str], bool]) -> dict[str, float]:
    """Measure all selected calls of one kind."""
    began = time.perf_counter()
    paths = [made(folder, number, count) for count in (FEW, MANY)]
    print(f"\n{number}: {FEW} and {MANY}, filled in {time.perf_counter() - began:.0f} s", flush=True)
    few, many = (Side(path) for path in paths)
    found: dict[str, float] = {}
    try:
        for name, call, repeats, before in CALLS:
            if not wanted(number, name):
                continue
            for side in (few, many):
                if before is not None:
                    before(side)
            found[name] = compared(name, call, repeats, few, many)
    finally:
        for side in (few, many):
            side.leave()
    return found


def main() -> None:
    """Measure each kind, print the table and the worst ratio."""
    given = [one for one in os.environ.get("GROWTH", "").split(",") if one]

    def wanted(number: str, call: str = "") -> bool:
        return (
            not given
            or number in given
            or (f"{number}/{call}" in given if call else any(one.startswith(f"{number}/") for one in given))
        )

    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        found = {number: measured(Path(name), number, wanted) for number in NUMBERS if wanted(number)}
    print(f"\n{'time at ' + str(MANY) + ' over 10':<20}" + "".join(f"{number:>10}" for number in found))
    for call, *_ in CALLS:
        cells = [f"{found[number][call]:>10.2f}" if call in found[number] else f"{'-':>10}" for number in found]
        print(f"{call:<20}{''.join(cells)}")
    cells = {(number, call): value for number in found for call, value in found[number].items() if call != _LISTS}
    worst = max(cells, key=lambda cell: cells[cell])
    print(f"worst: {worst[1]} at {MANY} {worst[0]}, target <= {TARGET:g}")
    print(f"ratio growth {cells[worst]:.3f}", flush=True)


if __name__ == "__main__":
    main()
