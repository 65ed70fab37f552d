"""The blocks of many ranges at the reader's end: places of all are asked for at once, so that small ledgers are cheap.

Rules: ranges come in the order in which they were asked for, each as `block_source` gives it alone. Wherever anything
goes wrong with a place, that range is read anew by itself, from where it stands. Small blocks are copied: to map one
costs more than to read it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from ledger.broker.block_source import FrameBlock, block_of, read_blocks
from ledger.broker.client import Client
from ledger.disk import opened
from ledger.errors import Corrupt, DataLoss, NotFound, Refused, Unavailable
from ledger.position import PositionRange
from ledger.read_calls import BlockPlace, LocateRanges, RangePlaces, ReadRequest
from ledger.segment_format import FRAME

# Ranges whose places are asked for at once: enough that a call costs little, few enough that the first rows come soon.
_AT_ONCE = 512
_COPIED_BYTES = 64 * 1024


def read_ranges(
    client: Client, requests: Sequence[ReadRequest], *, mapping: bool = True
) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
    """Each request with its blocks. Those of one must be taken before the next."""
    for start in range(0, len(requests), _AT_ONCE):
        group = requests[start : start + _AT_ONCE]
        places = _places(client, group) if mapping and len(group) > 1 else []
        if places:
            for request, blocks in zip(group, places, strict=True):
                yield request, _mapped(client, request, blocks)
        else:
            for request in group:
                yield request, read_blocks(client, request, mapping=mapping)


def _places(client: Client, requests: Sequence[ReadRequest]) -> list[list[BlockPlace]]:
    """The places of all; none when one of them must be asked for alone."""
    token = client.same_host_token()
    if not token:
        return []
    try:
        found: RangePlaces = client.call("locate.many", LocateRanges(list(requests), token))
    except (DataLoss, NotFound, Refused):
        return []  # one of them is not as it was planned: asked for alone, it will say so
    return [places.blocks for places in found.ranges]


def _mapped(client: Client, request: ReadRequest, places: Sequence[BlockPlace]) -> Iterator[FrameBlock]:
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
