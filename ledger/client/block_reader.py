"""Reader of the blocks of one range or of many ranges. It maps files of the store, or fetches blocks by Flight.

A *block* is a part of a segment file with whole entries. A *frame* is one entry in it, with its length and id.

Rules
- The blocks of a range are returned in order and without a gap. If the broker does not reply, the reader requests the
  rest of the range again, until the deadline.
- The broker replies with the *location* of each block: file, offset, length, and the id of the first entry. The reader
  maps exactly these bytes, which are all committed. It checks the id of the first frame.
- If the file was deleted since the reply, the reader requests the locations again.
- `read_ranges` asks the broker for the locations of many ranges in one call. So a read of many small ledgers is fast.
  The ranges keep the order of the requests.
- If a location in a range is invalid, `read_ranges` reads the rest of that range by `read_blocks`.
- `read_ranges` copies small blocks, because the mapping of a small block takes longer than a copy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.client.broker_connection import BrokerConnection
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.disk import opened
from pyspark_ledger.ledger.errors import Archived, Corrupt, DataLoss, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.protocol.reads import BlockPlace, LocateRanges, Places, ReadRequest
from pyspark_ledger.ledger.segment.format import FRAME
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.transport.errors import from_flight
from pyspark_ledger.ledger.transport.mapped_block import SharedPlace, map_block, map_shared

_RETRY_MS = 50


@dataclass(frozen=True, slots=True)
class FrameBlock:
    """Block of `entries` frames from `first_entry` on. The memory of `frames` exists as long as any slice of it."""

    ledger_id: int
    first_entry: int
    entries: int
    frames: pa.Buffer
    mapped: bool

    @property
    def end(self) -> Position:
        """Position after the last entry."""
        return Position(self.ledger_id, self.first_entry + self.entries)


def read_blocks(
    client: BrokerConnection, request: ReadRequest, *, mapping: bool = True, places: Places | None = None
) -> Iterator[FrameBlock]:
    """Yield the blocks of `request.range`, in order. Raises Unavailable if no broker answers before the deadline.

    `places` are the locations of the first blocks, if the caller has them.
    """
    until = monotonic_ms() + client.deadline_ms
    while request.range:
        try:
            located, places = places or (client.locate(request) if mapping else None), None
            for block in _read_once(client, request, located):
                yield block
                rest = PositionRange(block.end, request.range.end)
                request = msgspec.structs.replace(request, range=rest)
                until = monotonic_ms() + client.deadline_ms
        except (Unavailable, NotFound) as error:
            if monotonic_ms() >= until or not _can_retry(error):
                raise
            # If the broker has freed a block in shared memory, or this process cannot see it, Flight fetches the rest.
            mapping = mapping and not isinstance(error, _SharedGone)
            pause(0 if isinstance(error, _SharedGone) else _RETRY_MS)
        else:
            if located is None or not located.more:
                return


class _FileGone(NotFound):
    """The file of a location was deleted after the broker's reply."""


class _SharedGone(_FileGone):
    """The shared memory of a location was freed after the broker's reply."""


def _can_retry(error: Exception) -> bool:
    return isinstance(error, (Unavailable, _FileGone)) and not isinstance(error, Archived)


def _read_once(client: BrokerConnection, request: ReadRequest, places: Places | None) -> Iterator[FrameBlock]:
    if places is not None and places.mapped:
        yield from map(block_of, places.blocks)
        return
    yield from _fetched(client, request)


def block_of(place: BlockPlace) -> FrameBlock:
    """Map the block at a location. Raises NotFound if its file was deleted."""
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
        raise Corrupt(f"{place.path} has entry {first} at offset {place.offset}, expected entry {place.first_entry}")
    return frames


def _fetched(client: BrokerConnection, request: ReadRequest) -> Iterator[FrameBlock]:
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
    """Return the values of a column as slices of its data. Reason: `column[i]` would copy the bytes of a value."""
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1].tolist()
    return [data.slice(start, end - start) for start, end in pairwise(edges)]


# Maximum number of ranges in one call. With more ranges, the first rows would arrive later.
_AT_ONCE = 512
_COPIED_BYTES = 64 * 1024


def read_ranges(
    client: BrokerConnection, requests: Sequence[ReadRequest], *, mapping: bool = True
) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
    """Yield each request with its blocks. The caller must read all blocks of a request before the next request."""
    for start in range(0, len(requests), _AT_ONCE):
        group = requests[start : start + _AT_ONCE]
        places = _places(client, group) if mapping and len(group) > 1 else []
        if places:
            for request, blocks in zip(group, places, strict=True):
                yield request, _mapped_range(client, request, blocks)
        else:
            for request in group:
                yield request, read_blocks(client, request, mapping=mapping)


def _places(client: BrokerConnection, requests: Sequence[ReadRequest]) -> list[list[BlockPlace]]:
    """Return the locations for all requests. Return an empty list if `read_blocks` must read each request by itself."""
    token = client.same_host_token()
    if not token:
        return []
    try:
        found = client.ask(LocateRanges(list(requests), token))
    except (DataLoss, NotFound, Refused):
        return []  # a ledger has changed since planning; `read_blocks` raises the error of its range
    return [places.blocks for places in found.ranges]


def _mapped_range(client: BrokerConnection, request: ReadRequest, places: Sequence[BlockPlace]) -> Iterator[FrameBlock]:
    at = request.range.start
    try:
        for place in places:
            block = _copied(place) if place.length <= _COPIED_BYTES else block_of(place)
            yield block
            at = block.end
    except (NotFound, Unavailable):
        rest = msgspec.structs.replace(request, range=PositionRange(at, request.range.end))
        yield from read_blocks(client, rest)


def _copied(place: BlockPlace) -> FrameBlock:
    with opened(Path(place.path)) as fd:
        frames = os.pread(fd, place.length, place.offset)
    if len(frames) < place.length or FRAME.unpack_from(frames)[1] != place.first_entry:
        raise Corrupt(
            f"{place.path} has {len(frames)} bytes at offset {place.offset}, expected {place.length} bytes that begin "
            f"with entry {place.first_entry}"
        )
    return FrameBlock(place.ledger_id, place.first_entry, place.entries, pa.py_buffer(frames), True)
