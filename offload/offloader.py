"""Offloader for sealed segments. The objects have the format of Pulsar's own offloader.

A segment becomes three objects. The *data object* has the segment's bytes. The *entry index* has the offset of each
entry. A *block* is a part of the file with whole entries. The *block index* has the first entry and the offset of each
block. An *attempt* is one upload of a segment, with its own id. A *driver*, in Pulsar's words, is the kind and the
address of an object storage. The segment's record states its driver. The page docs/concepts.md explains the words
segment, entry, frame and direct segment.

    offload   data object, whole or in parts ─▶ entry index ─▶ block index ─▶ comparison with the segment
    read      block index once, then ranges of the data object (`offload.reader`)
    direct    entry index ─▶ block index; a Spark task has written the data object
    delete    block index, then unfinished uploads, the data object and the entry index

Rules
- The block index is written last. If it exists, the data object is complete.
- A repeated offload of a segment reuses the parts that were uploaded before.
- Objects are written to the address in the settings. They are read and deleted at the address in the segment's record,
  with the credentials of the settings. The objects of a copied store's original are never deleted.
- The checksums of all entries are verified during the upload, so that a damaged segment is never recorded as offloaded.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property

from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.metadata.offload_records import OWNER, Driver, OffloadAttempt
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.from_settings import s3_options_of
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.retry import retry
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES
from pyspark_ledger.ledger.segment.index import EntryIndex, sealed_bytes
from pyspark_ledger.ledger.segment.object_names import ENTRIES_SUFFIX, ObjectKey, user_metadata
from pyspark_ledger.ledger.segment.reader import StoredObject
from pyspark_ledger.ledger.segment.verification import verify_segment
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.direct_objects import DIRECT_EPOCH, DirectObjects
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment
from pyspark_ledger.ledger.tiering.offloader import (
    NO_CALLBACKS,
    LocalSegment,
    OffloadCallbacks,
    OffloadedReader,
    OrphanedAttempt,
)
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.offload.direct.reader import DirectSegmentReader
from pyspark_ledger.offload.format.block_index import BlockIndex, parse_index
from pyspark_ledger.offload.index_objects import build_index, split_into_parts
from pyspark_ledger.offload.reader import INDEX_BYTES_MAX, OffloadedSegmentReader
from pyspark_ledger.offload.upload import upload_file
from pyspark_ledger.offload.window_cache import WindowCache

S3_DRIVER, DIRECTORY_DRIVER = "aws-s3", "filesystem"
_MB = 1024 * 1024
_CLEANING_MS = 20_000
_UPLOAD_THREADS = 2
_READ_THREADS = 4


def _parsed(name: str) -> tuple[ObjectKey, bool] | None:
    return ObjectKey.parse(name.removesuffix(ENTRIES_SUFFIX))


class ObjectStoreOffloader:
    """Offloader that writes segments to one address and reads segments of any address. Thread-safe."""

    def __init__(
        self,
        address: str,
        options: S3Options,
        *,
        upload_threads: int = _UPLOAD_THREADS,
        read_threads: int = _READ_THREADS,
        window_bytes: int = 16 * _MB,  # S3 is fastest at 8 to 16 MiB
        cache_bytes: int = 256 * _MB,
        entry_index: bool = True,
    ) -> None:
        self._address = address
        self._options = options
        self._upload_threads = upload_threads
        self._writes_entry_index = entry_index
        self._stores: dict[tuple[str, S3Options], ObjectStore] = {}
        self._lock = threading.Lock()
        self.windows = WindowCache(window_bytes, cache_bytes, read_threads)

    @property
    def store(self) -> ObjectStore:
        if not self._address:
            raise Refused(
                "segments cannot be offloaded: no offloader is configured",
                hint="Set managedLedgerOffloadBucket in conf/broker.toml or with `ledger settings set`",
            )
        return self._store_at(self._address, self._options)

    @property
    def driver(self) -> Driver:
        """The location of new objects, as stored in a segment's record. Property names are Pulsar's."""
        address = self.store.address
        if address.startswith("file:"):
            return Driver(DIRECTORY_DRIVER, {"managedLedgerOffloadDriver": DIRECTORY_DRIVER, "address": address})
        bucket, _, prefix = address.removeprefix("s3://").partition("/")
        properties = {
            "managedLedgerOffloadDriver": S3_DRIVER,
            "bucket": bucket,
            "region": self._options.region,
            "serviceEndpoint": self._options.endpoint,
        }
        return Driver(S3_DRIVER, {**properties, **({"prefix": prefix} if prefix else {})})

    @cached_property
    def direct(self) -> DirectObjects | None:
        return DirectObjects(self.store, self._options)

    def offload(
        self,
        ledger: LocalSegment,
        attempt: uuid.UUID,
        extra_metadata: Mapping[str, str],
        callbacks: OffloadCallbacks = NO_CALLBACKS,
    ) -> None:
        store, key = self.store, ObjectKey(attempt, ledger.ledger_id)
        entry_index = ledger.index()
        index = build_index(ledger, entry_index, extra_metadata)
        with ThreadPoolExecutor(1, thread_name_prefix="verify") as pool:
            verification = pool.submit(_require_checksums, ledger, entry_index)
            upload_file(
                store,
                key.data_name,
                user_metadata("data", extra_metadata),
                ledger.path,
                split_into_parts(index),
                threads=self._upload_threads,
                callbacks=callbacks,
            )
            verification.result()
        if self._writes_entry_index:
            _put_entry_index(store, key, ledger, entry_index, extra_metadata)
        _put_block_index(store, key, index, extra_metadata)
        _require_uploaded(store, key, index, entry_index)

    def put_indexes(self, segment: LocalSegment, attempt: OffloadAttempt, extra_metadata: Mapping[str, str]) -> None:
        store, key = self.store_of(attempt.driver), ObjectKey(attempt.attempt, segment.ledger_id)
        entry_index = segment.index()
        index = build_index(segment, entry_index, extra_metadata)
        _put_entry_index(store, key, segment, entry_index, extra_metadata)
        _put_block_index(store, key, index, extra_metadata)

    def read_offloaded(
        self, ledger_id: int, attempt: uuid.UUID, driver: Driver, direct: DirectSegment | None = None
    ) -> OffloadedReader:
        return reader_of(self.store_of(driver), ObjectKey(attempt, ledger_id), self.windows, direct)

    def stored_object(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> StoredObject | None:
        """Return the data object, which tasks read directly. None in a directory."""
        properties = driver.properties
        if "bucket" not in properties:
            return None
        options = self._options_of(driver)
        return StoredObject(
            _address_of(driver),
            ObjectKey(attempt, ledger_id).data_name,
            options.endpoint,
            options.region,
            options.path_style,
            options.bucket_owner,
        )

    def delete_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> None:
        if owner := driver.properties.get(OWNER):
            raise Refused(
                f"the objects of segment {ledger_id} belong to store {owner}, the original of this copy",
                hint="If nobody uses the original any more: ledger offload NAME --adopt",
            )
        store, key = self.store_of(driver, _cleaning), ObjectKey(attempt, ledger_id)
        store.delete([key.index_name])
        for upload in list(store.uploads(key.data_name)):
            if upload.key == key.data_name:
                store.abort(upload)
        store.delete([key.data_name, key.entries_name])

    def orphans(self, store_id: str, kept: Callable[[], Collection[uuid.UUID]], until_ms: int) -> list[OrphanedAttempt]:
        store = self.store
        listed = [(parsed[0], found) for found in store.objects() if (parsed := _parsed(found.key))]
        needed, orphans = kept(), dict[ObjectKey, None]()
        for key, found in listed:
            if key.attempt in needed or key in orphans:
                continue
            try:
                metadata = store.head(found.key).metadata
            except NotFound:
                continue
            is_direct = DIRECT_EPOCH.lower() in metadata
            if metadata.get("pulsarclustername") == store_id and not (is_direct and found.modified_ms >= until_ms):
                orphans[key] = None
        return [OrphanedAttempt(key.ledger_id, key.attempt) for key in orphans]

    def close(self) -> None:
        self.windows.close()
        with self._lock:
            stores, self._stores = list(self._stores.values()), {}
        for store in stores:
            store.close()

    def store_of(
        self, driver: Driver, change: Callable[[S3Options], S3Options] = lambda options: options
    ) -> ObjectStore:
        """Return the object store that a segment's record names. `change` returns the options of its requests."""
        properties = driver.properties
        if driver.name == DIRECTORY_DRIVER and "address" in properties:
            return self._store_at(properties["address"], self._options)
        if "bucket" not in properties:
            raise Refused(f"a segment was offloaded by driver {driver.name!r}, which this release cannot read")
        return self._store_at(_address_of(driver), change(self._options_of(driver)))

    def _options_of(self, driver: Driver) -> S3Options:
        properties = driver.properties
        region = properties.get("region", "") or self._options.region
        return replace(self._options, endpoint=properties.get("serviceEndpoint", ""), region=region)

    def _store_at(self, address: str, options: S3Options) -> ObjectStore:
        with self._lock:
            if (address, options) not in self._stores:
                self._stores[address, options] = open_object_store(address, options)
            return self._stores[address, options]


def _cleaning(options: S3Options) -> S3Options:
    """Return the options of a deletion, which can wait for a later round."""
    return replace(options, attempts=1, connect_timeout_ms=5_000, read_timeout_ms=_CLEANING_MS)


def _address_of(driver: Driver) -> str:
    bucket, prefix = driver.properties["bucket"], driver.properties.get("prefix", "")
    return f"s3://{bucket}" + (f"/{prefix}" if prefix else "")


def offloader_of(settings: Settings) -> ObjectStoreOffloader:
    return ObjectStoreOffloader(
        settings.managedLedgerOffloadBucket,
        s3_options_of(settings),
        cache_bytes=settings.managedLedgerOffloadReadCacheSizeMB * _MB,
    )


def reader_of(
    store: ObjectStore, key: ObjectKey, windows: WindowCache, direct: DirectSegment | None
) -> OffloadedReader:
    """Return a reader of a segment. `direct` is set for a direct segment, whose stamps are provisional."""
    if direct is not None:
        return DirectSegmentReader(store, key, windows, direct)
    return OffloadedSegmentReader(store, key, windows)


def _put_entry_index(
    store: ObjectStore, key: ObjectKey, segment: LocalSegment, entry_index: EntryIndex, extra: Mapping[str, str]
) -> None:
    data = sealed_bytes(
        entry_index,
        store_id=extra.get("pulsarClusterName", ""),
        block_bytes=segment.block_bytes,
        file_bytes=segment.file_bytes,
    )
    retry(lambda: store.put(key.entries_name, data, user_metadata("entries", extra)))


def _put_block_index(store: ObjectStore, key: ObjectKey, index: BlockIndex, extra: Mapping[str, str]) -> None:
    encoded = index.encode()
    retry(lambda: store.put(key.index_name, encoded, user_metadata("index", extra)))


def _require_checksums(ledger: LocalSegment, entry_index: EntryIndex) -> None:
    """Verify the checksum of every entry."""
    verify_segment(
        ledger.path,
        ledger.ledger_id,
        entries=ledger.entries,
        file_bytes=ledger.file_bytes,
        first_row=entry_index.first_row,
        describe=entry_traits,
        index=entry_index,
    )


def _require_uploaded(store: ObjectStore, key: ObjectKey, index: BlockIndex, entry_index: EntryIndex) -> None:
    """Raise Corrupt unless the uploaded block index equals `index` and the data object has the last entry's frame."""
    where = f"{store.address}/{key.index_name}"
    try:
        found = parse_index(retry(lambda: store.get(key.index_name, INDEX_BYTES_MAX)).data, where)
        last = index.entries - 1
        offset = int(entry_index.offsets[last])
        frame = bytes(memoryview(retry(lambda: store.get_range(key.data_name, offset, FRAME_BYTES))))
    except NotFound as gone:
        raise Corrupt(f"an object that was just uploaded does not exist: {gone.message}") from gone
    if found != index:
        raise Corrupt(f"{where} differs from the index that was uploaded")
    if FRAME.unpack(frame) != (int(entry_index.lengths[last]), last):
        raise Corrupt(
            f"{store.address}/{key.data_name} at {offset}: (length, entry) is {FRAME.unpack(frame)}, the segment has "
            f"{(int(entry_index.lengths[last]), last)}"
        )
