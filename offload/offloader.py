"""The offloader: sealed ledgers as objects that Pulsar's own offloader could have written, and reads.

    offload   data in parallel parts ─▶ places of the entries ─▶ index, last ─▶ all of it compared with the ledger
    read      index once, then ranges (offload.reader)
    delete    index first, then the rest, uploads that were begun included

Rules
- Where the index object is, the data are whole. An attempt is made of what is there of it already.
- What is written goes to the address of the settings; what is read or deleted is where its record says, with the
  credentials of the settings.
- Entries are summed while they are uploaded: a ledger that is damaged here is never called offloaded.
"""

from __future__ import annotations

import importlib
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.metadata.offload_records import Driver
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES
from pyspark_ledger.ledger.segment.index import EntryIndex, sealed_bytes
from pyspark_ledger.ledger.segment.verification import verify_segment
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.offloader import NO_CALLBACKS, LocalSegment, OffloadCallbacks
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.offload.format.block_index import BlockIndex, parse_index
from pyspark_ledger.offload.format.object_names import ENTRIES_SUFFIX, ObjectKey
from pyspark_ledger.offload.index_objects import build_index, split_into_parts, user_metadata
from pyspark_ledger.offload.reader import INDEX_BYTES_MAX, OffloadedSegmentReader
from pyspark_ledger.offload.storage.factory import open_object_store
from pyspark_ledger.offload.storage.object_store import ObjectStore
from pyspark_ledger.offload.storage.s3_options import ROLE_SESSION, S3Options
from pyspark_ledger.offload.transform import Transform, transformed
from pyspark_ledger.offload.upload import retry, upload_file
from pyspark_ledger.offload.window_cache import WindowCache

S3_DRIVER, DIRECTORY_DRIVER = "aws-s3", "filesystem"
_MB = 1024 * 1024
_ADVICE = (
    "The broker has the environment of the process that started it. `ledger stop` ends it, and the next process that "
    "uses the store starts one with its own environment"
)


class ObjectStoreOffloader:
    """Keeps ledgers at one address, and reads those of any. Any thread may call any method."""

    def __init__(
        self,
        address: str,
        options: S3Options,
        *,
        upload_threads: int = 2,
        read_threads: int = 4,
        window_bytes: int = 16 * _MB,
        cache_bytes: int = 256 * _MB,
        places: bool = True,
        transform: Transform | None = None,
    ) -> None:
        self._address = address
        self._options = options
        self._upload_threads = upload_threads
        self._with_places = places
        self._transform = transform
        self._stores: dict[tuple[str, S3Options], ObjectStore] = {}
        self._lock = threading.Lock()
        self.windows = WindowCache(window_bytes, cache_bytes, read_threads)

    @property
    def store(self) -> ObjectStore:
        if not self._address:
            raise Refused(
                "there is nowhere to offload to: no offloader is configured",
                hint="Set managedLedgerOffloadBucket: in conf/broker.toml, or with `ledger settings set`",
            )
        return self._store_at(self._address, self._options)

    @property
    def driver(self) -> Driver:
        """What the record of a ledger says of where its objects are, with Pulsar's names."""
        address = self.store.address
        if address.startswith("file:"):
            return Driver(DIRECTORY_DRIVER, {"managedLedgerOffloadDriver": DIRECTORY_DRIVER, "address": address})
        bucket, _, prefix = address.removeprefix("s3://").partition("/")
        said = {
            "managedLedgerOffloadDriver": S3_DRIVER,
            "bucket": bucket,
            "region": self._options.region,
            "serviceEndpoint": self._options.endpoint,
        }
        return Driver(S3_DRIVER, {**said, **({"prefix": prefix} if prefix else {})})

    def offload(
        self,
        ledger: LocalSegment,
        attempt: uuid.UUID,
        extra_metadata: Mapping[str, str],
        told: OffloadCallbacks = NO_CALLBACKS,
    ) -> None:
        store, key = self.store, ObjectKey(attempt, ledger.ledger_id)
        with self._as_it_leaves(ledger) as leaving:
            places = leaving.index()
            index = build_index(leaving, places, extra_metadata)
            with ThreadPoolExecutor(1, thread_name_prefix="verify") as beside:
                sound = beside.submit(_require_sound, leaving, places, summed=self._transform is None)
                upload_file(
                    store,
                    key.data_name,
                    user_metadata("data", extra_metadata),
                    leaving.path,
                    split_into_parts(index),
                    threads=self._upload_threads,
                    told=told,
                )
                sound.result()
            if self._with_places:
                data = sealed_bytes(
                    places,
                    store_id=extra_metadata.get("pulsarClusterName", ""),
                    block_bytes=leaving.block_bytes,
                    file_bytes=leaving.file_bytes,
                )
                retry(lambda: store.put(key.entries_name, data, user_metadata("entries", extra_metadata)))
            encoded = index.encode()
            retry(lambda: store.put(key.index_name, encoded, user_metadata("index", extra_metadata)))
            _require_same(store, key, index, places)

    def read_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> OffloadedSegmentReader:
        return OffloadedSegmentReader(self._store_of(driver), ObjectKey(attempt, ledger_id), self.windows)

    def delete_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> None:
        store, key = self._store_of(driver), ObjectKey(attempt, ledger_id)
        store.delete([key.index_name])
        for upload in list(store.uploads(key.data_name)):
            if upload.key == key.data_name:
                store.abort(upload)
        store.delete([key.data_name, key.entries_name])

    def delete_orphans(self, store_id: str, kept: Collection[uuid.UUID]) -> int:
        """Delete the objects of a store that none of these attempts made; how many. Of others' nothing is touched."""
        store, orphans = self.store, []
        for found in store.objects():
            name = found.key.removesuffix(ENTRIES_SUFFIX)
            parsed = ObjectKey.parse(name)
            if parsed is None or parsed[0].attempt in kept:
                continue
            try:
                owner = store.head(found.key).metadata.get("pulsarclustername")
            except NotFound:
                continue
            if owner == store_id:
                orphans.append(found.key)
        store.delete(orphans)
        return len(orphans)

    def close(self) -> None:
        self.windows.close()
        with self._lock:
            stores, self._stores = list(self._stores.values()), {}
        for store in stores:
            store.close()

    def _store_of(self, driver: Driver) -> ObjectStore:
        said = driver.properties
        if driver.name == DIRECTORY_DRIVER and "address" in said:
            return self._store_at(said["address"], self._options)
        if "bucket" not in said:
            raise Refused(f"a ledger was offloaded by driver {driver.name!r}, which this code does not read")
        options = S3Options(
            **{
                **{name: getattr(self._options, name) for name in S3Options.__dataclass_fields__},
                "endpoint": said.get("serviceEndpoint", ""),
                "region": said.get("region", "") or self._options.region,
            }
        )
        prefix = said.get("prefix", "")
        return self._store_at(f"s3://{said['bucket']}" + (f"/{prefix}" if prefix else ""), options)

    def _store_at(self, address: str, options: S3Options) -> ObjectStore:
        with self._lock:
            if (address, options) not in self._stores:
                self._stores[address, options] = open_object_store(address, options)
            return self._stores[address, options]

    @contextmanager
    def _as_it_leaves(self, ledger: LocalSegment) -> Iterator[LocalSegment]:
        if self._transform is None:
            yield ledger
            return
        _require_sound(ledger, ledger.index(), summed=True)
        with transformed(ledger, self._transform) as changed:
            yield changed


def offloader_of(settings: Settings) -> ObjectStoreOffloader:
    style = settings.managedLedgerOffloadPathStyle
    options = S3Options(
        endpoint=settings.managedLedgerOffloadServiceEndpoint,
        region=settings.managedLedgerOffloadRegion,
        path_style=None if not style else style == "true",
        profile=settings.managedLedgerOffloadProfile,
        role=settings.s3ManagedLedgerOffloadRole,
        role_session_name=settings.s3ManagedLedgerOffloadRoleSessionName or ROLE_SESSION,
        credential_provider=settings.managedLedgerOffloadCredentialProvider,
        encryption=settings.managedLedgerOffloadEncryption,  # type: ignore[arg-type]  # one of them, or refused there
        kms_key=settings.managedLedgerOffloadKmsKey,
        bucket_owner=settings.managedLedgerOffloadBucketOwner,
        connections=settings.managedLedgerOffloadMaxThreads + settings.managedLedgerOffloadReadThreads + 4,
        advice=_ADVICE,
    )
    return ObjectStoreOffloader(
        settings.managedLedgerOffloadBucket,
        options,
        upload_threads=settings.managedLedgerOffloadMaxThreads,
        read_threads=settings.managedLedgerOffloadReadThreads,
        window_bytes=settings.managedLedgerOffloadReadBufferSizeInBytes,
        cache_bytes=settings.managedLedgerOffloadReadCacheSizeMB * _MB,
        places=bool(settings.managedLedgerOffloadFineIndex),
        transform=_named(settings.managedLedgerOffloadTransform),
    )


def _named(name: str) -> Callable[..., Any] | None:
    if not name:
        return None
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as missing:
        raise Refused(f"transformation {name!r} cannot be imported: {missing}") from None
    return found


def _require_sound(ledger: LocalSegment, places: EntryIndex, *, summed: bool) -> None:
    """Every entry of the file has its checksum; those that a transformation made have what it gave them."""
    if summed:
        verify_segment(
            ledger.path,
            ledger.ledger_id,
            entries=ledger.entries,
            file_bytes=ledger.file_bytes,
            first_row=places.first_row,
            describe=entry_traits,
            index=places,
        )


def _require_same(store: ObjectStore, key: ObjectKey, index: BlockIndex, places: EntryIndex) -> None:
    """The objects say what the ledger is: the index all of it, the data their length and their last entry."""
    where = f"{store.address}/{key.index_name}"
    try:
        found = parse_index(retry(lambda: store.get(key.index_name, INDEX_BYTES_MAX)).data, where)
        last = index.entries - 1
        offset = int(places.offsets[last])
        frame = bytes(memoryview(retry(lambda: store.get_range(key.data_name, offset, FRAME_BYTES))))
    except NotFound as gone:
        raise Corrupt(f"what was just uploaded is not there: {gone.message}") from gone
    if found != index:
        raise Corrupt(f"{where} is not the index that was put there")
    if FRAME.unpack(frame) != (int(places.lengths[last]), last):
        raise Corrupt(
            f"{store.address}/{key.data_name} at {offset}: (length, entry) is {FRAME.unpack(frame)}, the ledger has "
            f"{(int(places.lengths[last]), last)}"
        )
