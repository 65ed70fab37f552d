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
from connector.whole_messages import WholeMessages
from ledger.entry import ParsedEntry, parse_entry
from ledger.position import Position, PositionRange
from ledger.protocol import ReadRequest
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
    """One partition: a range of the source."""

    source: ReadSource
    range: PositionRange


def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises what the broker raises; Unavailable after its retries."""
    from ledger.broker.client import client_for

    source = wanted.source
    return rows_of(client_for(source.address, source.store_id, source.credentials), wanted)


def rows_of(client: Client, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, read through `client`."""
    source = wanted.source
    topic, entries = Topic.of(source.ledger), _entries(client, source, wanted.range)
    if source.shape.raw:
        entries = WholeMessages(topic.text, lambda position: _earlier(client, source, position)).of(entries)
    return entry_rows(topic, source.shape).batches(entries)


def _entries(client: Client, source: ReadSource, range_: PositionRange) -> Iterator[tuple[Position, ParsedEntry]]:
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
            where = f"entry {ledger_id}:{entry_id} of {source.ledger}"
            yield Position(ledger_id, entry_id), parse_entry(frame, where)


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
