"""View of a store in a bucket: a local copy of its state, for reads without the store's broker.

The records (the store's metadata) and the open segments are in a temporary directory. The sealed segments are read from
the bucket. The page docs/concepts.md explains the words segment, sidecar, record and data object.

Rules
- A view shows the state of the store when the view was opened or last `advance`d (`ledger.bucket_store.view`). It
  changes nothing in the bucket.
- Uploaded segments are read from the folder `segments` of the address, with the credentials of this process.
- The temporary directory is deleted with the view, or when the process ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pyspark_ledger.ledger.api.read_only import ReadOnlyStore
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.bucket_store.durability import segment_name
from pyspark_ledger.ledger.bucket_store.view import build_view, has_grown
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.location import bucket_of, is_address, store_location
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment
from pyspark_ledger.ledger.metadata.offload_records import Driver
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.prefetch import ObjectRange
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment
from pyspark_ledger.ledger.tiering.offloaded_segment import OffloadedSegment
from pyspark_ledger.ledger.tiering.offloader import OffloadedReader
from pyspark_ledger.ledger.wal.bucket import MANIFEST, log_key
from pyspark_ledger.ledger.wal.requests import READER_LIMITS
from pyspark_ledger.offload.bucket.topics_view import TopicsView
from pyspark_ledger.offload.offloader import ObjectStoreOffloader, reader_of
from pyspark_ledger.offload.reader import entry_index_bytes
from pyspark_ledger.offload.stored_blocks import StoredBlock

SEGMENTS = "segments"
_INDEXES_AT_ONCE = 16


class _SegmentReaders(ObjectStoreOffloader):
    """Readers of the uploaded segments of one store, at the address of this view.

    The address in a segment's record is ignored, because the broker may have reached the bucket at another endpoint.
    """

    def read_offloaded(
        self,
        ledger_id: int,
        attempt: uuid.UUID,
        driver: Driver,  # noqa: ARG002 — the name is that of the interface
        direct: DirectSegment | None = None,
    ) -> OffloadedReader:
        return reader_of(self.store, ObjectKey(attempt, ledger_id), self.windows, direct)


class HomeView(ReadOnlyStore):
    """View of the store at `bucket.address`, with the methods of a client."""

    def __init__(self, bucket: ObjectStore, options: S3Options) -> None:
        """Open the view. Raises NotFound if there is no store, and Corrupt for damage."""
        scratch = Path(tempfile.mkdtemp(prefix="ledger-view-"))
        self._deletion = weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        self._bucket, self._readers = bucket, _SegmentReaders(f"{bucket.address}/{SEGMENTS}", options)
        try:
            built = build_view(bucket, scratch / "store", READER_LIMITS)
            super().__init__(scratch / "store", built=True, offloader=self._readers)
        except BaseException:
            self.close()
            raise
        self._view = built
        self.address = bucket.address
        self.store_id = built.manifest.store_id
        self.former_ids = self._metadata.store_record().former

    @property
    def end(self) -> int:
        """The number that the next object of the log will have."""
        return self._view.end

    def advance(self) -> bool:
        """Show the present state. Return False if the view must be closed and opened again. Errors close the view."""
        end = self.end
        try:
            is_present = self._view.advance()
        except BaseException:
            self.close()
            raise
        if self.end > end:
            self._built = {}
        return is_present

    def stored_blocks(self, request: ReadRequest) -> list[StoredBlock]:
        """Return the blocks of a range, with their places in the bucket."""
        return [self._stored(block) for block in self.blocks(request)]

    def load_indexes(self, requests: Iterable[ReadRequest]) -> None:
        """Fetch the indexes of the uploaded segments of ranges, several at once."""
        segments = {segment.ledger_id: segment for request in requests for segment in self._uploaded(request)}
        with ThreadPoolExecutor(_INDEXES_AT_ONCE, thread_name_prefix="index") as pool:
            list(pool.map(self._load_index, segments.values()))

    def retire(self, handle: str) -> None:
        super().retire(handle)
        self.close()

    def close(self) -> None:
        """Delete the temporary directory, and close the connections. The view cannot be used afterwards."""
        self._deletion()
        self._readers.close()
        self._bucket.close()

    def _load_index(self, segment: LogSegment) -> None:
        """Fetch the entry index of an uploaded segment, and store it in the directory as the segment's sidecar.

        A missing or damaged object is no error: the reader of the segment then finds the entries itself.
        """
        sidecar = segment.path.with_suffix(".index")
        if segment.offloaded is not None and not sidecar.exists():
            key = ObjectKey(segment.offloaded.attempt.attempt, segment.ledger_id)
            with suppress(NotFound):
                found = self._bucket.get(f"{SEGMENTS}/{key.entries_name}", entry_index_bytes(segment.entries))
                sidecar.write_bytes(found.data)
        segment.index()

    def _uploaded(self, request: ReadRequest) -> list[LogSegment]:
        slices = self.ledger(request.name).snapshot.slices(request.range)
        return [part.segment for part in slices if part.segment.offloaded is not None]

    def _stored(self, block: SegmentBlock) -> StoredBlock:
        source, stamps = block.source, None
        if isinstance(source, OffloadedSegment):
            name = f"{SEGMENTS}/{ObjectKey(source.attempt.attempt, block.ledger_id).data_name}"
            ranges = [ObjectRange(name, block.offset, block.offset + block.length)]
            stamps = source.stamps_from(block.first_entry)
        else:
            found = self._view.places.find(segment_name(block.ledger_id), block.offset, block.length)
            ranges = [ObjectRange(log_key(place.number), place.start, place.start + place.length) for place in found]
        return StoredBlock(block.ledger_id, block.first_entry, block.entries, tuple(ranges), stamps)


def open_read_only(store: str | os.PathLike[str] | None = None) -> LedgerStore:
    """Open a store for reading: a directory of this host, or a bucket. The call starts no broker and changes nothing.

    A directory or a bucket without a store may have topics that Pulsar or `ledger offload` wrote. Then their rows can
    be read. The view of a bucket has the rows of the time of the call. Open it again to read later rows.
    """
    location = store_location(store)
    if is_address(location):
        raise Refused(f"{location!r} is a broker's address, expected a directory", hint="Use the store's directory")
    bucket = bucket_of(Path(location))
    try:
        opened: ReadOnlyStore | TopicsView = open_home_view(bucket) if bucket else ReadOnlyStore(Path(location))
    except NotFound:
        topics = _open_topics(bucket or location)
        if topics is None:
            raise
        opened = topics
    return LedgerStore(opened)  # type: ignore[arg-type]  # it has only the calls that read


def _open_topics(address: str) -> TopicsView | None:
    """Return a view of the topics at an address. Return None if there is a store, or no offloaded topic."""
    store = open_object_store(address)
    with suppress(NotFound):
        store.head(MANIFEST)
        return None
    with suppress(NotFound):
        return TopicsView(store)
    store.close()
    return None


def open_home_view(address: str, options: S3Options | None = None) -> HomeView:
    """Return a view of the present state of the store at `s3://bucket/prefix`."""
    options = options or S3Options()
    return HomeView(open_object_store(address, options), options)


def is_present(address: str, options: S3Options, store_id: str, end: int) -> bool:
    """Return whether an earlier view still shows the present state. `end` is the end of the log in that view."""
    bucket = open_object_store(address, options)
    try:
        return not has_grown(bucket, store_id, end, READER_LIMITS)
    finally:
        bucket.close()
