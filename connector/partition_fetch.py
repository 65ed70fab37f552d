"""What one task reads: a range of one ledger, from the broker that the partition names, as record batches.

Rules
- A partition carries all that a task needs and nothing that lives in one process: it is pickled.
- A task connects to the broker of the partition's address and store, and never starts one.
- Blocks are taken as they come: mapped where reader and broker share a host, sent over Flight elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from connector.entry_rows import entry_rows
from connector.metadata_columns import Topic
from connector.row_shape import RowShape
from connector.schema import REDELIVERY_COUNT
from connector.whole_messages import WholeMessages
from ledger.entry import ParsedEntry, parse_entry
from ledger.position import Position, PositionRange
from ledger.protocol import ReadRequest
from ledger.row_selection import RowSelection
from ledger.segment_reader import iter_frames

if TYPE_CHECKING:
    from ledger.broker.client import Client
    from ledger.broker.credentials import Credentials

_BLOCK_BYTES = 4 * 1024 * 1024
_BACK_ENTRIES_LEAST, _BACK_ENTRIES_MOST = 4, 256


@dataclass(frozen=True, slots=True)
class ReadSource:
    """The part of a read that all its partitions share."""

    address: str
    store_id: str
    ledger: str
    incarnation: str
    shape: RowShape
    subscription: str
    mapping: bool
    credentials: Credentials

    @classmethod
    def of(
        cls,
        client: Client,
        ledger: str,
        incarnation: str,
        shape: RowShape,
        *,
        subscription: str = "",
        mapping: bool = True,
    ) -> ReadSource:
        """The source as `client` sees it."""
        return cls(
            client.address, client.store_id, ledger, incarnation, shape, subscription, mapping, client.credentials,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FetchRange:
    """One partition: a range of the source, without what `skip` holds, a PositionInfo (see `row_selection`).

    `redelivered`: how often these rows were delivered before, as a column; -1: without it.
    """

    source: ReadSource
    range: PositionRange
    skip: bytes = b""
    redelivered: int = -1


def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises what the broker raises; Unavailable after its retries."""
    from ledger.broker.client import client_for

    source = wanted.source
    return rows_of(client_for(source.address, source.store_id, source.credentials), wanted)


def rows_of(client: Client, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, read through `client`."""
    rows = _selected(client, wanted, RowSelection(wanted.skip))
    if wanted.redelivered < 0:
        return rows
    schema = pa.schema([*wanted.source.shape.schema, REDELIVERY_COUNT])
    count = pa.scalar(wanted.redelivered, pa.int32())
    return (
        pa.RecordBatch.from_arrays([*batch.columns, pa.repeat(count, batch.num_rows)], schema=schema) for batch in rows
    )


def _selected(client: Client, wanted: FetchRange, selection: RowSelection) -> Iterator[pa.RecordBatch]:
    source = wanted.source
    topic, entries = Topic.of(source.ledger), _entries(client, source, wanted.range, selection)
    if not source.shape.raw:
        return entry_rows(topic, source.shape, selection).batches(entries)
    whole = WholeMessages(topic.text, lambda position: _earlier(client, source, position)).of(entries)
    if not selection.by_row:
        return entry_rows(topic, source.shape).batches(whole)
    # Which message of an entry a row is, its place tells.
    placed = entry_rows(topic, source.shape.with_places()).batches(whole)
    return (batch for batch in map(selection.taken_of_placed, placed) if batch.num_rows)


def _entries(
    client: Client, source: ReadSource, range_: PositionRange, selection: RowSelection | None = None
) -> Iterator[tuple[Position, ParsedEntry]]:
    request = ReadRequest(
        source.ledger,
        range_,
        incarnation=source.incarnation,
        subscription=source.subscription,
        max_block_bytes=_BLOCK_BYTES,
    )
    for block in client.read_blocks(request, mapping=source.mapping):
        ledger_id = block.ledger_id
        for entry_id, frame in iter_frames(block.frames, ledger_id, block.first_entry, block.entries):
            position = Position(ledger_id, entry_id)
            if selection and selection.passes_over(position):
                continue
            where = f"entry {ledger_id}:{entry_id} of {source.ledger}"
            yield position, parse_entry(frame, where)


def _earlier(client: Client, source: ReadSource, position: Position) -> Iterator[tuple[Position, ParsedEntry]]:
    """The entries before a position, the last one first: a few, then more and more at once."""
    count = _BACK_ENTRIES_LEAST
    for segment in reversed(client.describe(source.ledger).segments):
        if segment.ledger_id > position.ledger_id:
            continue
        end = segment.entries if segment.ledger_id < position.ledger_id else position.entry_id
        while end > 0:
            first = max(end - count, 0)
            range_ = PositionRange(Position(segment.ledger_id, first), Position(segment.ledger_id, end))
            yield from reversed(list(_entries(client, source, range_)))
            end, count = first, min(2 * count, _BACK_ENTRIES_MOST)
