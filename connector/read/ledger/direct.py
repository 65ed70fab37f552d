"""Direct reads: a task fetches blocks of sealed segments from a bucket itself, and other blocks through the broker.

A *block* is a part of a segment with whole entries. The broker decides for each block whether the task may fetch it
(`ledger.broker.reads.stored_reads`). If the broker's cache has a block, or another reader will need it, the task reads
this block through the broker. A stream on the broker's host also does so while the cache has unused memory. In its
metrics the broker counts the fetched blocks as read from object storage.

Rules
- The task finds the credentials on its own host: the query's options name their place, else boto3 searches for them.
- A process tries the bucket once, by a read of a few bytes. If the bucket fails, the process reads through the broker
  for a while, and then tries again (`connector.bucket_switch`).
- If an object was deleted after the broker's reply, the rest of that part is read through the broker.
- The broker counts a block when it allows the direct read. If the task then reads the block through the broker after
  all, the broker counts the block twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from pyspark_ledger.connector.bucket_switch import CONNECT_MS, BucketSwitch
from pyspark_ledger.ledger.errors import DataLoss, LedgerError, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.logs.steps import log_step
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.prefetch import ObjectRange
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.reads import LocateStored, ReadRequest, StoredPart, StoredPlace, StoredPlaces
from pyspark_ledger.ledger.protocol.request import Reply, Request
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.provisional_stamps import RealStamps
from pyspark_ledger.offload.stored_blocks import BLOCK_BYTES, BlockFetcher, StoredBlock

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.block_reader import FrameBlock
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.objects.object_store import ObjectStore

_log = logging.getLogger(__name__)


def read_direct(
    client: Client, access: S3Options, requests: Sequence[ReadRequest], *, mapping: bool
) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
    """Yield each request with its blocks. The caller must read all blocks of a request before the next request."""
    switch = _switch(client.store_id, access)
    places = _locate(client, requests, mapping=mapping) if switch.is_on() else None
    if places is None or not places.address:
        return client.read_ranges(requests, mapping=mapping)
    options = _options(access, places)
    store = _store(places.address, options)
    first = next(place for parts in places.ranges for part in parts for place in part.blocks)
    trial = _store(places.address, replace(options, attempts=1))
    if not switch.try_once(store, lambda: trial.get_range(first.key, first.offset, FRAME_BYTES)):
        return client.read_ranges(requests, mapping=mapping)
    return _DirectRead(client, switch, places, mapping=mapping).read(store, requests)


class DirectReads:
    """A `ReadClient` that reads through a broker, and fetches blocks from the bucket by itself."""

    def __init__(self, client: Client, access: S3Options) -> None:
        self._client, self._access = client, access

    def ask(self, request: Request[Reply]) -> Reply:
        return self._client.ask(request)

    def read_blocks(self, request: ReadRequest, *, mapping: bool = True) -> Iterator[FrameBlock]:
        return self._client.read_blocks(request, mapping=mapping)

    def read_ranges(
        self, requests: Sequence[ReadRequest], *, mapping: bool = True
    ) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
        return read_direct(self._client, self._access, requests, mapping=mapping)


class _DirectRead:
    """Read of the ranges of one task."""

    def __init__(self, client: Client, switch: BucketSwitch, places: StoredPlaces, *, mapping: bool) -> None:
        self._client = client
        self._switch = switch
        self._ranges = places.ranges
        self._mapping = mapping
        self._fetched_entries = self._fetched_bytes = 0

    def read(
        self, store: ObjectStore, requests: Sequence[ReadRequest]
    ) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
        blocks = [_stored_block(place) for parts in self._ranges for part in parts for place in part.blocks]
        with BlockFetcher(store, blocks) as fetcher:
            first = 0
            for request, parts in zip(requests, self._ranges, strict=True):
                yield request, self._range(request, parts, fetcher, first)
                first += sum(len(part.blocks) for part in parts)
        log_step("fetch", entries=self._fetched_entries, bytes=self._fetched_bytes)

    def _range(
        self, request: ReadRequest, parts: list[StoredPart], fetcher: BlockFetcher, first: int
    ) -> Iterator[FrameBlock]:
        for part in parts:
            if part.blocks and self._switch.is_on():
                yield from self._fetched(request, part, fetcher, first)
            else:
                yield from self._through_broker(request, part.range)
            first += len(part.blocks)

    def _fetched(
        self, request: ReadRequest, part: StoredPart, fetcher: BlockFetcher, first: int
    ) -> Iterator[FrameBlock]:
        at = part.range.start
        for number in range(first, first + len(part.blocks)):
            try:
                block = fetcher.fetch(number)
            except NotFound as gone:
                _log.info("%s from %s on is read through the broker: %s", request.name, at, gone)
                break
            except LedgerError as error:
                self._switch.turn_off(error)
                break
            self._fetched_entries += block.entries
            self._fetched_bytes += block.frames.size
            yield block
            at = block.end
        else:
            return
        yield from self._through_broker(request, PositionRange(at, part.range.end))

    def _through_broker(self, request: ReadRequest, range_: PositionRange) -> Iterator[FrameBlock]:
        return self._client.read_blocks(msgspec.structs.replace(request, range=range_), mapping=self._mapping)


def _locate(client: Client, requests: Sequence[ReadRequest], *, mapping: bool) -> StoredPlaces | None:
    """Return the places of the blocks in a bucket; None if the ranges must be read through the broker."""
    asked = [msgspec.structs.replace(request, max_block_bytes=BLOCK_BYTES) for request in requests]
    token = client.same_host_token() if mapping else ""
    try:
        places = client.ask(LocateStored(asked, token))
    except (DataLoss, NotFound, Refused, Unsupported) as error:
        _log.debug("the ranges are read through the broker: %s", error)  # that read raises the error of a lost range
        return None
    has_blocks = any(part.blocks for parts in places.ranges for part in parts)
    return places if has_blocks else None


def _options(access: S3Options, places: StoredPlaces) -> S3Options:
    """Return the options of a bucket. Options of the query take precedence over those of the broker."""
    stated = {name: getattr(places, name) for name in ("endpoint", "region", "path_style", "bucket_owner")}
    return replace(access.completed(stated), connect_timeout_ms=CONNECT_MS, attempts=3)


def _stored_block(place: StoredPlace) -> StoredBlock:
    found = ObjectRange(place.key, place.offset, place.offset + place.length)
    stamps = None if place.stamp_ms is None else RealStamps(place.stamp_ms, place.row_start)
    return StoredBlock(place.ledger_id, place.first_entry, place.entries, (found,), stamps)


@lru_cache(maxsize=64)
def _switch(store_id: str, access: S3Options) -> BucketSwitch:  # noqa: ARG001 — the arguments are the key
    return BucketSwitch("tasks of this process read through the broker, because they cannot read the bucket")


@lru_cache(maxsize=8)
def _store(address: str, options: S3Options) -> ObjectStore:
    return open_object_store(address, options)
