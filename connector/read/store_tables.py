"""Metadata of a store as DataFrames: `spark.read.format("ledger").option("table", "cursors").load("orders")`.

    ledgers    one row for each ledger of the store, or for the loaded ledger
    segments   the segments of the ledgers
    cursors    the durable cursors: positions, backlogs, counts of individual acknowledgements
    holes      ranges that are acknowledged out of order, and partly acknowledged entries
    cache      the counters of the broker's cache

Rules
- The driver asks the broker once, when Spark plans the read. No entry is read. If `load()` names no ledger, a table
  covers all ledgers of the store.
- The mark-delete position of a cursor is the entry up to which it has acknowledged every entry. Entries after this
  position are acknowledged *out of order*.
- A cursor can have millions of acknowledged ranges. So the driver sends them to the task in their encoded form. The
  task decodes them into rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.connector.read.planner import BatchPlanner
from pyspark_ledger.connector.schema import spark_schema
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions.bitset import Integers
from pyspark_ledger.ledger.positions.position_info import decode_info
from pyspark_ledger.ledger.protocol.actions import DescribeLedger, LedgerDescription, ListLedgers
from pyspark_ledger.ledger.protocol.cache import AskCache
from pyspark_ledger.ledger.protocol.cursors import AskAckedRanges, CursorState, DescribeCursor
from pyspark_ledger.ledger.protocol.request import Ask

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.connector.options.options import LedgerOptions

_POSITION = pa.struct([pa.field("ledgerId", pa.int64()), pa.field("entryId", pa.int64())])
_ROWS_PER_BATCH = 64 * 1024
Row = dict[str, Any]


def _columns(text: str = "", positions: str = "", numbers: str = "") -> list[pa.Field]:
    kinds = ((text, pa.string()), (positions, _POSITION), (numbers, pa.int64()))
    return [pa.field(name, kind) for names, kind in kinds for name in names.split()]


@dataclass(frozen=True, slots=True)
class RowsTask:
    """Task with all rows of a table, as an Arrow IPC stream."""

    table: bytes

    def read(self) -> Iterator[pa.RecordBatch]:
        return iter(pa.ipc.open_stream(self.table))


@dataclass(frozen=True, slots=True)
class AckedRangesTask:
    """Task with the acknowledged ranges of one cursor, encoded as a PositionInfo."""

    ledger: str
    cursor: str
    info: bytes

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the ranges of acknowledged entries, then the entries with unacknowledged rows."""
        positions = decode_info(self.info, f"the holes of cursor {self.cursor!r}").acknowledged
        for runs in positions.runs():
            yield from self._batches(runs.ledger_id, runs.starts, runs.ends, np.zeros(len(runs.starts), np.int64))
        for ledger_id in positions.ledgers():
            rows = positions.rows(ledger_id)
            yield from self._batches(ledger_id, rows.entries, rows.entries + 1, rows.left_counts())

    def _batches(self, ledger_id: int, *columns: Integers) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one segment. `columns` are first entries, end entries, numbers of unacknowledged rows."""
        for row in range(0, len(columns[0]), _ROWS_PER_BATCH):
            slices = [pa.array(values[row : row + _ROWS_PER_BATCH], pa.int64()) for values in columns]
            constants = (self.ledger, self.cursor, pa.scalar(ledger_id, pa.int64()))
            arrays = [*(pa.repeat(value, len(slices[0])) for value in constants), *slices]
            yield pa.RecordBatch.from_arrays(arrays, schema=_TABLES["holes"].schema)


class StoreTable(BatchPlanner):
    """Plan of a read of a table about a store."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options
        self._table = _TABLES[options.table or ""]

    def schema(self) -> StructType:
        return spark_schema(self._table.schema, self._options.table or "")

    def tasks(self) -> Sequence[RowsTask | AckedRangesTask]:
        options, table = self._options, self._table
        connection = DriverConnection(store_location(options.store), credentials=options.credentials())

        if table.rows is None:
            return list(_acked_ranges(connection.ask, options))
        return [_rows_task(table.schema, table.rows(connection.ask, options))]


class _Table(NamedTuple):
    schema: pa.Schema
    rows: Callable[[Ask, LedgerOptions], Iterator[Row]] | None


def _rows_task(schema: pa.Schema, rows: Iterator[Row]) -> RowsTask:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_table(pa.Table.from_pylist(list(rows), schema=schema))
    return RowsTask(sink.getvalue().to_pybytes())


def _descriptions(ask: Ask, options: LedgerOptions) -> list[LedgerDescription]:
    """Return the loaded ledger, or all ledgers of the store. A partitioned ledger is replaced by its partitions."""
    names = [canonical_name(options.ledger)] if options.ledger else ask(ListLedgers()).names
    ledgers = [ask(DescribeLedger(name)) for name in names]
    # A partitioned ledger lists its partitions without their segments.
    return [
        described
        for ledger in ledgers
        for described in ([ask(DescribeLedger(part.name)) for part in ledger.partitions] or [ledger])
    ]


def _ledgers(ask: Ask, options: LedgerOptions) -> Iterator[Row]:
    for ledger in _descriptions(ask, options):
        yield {
            "ledger": ledger.name, "incarnation": ledger.incarnation,
            "start": _position_value(ledger.start), "end": _position_value(ledger.end),
            "entries": ledger.entries, "rows": ledger.rows, "sizeBytes": ledger.size_bytes,
            "segments": len(ledger.segments), "cursors": len(ledger.cursors),
            "lastPublishMs": ledger.last_publish_ms, "schemaVersion": ledger.schema_version,
        }  # fmt: skip


def _segments(ask: Ask, options: LedgerOptions) -> Iterator[Row]:
    for ledger in _descriptions(ask, options):
        for segment in ledger.segments:
            yield {
                "ledger": ledger.name, "ledgerId": segment.ledger_id, "entries": segment.entries, "rows": segment.rows,
                "sizeBytes": segment.size_bytes, "closeMs": segment.close_ms,
            }  # fmt: skip


def _states(ask: Ask, options: LedgerOptions) -> Iterator[CursorState]:
    for ledger in _descriptions(ask, options):
        for name in ledger.cursors:
            yield ask(DescribeCursor(ledger.name, name))


def _cursors(ask: Ask, options: LedgerOptions) -> Iterator[Row]:
    for cursor in _states(ask, options):
        yield {
            "ledger": cursor.ledger, "cursor": cursor.cursor, "leaseHolder": cursor.lease_holder,
            "nextPosition": _position_value(cursor.next_position),
            "replayFloor": None if cursor.replay_floor is None else _position_value(cursor.replay_floor),
            "backlogEntries": cursor.backlog_entries, "backlogRows": cursor.backlog_rows,
            "backlogBytes": cursor.backlog_bytes,
            "acknowledgedRanges": cursor.acknowledged_ranges, "acknowledgedEntries": cursor.acknowledged_entries,
            "partialEntries": cursor.partial_entries, "cursorLedger": cursor.cursor_ledger,
            "leaseUntilMs": cursor.lease_until_ms,
        }  # fmt: skip


def _acked_ranges(ask: Ask, options: LedgerOptions) -> Iterator[AckedRangesTask]:
    for cursor in _states(ask, options):
        everything = PositionRange(cursor.next_position, LATEST)
        ranges = ask(AskAckedRanges(cursor.ledger, cursor.cursor, everything))
        if ranges.info:
            yield AckedRangesTask(cursor.ledger, cursor.cursor, ranges.info)


def _cache(ask: Ask, _: LedgerOptions) -> Iterator[Row]:
    for name, value in msgspec.structs.asdict(ask(AskCache())).items():
        if isinstance(value, int):
            yield {"metric": name, "value": value}


def _position_value(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


_TABLES = {
    "ledgers": _Table(
        pa.schema(
            _columns(
                "ledger incarnation", "start end",
                "entries rows sizeBytes segments cursors lastPublishMs schemaVersion",
            )
        ),
        _ledgers,
    ),
    "segments": _Table(pa.schema(_columns("ledger", "", "ledgerId entries rows sizeBytes closeMs")), _segments),
    "cursors": _Table(
        pa.schema(
            _columns(
                "ledger cursor leaseHolder", "nextPosition replayFloor",
                "backlogEntries backlogRows backlogBytes acknowledgedRanges acknowledgedEntries partialEntries "
                "cursorLedger leaseUntilMs",
            )
        ),
        _cursors,
    ),
    "holes": _Table(pa.schema(_columns("ledger cursor", "", "ledgerId firstEntry endEntry rowsLeft")), None),
    "cache": _Table(pa.schema(_columns("metric", "", "value")), _cache),
}  # fmt: skip
TABLES = tuple(_TABLES)
