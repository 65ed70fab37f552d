"""Base of the read benchmarks: a Python Arrow source that yields one prebuilt batch repeatedly.

    format("repeated")  rows=ROWS tasks=N batchRows=R rowBytes=B allowed=FILE [server=ADDRESS]

Each micro-batch has `rows` rows in `tasks` partitions. `FILE` contains the number of micro-batches in decimal digits.
The number may rise while the query runs. With `server`, the batches come from a bare Flight server, not from memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import flight
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.rows import block


def allow(path: Path, batches: int) -> None:
    """Allow queries to continue up to this batch. The file is replaced atomically, because queries poll it."""
    scratch = path.with_suffix(".new")
    scratch.write_text(str(batches))
    scratch.replace(path)


class RepeatedSource(DataSource):
    """Data source `repeated`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "repeated"

    def schema(self) -> str:
        """Return the columns of `benchmarks.rows`."""
        return "a bigint, b bigint, body binary"

    def streamReader(self, schema: StructType) -> RepeatedReader:  # noqa: N802, ARG002 — Spark's signature
        """Return the reader, made from the options only."""
        return RepeatedReader({key.lower(): value for key, value in self.options.items()})


class RepeatedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader whose offsets are numbers of micro-batches."""

    def __init__(self, options: dict[str, str]) -> None:
        self._allowed = Path(options["allowed"])
        self._rows, self._tasks = int(options["rows"]), int(options["tasks"])
        self._shape = int(options["batchrows"]), int(options["rowbytes"])
        self._server = options.get("server", "")

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the offset before the first micro-batch."""
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802, ARG002
        """Return the next offset, if FILE allows it."""
        allowed = int(self._allowed.read_text())
        return {"n": start["n"] + 1} if start["n"] < allowed else start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: FILE is the end already."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:  # noqa: ARG002
        """Return equal shares of the rows."""
        share, more = divmod(self._rows, self._tasks)
        return [InputPartition(share + (task < more)) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the prebuilt batch until all rows are returned."""
        if self._server:
            yield from _fetched(self._server, partition.value, *self._shape)
        else:
            yield from repeated(partition.value, *self._shape)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the source keeps no state."""

    def stop(self) -> None:
        """Do nothing: the source holds no resource."""


def repeated(rows: int, batch_rows: int, row_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield `rows` rows in batches of at most `batch_rows`."""
    batch = block(batch_rows, row_bytes)
    for _ in range(rows // batch_rows):
        yield batch
    if rows % batch_rows:
        yield batch.slice(0, rows % batch_rows)


_connections: dict[str, flight.FlightClient] = {}


def _fetched(server: str, rows: int, batch_rows: int, row_bytes: int) -> Iterator[pa.RecordBatch]:
    if server not in _connections:
        _connections[server] = flight.connect(server)
    reader = _connections[server].do_get(flight.Ticket(f"{rows},{batch_rows},{row_bytes}"))
    while True:
        try:
            yield reader.read_chunk().data
        except StopIteration:
            return


class BareServer(flight.FlightServerBase):
    """Flight server that answers a ticket `rows,batch_rows,row_bytes` with the prebuilt batch, repeatedly."""

    def do_get(self, _context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        """Return the rows. No Python code runs between two batches."""
        rows, batch_rows, row_bytes = (int(number) for number in ticket.ticket.split(b","))
        schema = block(batch_rows, row_bytes).schema
        return flight.RecordBatchStream(
            pa.RecordBatchReader.from_batches(schema, repeated(rows, batch_rows, row_bytes))
        )
