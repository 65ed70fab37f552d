"""Lazy scan of a ledger: streams of Arrow batches for DuckDB, Polars, pandas and pyarrow.

    prices = connect().ledger("orders").scan(columns=["item", "price"], since="2026-11-22T10:00:00Z")
    duckdb.sql("select item, sum(price) from prices group by item")

Rules
- A scan reads no row before one of its streams is opened. Each stream is read anew, and streams do not affect another.
- A stream without an end ends at the end that the ledger had when the stream was opened. So each stream ends.
- Only the selected columns are decoded, and only the selected range is read.
- All streams of a scan have the columns that the ledger had at the first use of the scan. Columns that are added later
  are left out. A value for which these columns have no place raises Outdated.
- A stream holds one block of some MiB and its rows. It releases them when it ends, or when its consumer drops it.
- A partitioned ledger is read one partition after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from pyspark_ledger.ledger.client.schemas import registered_columns
from pyspark_ledger.ledger.clock import HOST_ZONE
from pyspark_ledger.ledger.consumer.opened_rows import OpenedRows, require_positions
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Outdated, Refused
from pyspark_ledger.ledger.names import nearest, short_name
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.reads import AskLogStatuses, LogStatus, OpenRead, ReadProgress
from pyspark_ledger.ledger.rows.batch_sizes import join_batches
from pyspark_ledger.ledger.rows.message_groups import MESSAGES
from pyspark_ledger.ledger.rows.metadata_columns import METADATA
from pyspark_ledger.ledger.times import Time, require_time

if TYPE_CHECKING:
    import polars as pl

    from pyspark_ledger.ledger.client.client import Client


_BATCH_BYTES = 4 * 1024 * 1024  # DuckDB takes its lock and Python's for each batch


class _Plan(NamedTuple):
    """Columns of all streams of a scan, and the incarnation of each log at the first use of the scan.

    `has_rows` is false for a ledger of messages. A log is a ledger without partitions, or one partition.
    """

    schema: pa.Schema
    has_rows: bool
    incarnations: dict[str, str]


class Scan:
    """Rows of a ledger as Arrow streams. Made by `Ledger.scan`.

    Any thread may open a stream. A scan can be pickled if its store can, and then opens its streams in the other
    process.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        columns: Iterable[str] | None,
        start: Position,
        end: Position | None,
        since: Time | None,
        until: Time | None,
    ) -> None:
        self.name = name
        self._client = client
        self._columns = None if columns is None else _column_names(columns)
        self._start, self._end = start, end
        self._since = None if since is None else require_time("since", since, HOST_ZONE)
        self._until = None if until is None else require_time("until", until, HOST_ZONE)
        require_positions(start=start, **({} if end is None else {"end": end}))
        _require_bounds("start", None if start == EARLIEST else start, "since", since)
        _require_bounds("end", end, "until", until)
        for begins, ends in ((start, end), (self._since, self._until)):
            if begins is not None and ends is not None and begins > ends:  # type: ignore[operator]
                raise Refused(f"the scan of {short_name(name)!r} begins at {begins} and ends before it, at {ends}")

    def __repr__(self) -> str:
        given = {
            "columns": self._columns,
            "start": None if self._start == EARLIEST else str(self._start),
            "end": self._end and str(self._end),
            "since": self._since,
            "until": self._until,
        }
        texts = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return f"Scan({', '.join([repr(short_name(self.name)), *texts])})"

    @property
    def schema(self) -> pa.Schema:
        """Columns of the streams. Raises NotFound for a missing ledger, and Refused for an unknown column."""
        return self._plan.schema

    def __arrow_c_schema__(self) -> object:
        """Return the columns as a capsule of Arrow's C interface."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Open a stream, as a capsule of Arrow's C interface. It is cast to the requested schema if there is one."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        """Open a stream as pyarrow's reader, for example for `pyarrow.dataset.Scanner.from_batches`."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Open a stream. Return an iterator over its batches, each of at most about 4 MiB."""
        return self._opened(self.schema)

    def table(self) -> pa.Table:
        """Return all rows of a new stream as one table, in memory."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def polars(self) -> pl.LazyFrame:
        """Return a lazy frame of Polars. Each `collect` opens a stream, and decodes the columns of its query only."""
        import polars as pl
        from polars.io.plugins import register_io_source

        schema = self.schema

        def frames(
            columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _: int | None
        ) -> Iterator[pl.DataFrame]:
            # A query that counts rows needs no column, and Arrow counts the rows of at least one column.
            names = schema.names if columns is None else columns or schema.names[:1]
            for batch in self._opened(pa.schema([schema.field(name) for name in names])):
                frame = pl.DataFrame(batch)
                frame = frame if predicate is None else frame.filter(predicate)
                if rows is not None:
                    frame = frame.head(rows)
                    rows -= frame.height
                yield frame
                if rows == 0:
                    return

        return register_io_source(frames, schema=pl.DataFrame(schema.empty_table()).schema)

    @cached_property
    def _plan(self) -> _Plan:
        columns = registered_columns(self._client.ask, self.name)
        own = MESSAGES if columns is None else columns
        fields = {field.name: field for field in (*METADATA, *own)}
        names = own.names if self._columns is None else self._columns
        for name in names:
            if name not in fields:
                near = nearest(name, fields)
                raise Refused(
                    f"columns names {name!r}, but ledger {short_name(self.name)!r} has no such column",
                    hint=f"Did you mean {near!r}?" if near else f"The columns are {', '.join(own.names)}",
                )
        schema = pa.schema([fields[name] for name in names])
        return _Plan(schema, columns is not None, {log.name: log.incarnation for log in self._logs()})

    def _logs(self) -> list[LogStatus]:
        """Return the logs of the ledger with the present bounds of the scan, in one call."""
        progress = ReadProgress(from_ms=self._since, until=self._end, until_ms=self._until, count=False)
        found = self._client.ask(AskLogStatuses([self.name], otherwise=progress))
        if found.missing:
            raise NotFound(f"there is no ledger {short_name(self.name)!r}", hint="It was deleted, or never existed")
        if (self._start != EARLIEST or self._end is not None) and [log.name for log in found.logs] != [self.name]:
            raise Refused(
                f"a range of positions of {short_name(self.name)!r} was requested, but this ledger has partitions",
                hint="Scan each partition: `.partitions()` returns them. Or give times: `since` and `until`",
            )
        return found.logs

    def _opened(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Open a stream with these columns of the scan. The end of each log is fixed before the first row is read."""
        plan, logs = self._plan, self._logs()
        for log in logs:
            _require_incarnation(log.name, plan.incarnations.get(log.name, log.incarnation), log.incarnation)
        return join_batches(self._rows(logs, schema), schema, _BATCH_BYTES)

    def _rows(self, logs: list[LogStatus], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for log in logs:
            start = log.begin if self._start == EARLIEST else self._start
            if start >= log.stop:
                continue
            opened = OpenedRows(self._client, OpenRead(log.name, start, log.stop), wanted=schema)
            _require_incarnation(log.name, log.incarnation, opened.incarnation)
            hint = "Make the scan again: call scan()"
            if (opened.columns is not None) != self._plan.has_rows:
                has, had = ("columns", "messages") if opened.columns else ("messages", "columns")
                message = f"{short_name(log.name)!r} has {has}, but the scan was made for a ledger of {had}"
                raise Outdated(message, hint=hint)
            try:
                yield from opened.batches()
            except Outdated as error:
                raise Outdated(error.message, hint=hint) from None


def _column_names(columns: Iterable[str]) -> list[str]:
    if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
        raise Refused(f"columns is {columns!r}, expected a list of names", hint='Use a form like ["id"]')
    names = list(columns)
    for name in names:
        if not isinstance(name, str):
            raise Refused(f"columns has {name!r}, expected a name", hint='Use a form like ["id"]')
        if names.count(name) > 1:
            raise Refused(f"columns names {name!r} {names.count(name)} times", hint="Name each column once")
    if not names:
        raise Refused("columns is empty, expected at least one name", hint="Leave columns out to read all columns")
    return names


def _require_bounds(place: str, position: object, moment: str, time: object) -> None:
    if position is not None and time is not None:
        raise Refused(f"{place} is {position} and {moment} is {time}, expected one of them", hint=f"Give no {place}")


def _require_incarnation(log: str, planned: str, found: str) -> None:
    """Raise DataLoss if a log was deleted and created again since the first use of the scan."""
    if planned != found:
        raise DataLoss(
            f"ledger {short_name(log)!r} was deleted and created again: its incarnation was {planned}, now {found}",
            hint="Make the scan again: call scan()",
        )
