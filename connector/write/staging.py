"""Staging of one task's rows. A staged part is a file with the task's entries for one ledger, invisible to readers.

The page docs/concepts.md explains the words entry, block and run.

    record batch ──route──▶ rows of a ledger ──collect──▶ about `entryBytes` ──encode──▶ entry ──▶ staged part

Invariants
- The rows of one ledger keep the task's order.
- Memory and open files are bounded for any number of ledgers. After every `_COLLECTED_BYTES_MAX` bytes of input, a task
  with several ledgers writes all collected rows and closes the files of its parts.
- An entry that does not fit a block of its ledger is halved, down to a single row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.connector.write.direct_part import large_part
from pyspark_ledger.connector.write.routing import by_ledger, kept_columns
from pyspark_ledger.connector.write.target import LedgerTarget, LedgerTargets, SinkTarget
from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata
from pyspark_ledger.ledger.message.column_encoding import RowEncoder
from pyspark_ledger.ledger.message.columns import ColumnFit, schema_from_bytes
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.message.run_marker import RunId
from pyspark_ledger.ledger.partition_routing import by_partition
from pyspark_ledger.ledger.protocol.commits import LedgerParts, OpenUpload, PartRun, StagedPart

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.transport.part_writer import PartWriter

_COLLECTED_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StagingTask:
    """Owner of staged rows: the query, the batch, the id of the batch's run, and the number of the task.

    A run is the entries of one batch in one ledger. Readers see all of them or none.
    """

    query: str
    batch: int
    run: RunId
    task: int

    @property
    def turn(self) -> int:
        """Number of the partition for rows without a key, in the first record batch. Every attempt has the same number.

        The number is the sum of a hash of the query, the batch's number and the task's number. Reason: a small batch is
        often one task with one record batch. With a fixed number, the rows of all small batches and of all queries
        would go to the same partition.
        """
        return self.run.most + self.batch + self.task


def staged_parts(
    client: Client, target: SinkTarget, task: StagingTask, batches: Iterable[pa.RecordBatch]
) -> list[LedgerParts]:
    """Write the rows of a task to new staged parts, one for each ledger. After an error, abort unfinished uploads."""
    streams: dict[str, _LedgerRows] = {}
    try:
        return _staged_parts(client, target, task, batches, streams)
    except BaseException:
        for stream in streams.values():
            stream.abort()
        raise


def _staged_parts(
    client: Client,
    target: SinkTarget,
    task: StagingTask,
    batches: Iterable[pa.RecordBatch],
    streams: dict[str, _LedgerRows],
) -> list[LedgerParts]:
    """Write the rows of a task. Add the writer of each ledger to `streams`."""
    targets = LedgerTargets(target, client.ask)
    size = 0
    for number, batch in enumerate(batches):
        for ledger, rows in _routed(target, targets, batch, task.turn + number):
            if ledger.name not in streams:
                streams[ledger.name] = _LedgerRows(client, target, ledger, task)
            streams[ledger.name].add(rows)
        size += batch.nbytes
        if size > _COLLECTED_BYTES_MAX and len(streams) > 1:
            for stream in streams.values():
                stream.rest()
            size = 0
    staged = []
    for name, stream in streams.items():
        part = stream.close()
        if part is not None:
            staged.append(LedgerParts(name, [part]))
    return staged


def _routed(
    target: SinkTarget, targets: LedgerTargets, batch: pa.RecordBatch, turn: int
) -> Iterator[tuple[LedgerTarget, pa.RecordBatch]]:
    """Yield the rows of a batch with their ledger or partition."""
    named = target.named
    for text, rows in by_ledger(batch, named.name if named is not None else ""):
        ledger = named if named is not None and text == named.name else targets.of(text)
        if not ledger.partitions:
            yield ledger, rows
            continue
        for partition, part in by_partition(rows, ledger.partitions, turn):
            yield targets.partition(ledger, partition), part


class _LedgerRows:
    """Rows of a task for one ledger. It collects rows until they fill an entry, and entries until the part is large."""

    def __init__(self, client: Client, target: SinkTarget, ledger: LedgerTarget, task: StagingTask) -> None:
        self._client, self._target, self._ledger, self._task = client, target, ledger, task
        self._where = f"the frame that is written to {ledger.name}"
        self._fit: ColumnFit | None = None
        self._collected: list[pa.RecordBatch] = []
        self._size = 0
        self._encoder = RowEncoder(target.compression)
        self._first: list[tuple[list[Buffer], int]] = []  # the entries, until the part is opened
        self._first_bytes = 0
        self._part: PartWriter | None = None
        self._ordinal = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Collect rows, and write them as soon as they fill an entry."""
        if self._fit is None:
            columns = schema_from_bytes(self._ledger.columns)
            self._fit = ColumnFit(pa.schema([*columns, *kept_columns(rows.schema.names)]))
        fitted = self._fit.fit(rows, self._where)
        most = self._target.entry_bytes
        per_entry = max(1, fitted.num_rows * most // max(fitted.nbytes, 1))
        for at in range(0, fitted.num_rows, per_entry):
            piece = fitted.slice(at, per_entry)
            if self._collected and self._size + piece.nbytes > most:
                self._write()
            self._collected.append(piece)
            self._size += piece.nbytes

    def rest(self) -> None:
        """Write the collected rows, and close the part's file. The next write opens the file again."""
        self._write()
        if self._first:
            self._open(large=False)
        if self._part is not None:
            self._part.rest()

    def abort(self) -> None:
        """Abort an upload into the bucket. A part that was sent to the broker stays until the broker deletes it."""
        if self._part is not None:
            self._part.abort()

    def close(self) -> StagedPart | None:
        """Write the collected rows, and return the complete part. Returns None if there were no rows."""
        self._write()
        if self._first:
            self._open(large=False)
        return None if self._part is None else self._part.close()

    def _write(self) -> None:
        batches, self._collected, self._size = self._collected, [], 0
        if not batches:
            return
        for entry, rows in self._entries(batches):
            if self._part is not None:
                self._part.write(entry, rows)
                continue
            self._first.append((entry, rows))
            self._first_bytes += sum(memoryview(buffer).nbytes for buffer in entry)
            if self._first_bytes >= self._ledger.upload_from:
                self._open(large=self._ledger.upload_from >= 0)

    def _open(self, *, large: bool) -> None:
        """Open the part, and write its first entries. A `large` part goes into the bucket."""
        query, batch, run = self._task.query, self._task.batch, self._task.run
        part_run = PartRun(query, batch, run.most, run.least, self._ledger.block_bytes, system_clock_ms())
        if large:
            upload = OpenUpload(query, batch, self._ledger.name, self._task.task)
            self._part = large_part(self._client, upload, part_run, self._target.uploads)
        else:
            self._part = self._client.stage_part(query, batch, part_run)
        entries, self._first = self._first, []
        for entry, rows in entries:
            self._part.write(entry, rows)

    def _entries(self, batches: list[pa.RecordBatch]) -> Iterator[tuple[list[Buffer], int]]:
        """Yield an entry with these rows, and its number of rows. If it does not fit a block, halve the rows."""
        rows = sum(batch.num_rows for batch in batches)
        run, most = self._task.run, self._ledger.entry_bytes_most
        metadata = arrow_metadata(
            f"spark-{self._task.query}",
            self._ordinal,
            system_clock_ms(),
            rows,
            self._ledger.schema_version,
            (run.most, run.least),
        )
        entry = encode_entry(metadata, self._encoder.encode(batches))
        size = sum(memoryview(buffer).nbytes for buffer in entry)
        if size <= most:
            self._ordinal += 1
            yield entry, rows
            return
        if rows == 1:
            raise Refused(
                f"one row for {self._ledger.name} takes {size} bytes, an entry holds at most {most}",
                hint="Split the value, or create the ledger with larger blocks",
            )
        table = pa.Table.from_batches(batches)
        for half in (table.slice(0, rows // 2), table.slice(rows // 2)):
            yield from self._entries(half.to_batches())
