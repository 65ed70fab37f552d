"""Interface of the clients that a read of ledgers can use, and the entries of their blocks.

A `ReadClient` is one of these
- the client of a broker
- a read-only store: a directory, or the view of a bucket
- a task of a query that fetches blocks from a bucket by itself, with or without a broker
- the topics in a bucket of Pulsar

A *block* is a part of a segment file with whole entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.protocol.actions import DescribeLedger
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.protocol.request import Reply, Request
from pyspark_ledger.ledger.rows.chunked_messages import earlier_ranges
from pyspark_ledger.ledger.rows.message_groups import Entry
from pyspark_ledger.ledger.segment.reader import iter_frames

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.block_reader import FrameBlock


class ReadClient(Protocol):
    """Source of blocks, and of replies to requests that change nothing."""

    def ask(self, request: Request[Reply], /) -> Reply: ...

    def read_blocks(self, request: ReadRequest, /, *, mapping: bool = True) -> Iterator[FrameBlock]:
        """Yield the blocks of a range, in order."""

    def read_ranges(
        self, requests: Sequence[ReadRequest], /, *, mapping: bool = True
    ) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
        """Yield each request with its blocks. The caller reads all blocks of a request before the next request."""


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """Block whose entries the client has parsed, for example because it has joined the chunks of messages."""

    entries: Iterator[Entry]


def block_entries(block: FrameBlock | ParsedBlock, ledger: str, selection: RowSelection | None) -> Iterator[Entry]:
    """Yield the entries of a block of a ledger, without the entries that `selection` skips completely."""
    if isinstance(block, ParsedBlock):
        yield from block.entries
        return
    ledger_id = block.ledger_id
    for entry_id, frame in iter_frames(block.frames, ledger_id, block.first_entry, block.entries):
        position = Position(ledger_id, entry_id)
        if not (selection and selection.skips(position)):
            yield position, parse_entry(frame, f"entry {position} of {ledger}")


def entries_before(
    client: ReadClient, ledger: str, position: Position, read: Callable[[PositionRange], Iterator[Entry]]
) -> Iterator[Entry]:
    """Yield the entries before a position in reverse order. `read` returns the entries of a range."""
    for range_ in earlier_ranges(client.ask(DescribeLedger(ledger)).segments, position):
        yield from reversed(list(read(range_)))
