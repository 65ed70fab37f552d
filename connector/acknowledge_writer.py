"""Acknowledging rows from Spark: `df.write.format("ledger").mode("append").option("action", "ack")…save("orders")`.

    task      rows → their positions, as bits by entry → message
    driver    all messages → one call → the cursor's ledger, synced

Rules
- All rows of a write are acknowledged, or none: a position that is not in the log refuses the whole write.
- Writing the same frame again changes nothing, so Spark may repeat tasks and the commit as it likes.
- Of the frame one column is read, `__position` or else `__messageId`; the others may be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from connector.acknowledged_positions import MESSAGE_ID, POSITION, acknowledged
from connector.connection import DriverConnection
from connector.options import LedgerOptions, require_ledger
from connector.spark_face import spark_face
from ledger.broker.acknowledge_stream import acknowledge
from ledger.cursor_calls import NameCursor
from ledger.errors import Refused
from ledger.names import canonical_name
from ledger.partitions import partition_names
from ledger.protocol import AcknowledgeCommand, AskEnd, NameLedger
from ledger.store_location import store_location

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class PositionsMessage(WriterCommitMessage):
    """What a task tells the committer: an Arrow IPC stream of `ledger.acknowledged_rows`."""

    positions: bytes


@spark_face
class LedgerAcknowledgeWriter(DataSourceArrowWriter):
    """Acknowledges the rows of a DataFrame in a subscription's name, or gives them back."""

    def __init__(self, options: LedgerOptions, schema: StructType) -> None:
        self._options = options
        self._ledger = canonical_name(require_ledger(options))
        self._column = position_column(schema, options)
        connection = self._connection()
        # Both must be there before any task runs.
        count = connection.call(lambda client: client.call("partitions", NameLedger(self._ledger))).partitions
        self._incarnation = ""
        if count:
            # One that was added lately has no cursor until its rows are read.
            self._require_cursor(connection, partition_names(self._ledger, 1)[0])
        else:
            self._require_cursor(connection, self._ledger)
            self._incarnation = connection.call(lambda client: client.call("end", AskEnd(self._ledger))).incarnation

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PositionsMessage:
        """On an executor: the positions of one task's rows."""
        sink = pa.BufferOutputStream()
        stream = None
        for batch in acknowledged(iterator, self._column):
            if stream is None:
                stream = pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
            stream.write_batch(batch)
        if stream is None:
            return PositionsMessage(b"")
        stream.close()
        return PositionsMessage(sink.getvalue().to_pybytes())

    def commit(self, messages: list[PositionsMessage | None]) -> None:  # type: ignore[override]
        """On the driver: one call for all of them, durable when it returns."""
        lost = sum(message is None for message in messages)
        if lost:
            raise Refused(f"{lost} of {len(messages)} tasks sent no positions: nothing was acknowledged")
        told = [message.positions for message in messages if message is not None and message.positions]
        batches = [batch for positions in told for batch in pa.ipc.open_stream(positions)]
        if not batches:
            return
        command = AcknowledgeCommand(
            self._ledger, self._options.subscription or "", self._incarnation, self._options.action or "ack"
        )
        connection = self._connection()
        connection.call(
            lambda client: acknowledge(client, command, batches, deadline_ms=self._options.commit_timeout_ms)
        )

    def abort(self, messages: list[PositionsMessage | None]) -> None:  # type: ignore[override]
        """Nothing was acknowledged, so there is nothing to undo."""

    def _require_cursor(self, connection: DriverConnection, log: str) -> None:
        named = NameCursor(log, self._options.subscription or "", precise=False)
        connection.call(lambda client: client.call("cursor.describe", named))

    def _connection(self) -> DriverConnection:
        return DriverConnection(store_location(self._options.store), credentials=self._options.credentials())


def position_column(schema: StructType, options: LedgerOptions) -> str:
    """The column that says which rows are meant; Refused when there is none, or when nobody is named to mean them."""
    if not options.subscription:
        raise Refused(
            f"action {options.action!r} on ledger {options.ledger!r} names no subscription",
            hint='Give option("subscription", …): whose acknowledgement it is',
        )
    kinds = {POSITION: "struct<ledgerId:bigint,entryId:bigint,batchIndex:int>", MESSAGE_ID: "binary"}
    for name, kind in kinds.items():
        if name in schema.names:
            found = schema[name].dataType.simpleString()
            if found != kind:
                raise Refused(f"column {name!r} is {found}, a place in a ledger is {kind}")
            return name
    raise Refused(
        f"action {options.action!r} needs a column {POSITION!r} or {MESSAGE_ID!r}, the frame has "
        f"{', '.join(schema.names)}",
        hint='Read the rows with option("includeMetadata", "true")',
    )
