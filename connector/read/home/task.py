"""Tasks that read ranges of a store in a bucket from its objects, without a broker.

A *segment* is one file of a ledger, and a *block* is a part of a segment with whole entries. Sealed segments are
objects of the bucket. The bytes of other segments are in the objects of the *log*, which the broker deletes later.

Rules
- A task fetches the blocks of its plan. It needs only the bucket, and finds the credentials on its own host.
- The first task of an executor opens a connection to the object store, and later tasks use the connection again.
- An object of the plan may be missing. Reason: the broker deletes a log object when its bytes are in another object.
  In this case the task opens a *view*, a local copy of the store's present state (`offload.home_view`). The view has
  the new places of the blocks, from which the task reads the rest of the range.
- If the view lacks entries of the range, the entries are lost. Then `failOnDataLoss` decides whether the task fails.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from pyspark_ledger.connector.read.ledger.task import LedgerTask, ReadSource, rows_of
from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.task_client import bucket_failure
from pyspark_ledger.ledger.errors import Archived, Corrupt, NotFound, Refused, Unauthenticated, Unavailable
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.protocol.request import Reply, Request
from pyspark_ledger.offload.home_view import HomeView, open_home_view
from pyspark_ledger.offload.stored_blocks import BlockFetcher, StoredBlock

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.block_reader import FrameBlock
    from pyspark_ledger.ledger.objects.object_store import ObjectStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HomeTask:
    """Task that reads ranges of ledgers, one after the other. `blocks` are the blocks of each range.

    `source` has the address of the bucket.
    """

    source: ReadSource
    s3: S3Options
    ranges: tuple[LedgerRange, ...]
    blocks: tuple[tuple[StoredBlock, ...], ...]

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises errors of the object store, and DataLoss for lost entries."""
        reader = _BlockReader(self)
        try:
            yield from rows_of(reader, LedgerTask(self.source, self.ranges))
        except Archived:
            raise
        except (Unavailable, Unauthenticated) as error:
            raise bucket_failure(error, self.source.address) from None
        finally:
            reader.close()


class _BlockReader:
    """Reader of a task's blocks, a `ReadClient`."""

    def __init__(self, task: HomeTask) -> None:
        self._task = task
        self._store = _store(task.source.address, task.s3)

    def read_ranges(
        self, requests: Sequence[ReadRequest], **_: object
    ) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
        """Yield each request with its blocks. The caller reads all blocks of a request before the next request."""
        blocks = [block for of_range in self._task.blocks for block in of_range]
        with BlockFetcher(self._store, blocks) as fetcher:
            first = 0
            for request, of_range in zip(requests, self._task.blocks, strict=True):
                yield request, self._planned(request, fetcher, range(first, first + len(of_range)))
                first += len(of_range)

    def read_blocks(self, request: ReadRequest, **_: object) -> Iterator[FrameBlock]:
        """Yield the blocks of a range for which the plan has no blocks."""
        return self._view.read_blocks(request)

    def ask(self, request: Request[Reply]) -> Reply:
        return self._view.ask(request)

    def close(self) -> None:
        if "_view" in vars(self):
            self._view.close()

    def _planned(self, request: ReadRequest, fetcher: BlockFetcher, numbers: range) -> Iterator[FrameBlock]:
        at = request.range.start
        try:
            for number in numbers:
                block = fetcher.fetch(number)
                yield block
                at = block.end
        except (NotFound, Corrupt) as gone:
            _log.info(
                "%s from %s on is read from its new place, because an object was deleted: %s", request.name, at, gone
            )
            rest = msgspec.structs.replace(request, range=PositionRange(at, request.range.end))
            yield from self._view.read_blocks(rest)

    @cached_property
    def _view(self) -> HomeView:
        source = self._task.source
        view = open_home_view(source.address, self._task.s3)
        if view.store_id != source.store_id:
            found = view.store_id
            view.close()
            raise Refused(
                f"the store at {source.address} has id {found}, the read was planned for {source.store_id}",
                hint="Read the new store again",
            )
        return view


@lru_cache(maxsize=4)
def _store(address: str, s3: S3Options) -> ObjectStore:
    return open_object_store(address, s3)
