"""Acknowledgement and negative acknowledgement of a DataFrame's rows: the write action `ack` or `nack`.

After a negative acknowledgement (`nack`), the rows are delivered again. The page docs/concepts.md explains the words
entry, cursor and subscription.

    df.write.format("ledger").mode("append").option("action", "ack")…save("orders")
    acknowledge(done, "orders", subscription="billing")          the same write as one call

    task      rows → their positions, as bits for each entry → message
    driver    all messages → one call → the broker writes and syncs the cursor's log

    __position   struct<ledgerId bigint, entryId bigint, batchIndex int>
    __messageId  Pulsar's MessageIdData: 08 ledger  10 entry  [18 partition]  [20 batch index]  [30 batch size]

Rules
- A write acknowledges all of its rows or none. If a position is not in the log, the whole write is refused.
- Writing the same frame again changes nothing. So Spark may repeat tasks and the commit.
- A write reads the column `__position` of the frame. If it is missing, the write reads `__messageId`.
- A row without a batch index (-1) means the whole entry.
- Columns are converted as arrays, never row by row.
- A null value, or bytes that are not a message id, are refused. The error names the row in the batch.

Rules of `acknowledge_frame`
- The function selects the column of positions, runs the write, and raises the write's errors.
- During the write, the function changes one setting of the session. Reason: with the usual value, Spark measures the
  bytes of an Arrow batch after each row. For small rows like positions, this is most of the write's cost. After the
  write, also after a failure, the function restores the setting.
- The calls of one process run one after the other. Otherwise a second call would read the changed setting, and restore
  the wrong value.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.connector.options.options import LedgerOptions, require_ledger
from pyspark_ledger.connector.spark_errors import plain_errors
from pyspark_ledger.connector.triggers import running_trigger
from pyspark_ledger.ledger.client.acknowledge import acknowledge
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.logs.batch import BatchId, in_batch
from pyspark_ledger.ledger.logs.json_lines import log_connector_by
from pyspark_ledger.ledger.logs.steps import timed_step
from pyspark_ledger.ledger.message.varints import gather
from pyspark_ledger.ledger.names import canonical_name, partition_names
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batches
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand, AskEnd
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor
from pyspark_ledger.ledger.protocol.ledgers import AskPartitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


POSITION, MESSAGE_ID = "__position", "__messageId"
Integers = npt.NDArray[np.int64]
_JOIN_ROWS = 1_000_000
_LEDGER, _ENTRY, _PARTITION, _ROW, _BATCH_SIZE = 0x08, 0x10, 0x18, 0x20, 0x30
_IGNORED = (_PARTITION, _BATCH_SIZE)


def acknowledged(rows: Iterable[pa.RecordBatch], column: str) -> Iterator[pa.RecordBatch]:
    """Yield the positions of all rows of a task, as batches for the request. Small batches are joined."""
    pending: list[tuple[Integers, Integers, Integers]] = []
    count = 0
    for batch in rows:
        if batch.num_rows:
            pending.append(places(batch.column(batch.schema.get_field_index(column)), column))
            count += batch.num_rows
        if count >= _JOIN_ROWS:
            yield from _joined(pending)
            pending, count = [], 0
    if pending:
        yield from _joined(pending)


def places(values: pa.Array, column: str) -> tuple[Integers, Integers, Integers]:
    """Return ledger, entry and row of each value."""
    if values.null_count:
        where = int(np.flatnonzero(np.asarray(values.is_null()))[0])
        raise Refused(f"column {column!r} is null in row {where} of a batch", hint="Filter out rows with a null")
    if column == POSITION:
        return _of_structs(values)
    return _of_message_ids(values)


def _joined(pending: list[tuple[Integers, Integers, Integers]]) -> Iterator[pa.RecordBatch]:
    ledgers, entries, rows = (np.concatenate(parts) for parts in zip(*pending, strict=True))
    return acknowledge_batches(ledgers, entries, rows)


def _of_structs(values: pa.StructArray) -> tuple[Integers, Integers, Integers]:
    fields = []
    for name in ("ledgerId", "entryId", "batchIndex"):
        field = values.field(name)
        if field.null_count:
            raise Refused(f"column {POSITION!r} has a null {name}", hint="Filter out rows with a null")
        fields.append(np.asarray(field).astype(np.int64))
    return fields[0], fields[1], fields[2]


def _of_message_ids(values: pa.Array) -> tuple[Integers, Integers, Integers]:
    if pa.types.is_large_binary(values.type):
        values = values.cast(pa.binary())
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)[values.offset : values.offset + count + 1]
    content = values.buffers()[2]
    bytes_ = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, dtype=np.uint8)
    data = bytes_[offsets[0] : offsets[-1]]
    bounds = offsets.astype(np.int64) - int(offsets[0])
    stops = np.flatnonzero(data < 0x80)
    starts = np.append(0, stops + 1)[:-1]
    first = np.searchsorted(stops, bounds[:-1])
    tokens = np.diff(np.append(first, len(stops)))
    ends = np.append(-1, stops)[first + tokens] + 1
    whole = (tokens > 0) & (tokens % 2 == 0) & (ends == bounds[1:])
    found = {_LEDGER: np.full(count, -1), _ENTRY: np.full(count, -1), _ROW: np.full(count, -1)}  # by Protobuf tag
    for at in range(0, int(tokens.max(initial=0)), 2):
        rows = np.flatnonzero(whole & (tokens > at))
        tag_at, value_at = first[rows] + at, first[rows] + at + 1
        tags = np.where(stops[tag_at] == starts[tag_at], data[stops[tag_at]], 0)
        try:
            numbers = gather(data, starts[value_at], stops[value_at] - starts[value_at] + 1, MESSAGE_ID).view(np.int64)
        except Corrupt as wrong:
            raise Refused(
                str(wrong.message), hint="Give the unchanged column of a read with includeMetadata"
            ) from wrong
        for tag, column in found.items():
            of_tag = tags == tag
            column[rows[of_tag]] = numbers[of_tag]
        whole[rows[~np.isin(tags, (*found, *_IGNORED))]] = False
    wrong_rows = np.flatnonzero(~whole | (found[_LEDGER] < 0) | (found[_ENTRY] < 0))
    if len(wrong_rows):
        value = values[int(wrong_rows[0])].as_py()
        raise Refused(
            f"column {MESSAGE_ID!r} holds {value[:32].hex() or 'nothing'} in row {int(wrong_rows[0])} of a batch, "
            "which is no message id",
            hint="Give the unchanged column of a read with includeMetadata",
        )
    return found[_LEDGER], found[_ENTRY], found[_ROW]


@dataclass(frozen=True)
class PositionsMessage(WriterCommitMessage):
    """Message of a task to the committer: an Arrow IPC stream of `ledger.positions.acknowledge_request`."""

    positions: bytes
    trigger: str = ""
    """`QUERY:BATCH` as Spark names the task's trigger, for logs; empty outside of a streaming query."""


@plain_errors
class LedgerAcknowledgeWriter(DataSourceArrowWriter):
    """Writer that acknowledges the rows of a DataFrame for a subscription, or acknowledges them negatively."""

    def __init__(self, options: LedgerOptions, schema: StructType) -> None:
        self._options = options
        self._ledger = canonical_name(require_ledger(options))
        self._column = position_column(schema, options)
        connection = self._connection()
        # Ledger and cursor must exist before any task runs.
        count = connection.ask(AskPartitions(self._ledger)).partitions
        self._incarnation = ""
        if count:
            # Only the first partition is checked, because a new partition has no cursor until its rows are read.
            self._require_cursor(connection, partition_names(self._ledger, 1)[0])
        else:
            self._require_cursor(connection, self._ledger)
            self._incarnation = connection.ask(AskEnd(self._ledger)).incarnation

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PositionsMessage:
        """Return the positions of one task's rows. Runs on an executor."""
        sink = pa.BufferOutputStream()
        stream = None
        for batch in acknowledged(iterator, self._column):
            if stream is None:
                stream = pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
            stream.write_batch(batch)
        if stream is None:
            return PositionsMessage(b"")
        stream.close()
        return PositionsMessage(sink.getvalue().to_pybytes(), running_trigger())

    def commit(self, messages: list[PositionsMessage | None]) -> None:  # type: ignore[override]
        """Acknowledge the positions of all messages in one call. They are durable on return. Runs on the driver."""
        missing = sum(message is None for message in messages)
        if missing:
            raise Refused(f"{missing} of {len(messages)} tasks sent no positions: nothing was acknowledged")
        streams = [message.positions for message in messages if message is not None and message.positions]
        batches = [batch for stream in streams for batch in pa.ipc.open_stream(stream)]
        if not batches:
            return
        command = AcknowledgeCommand(
            self._ledger, self._options.subscription or "", self._incarnation, self._options.action or "ack"
        )
        connection = self._connection()
        log_connector_by()
        trigger = next((message.trigger for message in messages if message is not None and message.trigger), "")
        with in_batch(BatchId(trigger or new_id(), trigger)), timed_step("acknowledge", ledger=self._ledger):
            connection.call(
                lambda client: acknowledge(client, command, batches, deadline_ms=self._options.commit_timeout_ms)
            )

    def abort(self, messages: list[PositionsMessage | None]) -> None:  # type: ignore[override]
        """Do nothing, because nothing was acknowledged."""

    def _require_cursor(self, connection: DriverConnection, log: str) -> None:
        named = DescribeCursor(log, self._options.subscription or "", precise=False)
        connection.ask(named)

    def _connection(self) -> DriverConnection:
        return DriverConnection(store_location(self._options.store), credentials=self._options.credentials())


def position_column(schema: StructType, options: LedgerOptions) -> str:
    """Return the name of the column with positions. Raises Refused if it is missing, or no subscription is named."""
    if not options.subscription:
        raise Refused(
            f"action {options.action!r} on ledger {options.ledger!r} names no subscription",
            hint='Name the subscription that acknowledges, with option("subscription", …)',
        )
    kinds = {POSITION: "struct<ledgerId:bigint,entryId:bigint,batchIndex:int>", MESSAGE_ID: "binary"}
    for name, kind in kinds.items():
        if name in schema.names:
            found = schema[name].dataType.simpleString()
            if found != kind:
                raise Refused(f"column {name!r} is {found}, expected {kind}")
            return name
    raise Refused(
        f"action {options.action!r} needs a column {POSITION!r} or {MESSAGE_ID!r}, the frame has "
        f"{', '.join(schema.names)}",
        hint='Read the rows with option("includeMetadata", "true")',
    )


MEASURED = "spark.sql.execution.arrow.maxBytesPerBatch"
_NOT_MEASURED = str(2**31 - 1)
_lock = threading.Lock()


def acknowledge_frame(
    frame: DataFrame, ledger: str, subscription: str, action: Literal["ack", "nack"], options: Mapping[str, str]
) -> None:
    """Acknowledge the rows of a frame that was read with `includeMetadata`, or acknowledge them negatively.

    The acknowledgements are durable on return.
    """
    column = next((name for name in (POSITION, MESSAGE_ID) if name in frame.columns), None)
    write = (frame if column is None else frame.select(column)).write.format("ledger").mode("append")
    with _lock, _unmeasured(frame.sparkSession):
        write.options(**options).option("action", action).option("subscription", subscription).save(ledger)


@contextmanager
def _unmeasured(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(MEASURED, None)
    spark.conf.set(MEASURED, _NOT_MEASURED)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(MEASURED)
        else:
            spark.conf.set(MEASURED, before)
