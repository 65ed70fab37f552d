"""Blocks of one range or of many ranges on the reader's side: mapped from files of the store, or fetched over Flight.

Rules
- Blocks of a range come in order and without a gap. If the broker does not answer, the reader asks again from the next
  entry on, until the deadline.
- A mapped block is only the bytes that the broker named, all below its committed end. Its first frame must be the
  promised entry. If the file of a location is gone, the reader asks again.
- One call locates many ranges, so that small ledgers are cheap. Ranges come in the order of their requests, each with
  the blocks that `read_blocks` returns for it alone.
- If any location of a range fails, that range is read again alone, from the reached entry on.
- Small blocks of many ranges are copied: to map a block costs more than to read it.
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
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.protocol.reads import BlockPlace, LocateRanges, Places, RangePlaces, ReadRequest
from pyspark_ledger.ledger.segment.format import FRAME
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.transport.errors import from_flight
from pyspark_ledger.ledger.transport.mapped_block import SharedPlace, map_block, map_shared

_RETRY_MS = 50


@dataclass(frozen=True, slots=True)
class FrameBlock:
    """Block of `entries` frames from `first_entry` on. `frames` may be sliced; slices keep it alive."""

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
            if monotonic_ms() >= until or not _worth_again(error):
                raise
            # Shared memory that is gone already, or invisible to this process, is not requested again.
            mapping = mapping and not isinstance(error, _SharedGone)
            pause(0 if isinstance(error, _SharedGone) else _RETRY_MS)
        else:
            if located is None or not located.more:
                return


class _FileGone(NotFound):
    """The file of a location was deleted after the broker's answer."""


class _SharedGone(_FileGone):
    """The shared memory of a location was freed after the broker's answer."""


def _worth_again(error: Exception) -> bool:
    return isinstance(error, (Unavailable, _FileGone))


def _read_once(client: BrokerConnection, request: ReadRequest, places: Places | None) -> Iterator[FrameBlock]:
    if places is not None and places.mapped:
        yield from map(block_of, places.blocks)
        return
    yield from _fetched(client, request)


def block_of(place: BlockPlace) -> FrameBlock:
    """Map the block at a location. Raises NotFound if its file is gone."""
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
    """Return the values as slices of the column's data. `column[i]` would copy: a scalar owns its bytes."""
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1].tolist()
    return [data.slice(start, end - start) for start, end in pairwise(edges)]


# Ranges located by one call: enough to make calls cheap, few enough to get the first rows soon.
_AT_ONCE = 512
_COPIED_BYTES = 64 * 1024


def read_ranges(
    client: BrokerConnection, requests: Sequence[ReadRequest], *, mapping: bool = True
) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
    """Yield each request with its blocks. Take those of a request before the next one."""
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
    """Return the locations of all requests; none if one of them must be located alone."""
    token = client.same_host_token()
    if not token:
        return []
    try:
        found: RangePlaces = client.call("locate.many", LocateRanges(list(requests), token))
    except (DataLoss, NotFound, Refused):
        return []  # one range has changed since planning: located alone, it raises its own error
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
            f"{place.path} at {place.offset} holds {len(frames)} of {place.length} bytes, or not entry "
            f"{place.first_entry} that the broker promised"
        )
    return FrameBlock(place.ledger_id, place.first_entry, place.entries, pa.py_buffer(frames), True)
