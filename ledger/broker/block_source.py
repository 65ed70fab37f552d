"""The blocks of a range at the reader's end: mapped from the store's files, or fetched over Flight.

Rules
- Blocks come in order and without gap; a broker that vanishes is asked again, from the next entry, until the deadline.
- A mapped block is only ever the bytes that the broker named, all below its committed end. Its first frame must be the
  entry that was promised; a place whose file is gone is asked for again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from ledger.broker.client import Client
from ledger.broker.wire_errors import from_flight
from ledger.cache.mapped_block import map_block
from ledger.cache.shared_blocks import SharedPlace, map_shared
from ledger.clock import monotonic_ms, pause
from ledger.errors import Corrupt, NotFound, Unavailable
from ledger.position import Position, PositionRange
from ledger.read_calls import BlockPlace, Places, ReadRequest
from ledger.segment_format import FRAME
from ledger.segment_reader import SegmentBlock
from ledger.wire_names import request_body

_RETRY_MS = 50


@dataclass(frozen=True, slots=True)
class FrameBlock:
    """`entries` frames from `first_entry` on. `frames` may be sliced; slices keep it alive."""

    ledger_id: int
    first_entry: int
    entries: int
    frames: pa.Buffer
    mapped: bool

    @property
    def end(self) -> Position:
        """The position after the last entry."""
        return Position(self.ledger_id, self.first_entry + self.entries)


def read_blocks(client: Client, request: ReadRequest, *, mapping: bool = True) -> Iterator[FrameBlock]:
    """The blocks of `request.range`, in order; raises Unavailable when the broker stays away past the deadline."""
    until = monotonic_ms() + client.deadline_ms
    while request.range:
        try:
            places = client.locate(request) if mapping else None
            for block in _read_once(client, request, places):
                yield block
                rest = PositionRange(block.end, request.range.end)
                request = msgspec.structs.replace(request, range=rest)
                until = monotonic_ms() + client.deadline_ms
        except (Unavailable, NotFound) as error:
            if monotonic_ms() >= until or not _worth_again(error):
                raise
            # Shared memory that is gone so soon, or that this process does not see, is not asked for again.
            mapping = mapping and not isinstance(error, _SharedGone)
            pause(0 if isinstance(error, _SharedGone) else _RETRY_MS)
        else:
            if places is None or not places.more:
                return


class _FileGone(NotFound):
    """A file that was there when the broker answered."""


class _SharedGone(_FileGone):
    """A block of shared memory that was there when the broker answered."""


def _worth_again(error: Exception) -> bool:
    return isinstance(error, (Unavailable, _FileGone))


def _read_once(client: Client, request: ReadRequest, places: Places | None) -> Iterator[FrameBlock]:
    if places is not None and places.mapped:
        yield from map(block_of, places.blocks)
        return
    yield from _fetched(client, request)


def block_of(place: BlockPlace) -> FrameBlock:
    """The block at a place, mapped; NotFound when its file is gone."""
    return FrameBlock(place.ledger_id, place.first_entry, place.entries, _mapped(place), True)


def _mapped(place: BlockPlace) -> pa.Buffer:
    block = SegmentBlock(
        place.ledger_id, place.first_entry, place.entries, Path(place.path), place.offset, place.length
    )
    gone_kind = _SharedGone if place.head else _FileGone
    try:
        frames = (
            map_shared(SharedPlace(place.path, place.head), place.offset, place.length)
            if place.head
            else map_block(block)
        )
    except NotFound as gone:
        raise gone_kind(gone.message, hint=gone.hint) from gone
    _, first = FRAME.unpack_from(frames)
    if first != place.first_entry:
        raise Corrupt(f"{place.path} at {place.offset} holds entry {first}, the broker promised {place.first_entry}")
    return frames


def _fetched(client: Client, request: ReadRequest) -> Iterator[FrameBlock]:
    connection = client.connection()
    try:
        reader = connection.do_get(flight.Ticket(request_body(request)), client.options())
        while True:
            try:
                batch = reader.read_chunk().data
            except StopIteration:
                return
            yield from _blocks_of(batch)
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        ours = from_flight(error, client.address, client.store_id)
        if isinstance(ours, Unavailable):
            client.disconnect(connection)
        raise ours from None


def _blocks_of(batch: pa.RecordBatch) -> Iterator[FrameBlock]:
    ledgers, firsts, counts = (batch.column(i).to_pylist() for i in range(3))
    frames = slices_of(batch.column(3))
    for ledger_id, first, count, data in zip(ledgers, firsts, counts, frames, strict=True):
        yield FrameBlock(ledger_id, first, count, data, False)


def slices_of(column: pa.LargeBinaryArray) -> list[pa.Buffer]:
    """The values as slices of the column's data. Not by `column[i]`, which copies: a scalar owns its bytes."""
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1].tolist()
    return [data.slice(start, end - start) for start, end in pairwise(edges)]
