"""Tasks that read ranges of one or several ledgers from their broker, as record batches.

Rules
- Spark pickles a task. So a task contains no open connection, and nothing else that exists only in one process. If the
  broker requires a token, the task has a separate token, which only allows reads, and expires.
- A task connects to the broker at its address and checks the store id. It never starts a broker.
- If the broker of a store in a bucket moves to another address, a task that can read the bucket finds the new address
  (`connector.task_client`).
- If task and broker run on the same host, the task maps the blocks into its memory. Otherwise the broker sends them
  over Arrow Flight. A block is a part of a segment file that contains whole entries.
- A task fetches a block from the bucket itself if it can, and if no other reader will need the block (`direct`).
- If entries are lost, the task raises DataLoss with their range and counts. Without `fail_on_data_loss` it skips them
  and logs the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from pyspark_ledger.connector.read.data_loss import DataLossRange, find_loss
from pyspark_ledger.connector.read.ledger.direct import DirectReads
from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.rows.arrow_rows import BATCH_BYTES, ArrowRows, entry_rows
from pyspark_ledger.connector.rows.dead_letters import DeadLetters
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.connector.schema import REDELIVERY_COUNT
from pyspark_ledger.connector.task_client import task_client
from pyspark_ledger.ledger.client.read_client import ReadClient, block_entries, entries_before
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import DataLoss, NotFound
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.protocol.reads import AskLogStatuses, ReadProgress, ReadRequest
from pyspark_ledger.ledger.rows.batch_sizes import join_batches
from pyspark_ledger.ledger.rows.chunked_messages import WholeMessages
from pyspark_ledger.ledger.rows.message_groups import Entry
from pyspark_ledger.ledger.rows.metadata_columns import Topic

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.block_reader import FrameBlock
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.client.credentials import Credentials
    from pyspark_ledger.ledger.objects.s3_options import S3Options

_BLOCK_BYTES = 4 * 1024 * 1024
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadSource:
    """Parameters that all tasks of a read share."""

    address: str
    store_id: str
    shape: RowShape
    subscription: str
    mapping: bool
    credentials: Credentials
    fail_on_data_loss: bool = True
    dead_letters: str = ""
    direct: S3Options | None = None
    """Access to buckets for direct reads; None if all entries are read through the broker."""
    bucket: str = ""
    """The address of a store in a bucket; empty for any other store."""

    @classmethod
    def of(
        cls,
        client: Client,
        shape: RowShape,
        *,
        ledgers: Collection[str] = (),
        subscription: str = "",
        mapping: bool = True,
        fail_on_data_loss: bool = True,
        dead_letters: str = "",
    ) -> ReadSource:
        """Return the source with the address and store of `client`.

        The credentials of the tasks allow only `ledgers`, or all ledgers if it is empty.
        """
        credentials = client.credentials.for_task(
            "read", ledgers, system_clock_ms, dead_letters, store_id=client.store_id
        )
        return cls(
            client.address, client.store_id, shape, subscription, mapping, credentials, fail_on_data_loss, dead_letters
        )


@dataclass(frozen=True, slots=True)
class LedgerTask:
    """Task that reads ranges of ledgers, one after the other.

    `skip` are the positions to leave out, for a task of one ledger. They are encoded as PositionInfo, Pulsar's message
    for a set of positions. `redelivered` is the value of the column with the redelivery count. -1 means no such column.
    """

    source: ReadSource
    ranges: tuple[LedgerRange, ...]
    skip: bytes = b""
    redelivered: int = -1

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises errors of the broker, and Unavailable after the client's retries."""
        source = self.source
        return read_rows(task_client(source.address, source.store_id, source.credentials, source.bucket), self)


def read_rows(client: Client, task: LedgerTask) -> Iterator[pa.RecordBatch]:
    """Return the rows of a task, read through `client`. Entries that cannot be decoded become dead letters."""
    source = task.source
    shape = source.shape
    reads = client if source.direct is None else DirectReads(client, source.direct)
    if not source.dead_letters:
        return rows_of(reads, task)
    rescuing_task = replace(task, source=replace(source, shape=shape.with_rescue_column()))
    part = msgspec.json.encode((shape, task.ranges, task.skip))
    return DeadLetters(client, source.dead_letters, shape, part).divert(rows_of(reads, rescuing_task))


def rows_of(client: ReadClient, task: LedgerTask) -> Iterator[pa.RecordBatch]:
    """Return the rows of a task. With a rescue column in its shape, also the entries that cannot be decoded."""
    shape = task.source.shape
    parts = (_messages if shape.raw else _rows)(client, task, RowSelection(task.skip))
    rows = join_batches(parts, shape.schema, BATCH_BYTES)
    if task.redelivered < 0:
        return rows
    schema = pa.schema([*shape.schema, REDELIVERY_COUNT])
    count = pa.scalar(task.redelivered, pa.int32())
    return (
        pa.RecordBatch.from_arrays([*batch.columns, pa.repeat(count, batch.num_rows)], schema=schema) for batch in rows
    )


def _rows(client: ReadClient, task: LedgerTask, selection: RowSelection) -> Iterator[pa.RecordBatch]:
    rows = ArrowRows(Topic.of(task.ranges[0].ledger), task.source.shape, selection)
    for request, entries in _entries_of_ranges(client, task, selection):
        yield from rows.of_topic(Topic.of(request.name)).each(entries)


def _messages(client: ReadClient, task: LedgerTask, selection: RowSelection) -> Iterator[pa.RecordBatch]:
    source = task.source
    for request, entries in _entries_of_ranges(client, task, selection):
        topic = Topic.of(request.name)
        read = partial(_range_entries, client, source, request)
        before = partial(entries_before, client, request.name, read=read)
        whole = WholeMessages(topic.text, before).of(entries)
        if selection.by_row:
            # `__position` has the index of the message in its entry.
            placed = entry_rows(topic, source.shape.with_places()).batches(whole)
            yield from (
                batch.select(range(batch.num_columns - 1))
                for batch in map(selection.select_placed, placed)
                if batch.num_rows
            )
        else:
            yield from entry_rows(topic, source.shape).batches(whole)


def _entries_of_ranges(
    client: ReadClient, task: LedgerTask, selection: RowSelection
) -> Iterator[tuple[ReadRequest, Iterator[Entry]]]:
    """Yield each range of a task with its entries. The ranges are requested in one call."""
    source = task.source
    requests = [_request(source, planned) for planned in task.ranges]
    for request, blocks in client.read_ranges(requests, mapping=source.mapping):
        yield request, _entries(client, source, request, blocks, selection)


def _request(source: ReadSource, planned: LedgerRange) -> ReadRequest:
    return ReadRequest(
        planned.ledger,
        planned.range,
        incarnation=planned.incarnation,
        subscription=source.subscription,
        max_block_bytes=_BLOCK_BYTES,
    )


def _entries(
    client: ReadClient,
    source: ReadSource,
    request: ReadRequest,
    blocks: Iterator[FrameBlock],
    selection: RowSelection | None = None,
) -> Iterator[Entry]:
    """Yield the entries of blocks, without entries that `selection` skips completely.

    Raises DataLoss for lost entries. Without `fail_on_data_loss` the read continues after them.
    """
    next_position = request.range.start
    while True:
        try:
            for block in blocks:
                yield from block_entries(block, request.name, selection)
                next_position = block.end
        except (DataLoss, NotFound) as error:
            unread = PositionRange(next_position, request.range.end)
            loss = _find_loss(client, request, unread, error)
            if source.fail_on_data_loss:
                raise loss.error() from error
            _log.warning("%s", loss)
            next_position = max(next_position, loss.range.end)
            if not next_position < request.range.end:
                return
            rest = LedgerRange(request.name, request.incarnation, PositionRange(next_position, request.range.end))
            blocks = client.read_blocks(_request(source, rest), mapping=source.mapping)
        else:
            return


def _find_loss(
    client: ReadClient, request: ReadRequest, left: PositionRange, error: DataLoss | NotFound
) -> DataLossRange:
    """Return the lost entries of `left`, from the current status of the ledger."""
    progress = ReadProgress(left.start, request.incarnation, until=left.end)
    statuses = client.ask(AskLogStatuses([request.name], {request.name: progress}))
    return find_loss(request.name, request.incarnation, left, statuses) or DataLossRange.of_missing_file(
        request.name, left, error
    )


def _range_entries(
    client: ReadClient, source: ReadSource, request: ReadRequest, range_: PositionRange
) -> Iterator[Entry]:
    """Return the entries of another range of the same ledger."""
    other = _request(source, LedgerRange(request.name, request.incarnation, range_))
    return _entries(client, source, other, client.read_blocks(other, mapping=source.mapping))
