"""What a store knows of itself as DataFrames: `spark.read.format("ledger").option("table", "cursors").load("orders")`.

    ledgers    one row for each ledger of the store, or for the one that is loaded
    segments   the ledgers (segments) that a managed ledger is made of
    cursors    its durable cursors: where they stand, what they have left, what they acknowledged out of order
    holes      what cursors acknowledged beyond their mark-delete, range by range, and entries of which rows are left
    cache      the counts of the broker's cache

Rules
- Asked once, on the driver, when the read is planned; no entry of the log is read. Without a ledger a table is of all
  ledgers of the store.
- Holes may be millions: a cursor's cross to its task as the bytes that they are kept in, and become rows there.
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
from pyspark_ledger.ledger.protocol.actions import Empty, LedgerDescription, NameLedger
from pyspark_ledger.ledger.protocol.cursors import AckedRanges, AskAckedRanges, CursorState, NameCursor

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.connector.options.options import LedgerOptions

_POSITION = pa.struct([pa.field("ledgerId", pa.int64()), pa.field("entryId", pa.int64())])
_HOLES_AT_ONCE = 64 * 1024
Row = dict[str, Any]


def _columns(text: str = "", positions: str = "", numbers: str = "") -> list[pa.Field]:
    kinds = ((text, pa.string()), (positions, _POSITION), (numbers, pa.int64()))
    return [pa.field(name, kind) for names, kind in kinds for name in names.split()]


@dataclass(frozen=True, slots=True)
class RowsTask:
    """The whole of a table, as a stream of Arrow."""

    table: bytes

    def read(self) -> Iterator[pa.RecordBatch]:
        return iter(pa.ipc.open_stream(self.table))


@dataclass(frozen=True, slots=True)
class AckedRangesTask:
    """The holes of one cursor, a PositionInfo."""

    ledger: str
    cursor: str
    info: bytes

    def read(self) -> Iterator[pa.RecordBatch]:
        """First the runs of whole entries, then the entries of which rows are left; ledger by ledger."""
        positions = decode_info(self.info, f"the holes of cursor {self.cursor!r}").acknowledged
        for runs in positions.runs():
            yield from self._cut(runs.ledger_id, runs.starts, runs.ends, np.zeros(len(runs.starts), np.int64))
        for ledger_id in positions.ledgers():
            rows = positions.rows(ledger_id)
            yield from self._cut(ledger_id, rows.entries, rows.entries + 1, rows.left_counts())

    def _cut(self, ledger_id: int, *columns: Integers) -> Iterator[pa.RecordBatch]:
        """Firsts, ends and rows left of one ledger's holes, so many at once."""
        for at in range(0, len(columns[0]), _HOLES_AT_ONCE):
            cut = [pa.array(values[at : at + _HOLES_AT_ONCE], pa.int64()) for values in columns]
            same = (self.ledger, self.cursor, pa.scalar(ledger_id, pa.int64()))
            arrays = [*(pa.repeat(value, len(cut[0])) for value in same), *cut]
            yield pa.RecordBatch.from_arrays(arrays, schema=_TABLES["holes"].schema)


class StoreTable(BatchPlanner):
    """Plan of a read of one table of one store."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options
        self._table = _TABLES[options.table or ""]

    def schema(self) -> StructType:
        return spark_schema(self._table.schema, self._options.table or "")

    def tasks(self) -> Sequence[RowsTask | AckedRangesTask]:
        options, table = self._options, self._table
        connection = DriverConnection(store_location(options.store), credentials=options.credentials())

        def ask(action: str, request: msgspec.Struct) -> Any:
            return connection.call(lambda client: client.call(action, request))

        if table.rows is None:
            return list(_holes(ask, options))
        return [_listed(table.schema, table.rows(ask, options))]


Ask = Callable[[str, msgspec.Struct], Any]


class _Table(NamedTuple):
    schema: pa.Schema
    rows: Callable[[Ask, LedgerOptions], Iterator[Row]] | None


def _listed(schema: pa.Schema, rows: Iterator[Row]) -> RowsTask:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_table(pa.Table.from_pylist(list(rows), schema=schema))
    return RowsTask(sink.getvalue().to_pybytes())


def _described(ask: Ask, options: LedgerOptions) -> list[LedgerDescription]:
    """The ledger that is loaded, in its partitions; all of the store where none is."""
    names = [canonical_name(options.ledger)] if options.ledger else ask("list", Empty()).names
    whole = [ask("describe", NameLedger(name)) for name in names]
    # A whole lists its partitions without their segments.
    return [
        described
        for one in whole
        for described in ([ask("describe", NameLedger(part.name)) for part in one.partitions] or [one])
    ]


def _ledgers(ask: Ask, options: LedgerOptions) -> Iterator[Row]:
    for one in _described(ask, options):
        yield {
            "ledger": one.name, "incarnation": one.incarnation, "start": _place(one.start), "end": _place(one.end),
            "entries": one.entries, "rows": one.rows, "sizeBytes": one.size_bytes, "segments": len(one.segments),
            "cursors": len(one.cursors), "lastPublishMs": one.last_publish_ms, "schemaVersion": one.schema_version,
        }  # fmt: skip


def _segments(ask: Ask, options: LedgerOptions) -> Iterator[Row]:
    for one in _described(ask, options):
        for part in one.segments:
            yield {
                "ledger": one.name, "ledgerId": part.ledger_id, "entries": part.entries, "rows": part.rows,
                "sizeBytes": part.size_bytes, "closeMs": part.close_ms,
            }  # fmt: skip


def _states(ask: Ask, options: LedgerOptions) -> Iterator[CursorState]:
    for one in _described(ask, options):
        for name in one.cursors:
            yield ask("cursor.describe", NameCursor(one.name, name))


def _cursors(ask: Ask, options: LedgerOptions) -> Iterator[Row]:
    for one in _states(ask, options):
        yield {
            "ledger": one.ledger, "cursor": one.cursor, "leaseHolder": one.lease_holder,
            "nextPosition": _place(one.next_position),
            "replayFloor": None if one.replay_floor is None else _place(one.replay_floor),
            "backlogEntries": one.backlog_entries, "backlogRows": one.backlog_rows, "backlogBytes": one.backlog_bytes,
            "acknowledgedRanges": one.acknowledged_ranges, "acknowledgedEntries": one.acknowledged_entries,
            "partialEntries": one.partial_entries, "cursorLedger": one.cursor_ledger,
            "leaseUntilMs": one.lease_until_ms,
        }  # fmt: skip


def _holes(ask: Ask, options: LedgerOptions) -> Iterator[AckedRangesTask]:
    for one in _states(ask, options):
        everything = PositionRange(one.next_position, LATEST)
        found: AckedRanges = ask("cursor.holes", AskAckedRanges(one.ledger, one.cursor, everything))
        if found.info:
            yield AckedRangesTask(one.ledger, one.cursor, found.info)


def _cache(ask: Ask, _: LedgerOptions) -> Iterator[Row]:
    for name, value in msgspec.structs.asdict(ask("cache", Empty())).items():
        if isinstance(value, int):
            yield {"metric": name, "value": value}


def _place(position: Position) -> dict[str, int]:
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
