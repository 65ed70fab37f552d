"""Listing of a bucket's offloaded objects. The index objects are fetched concurrently.

A *segment* is one file of a ledger. An *attempt* is one upload of a segment: a data object and its index object. The
*fault* of an attempt is a text that states why the attempt is invalid. A valid attempt has none.

Rules
- Objects are found by their names, `<uuid>-ledger-<id>` and `<uuid>-ledger-<id>-index`, in any folder. Other objects
  are skipped.
- A *streaming offload* (version 2) is Pulsar's second format: it copies a segment while the segment is written. Such
  an offload is not read. Its attempts are invalid, so its segments are listed as missing.
- An object of a later format version makes its attempt invalid.
- A *direct segment* has a data object that a Spark task wrote before the commit. The object's metadata state this. If
  the segment has no index object, the listing skips it. Reason: its rows are not committed, or were committed only a
  moment ago.
- Objects never change. So a repeated listing reads only the indexes of new attempts and of invalid attempts.
- An index is read as a whole, up to a limit. An unreadable index makes its attempt invalid, and the listing continues.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from pyspark_ledger.ledger.errors import Corrupt, LedgerError, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.objects.object_store import ListedObject, ObjectStore
from pyspark_ledger.ledger.segment.object_names import VERSION, VERSION_KEY, ObjectKey
from pyspark_ledger.ledger.tiering.direct_objects import DIRECT_EPOCH
from pyspark_ledger.offload.bucket.catalogue import Attempt, Catalogue, without_index
from pyspark_ledger.offload.format.block_index import BlockIndex, parse_index
from pyspark_ledger.offload.format.streaming_index import parse_streaming_index

TOPIC_NAME, CLUSTER_NAME = "managedledgername", "pulsarclustername"
INCARNATION_NAME = "ledgerincarnation"
_INDEX_BYTES_MAX = 64 * 1024 * 1024
_AT_ONCE = 16
_STREAMED = re.compile(r"(?:.*/)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-index")


@dataclass(frozen=True, slots=True)
class _Listed:
    """Objects of one attempt. A size is -1 if the object is missing.

    `changed_ms` are the times of the last change of the data object and the index object.
    """

    key: ObjectKey
    folder: str
    data_bytes: int
    index_bytes: int
    changed_ms: tuple[int, int]


class BucketListing:
    """Listing of all offloaded objects below a store's address, which can be repeated to find later objects."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._complete_attempts: dict[_Listed, Attempt] = {}

    def catalogue(self) -> Catalogue:
        """List the bucket and return its catalogue.

        Raises NotFound if there are no offloaded objects, Unsupported if all of them are streaming offloads.
        """
        store = self.store
        listed, streaming_keys = _listed(store)
        if not listed and not streaming_keys:
            raise NotFound(
                f"{store.address} holds no offloaded ledger: no object is named <uuid>-ledger-<id>",
                hint="Give the bucket and prefix that Pulsar or `ledger offload` wrote to",
            )
        if not listed:
            raise Unsupported(
                f"{store.address} holds only streaming offloads (version 2), which are not read: {streaming_keys[0]}"
            )
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="catalogue") as pool:
            attempts = list(pool.map(self._attempt, listed))
            found = [attempt for attempt in attempts if attempt is not None]
            self._complete_attempts = {
                item: attempt
                for item, attempt in zip(listed, attempts, strict=True)
                if attempt is not None and not attempt.fault
            }
            for streamed in pool.map(lambda key: _streaming_attempts(store, key), streaming_keys):
                found += streamed
        return Catalogue(found)

    def _attempt(self, listed: _Listed) -> Attempt | None:
        return self._complete_attempts.get(listed) or _read_attempt(self.store, listed)


def read_catalogue(store: ObjectStore) -> Catalogue:
    """Return the catalogue of all objects below the store's address. Raises NotFound or Unsupported."""
    return BucketListing(store).catalogue()


def _listed(store: ObjectStore) -> tuple[list[_Listed], list[str]]:
    found: dict[tuple[str, ObjectKey], dict[bool, ListedObject]] = {}
    streaming_keys = []
    for item in store.objects():
        folder, slash, name = item.key.rpartition("/")
        parsed = ObjectKey.parse(name)
        if parsed is None:
            if _STREAMED.fullmatch(item.key):
                streaming_keys.append(item.key)
            continue
        key, is_index = parsed
        found.setdefault((folder + slash, key), {})[is_index] = item
    return [_to_listed(folder, key, objects) for (folder, key), objects in found.items()], streaming_keys


def _to_listed(folder: str, key: ObjectKey, objects: Mapping[bool, ListedObject]) -> _Listed:
    data, index = objects.get(False), objects.get(True)
    return _Listed(
        key,
        folder,
        -1 if data is None else data.size,
        -1 if index is None else index.size,
        (0 if data is None else data.modified_ms, 0 if index is None else index.modified_ms),
    )


def _read_attempt(store: ObjectStore, listed: _Listed) -> Attempt | None:
    """Return an attempt. Returns None for a direct segment without an index object."""
    attempt = Attempt(listed.key, listed.folder, data_bytes=listed.data_bytes, changed_ms=listed.changed_ms)
    if listed.index_bytes < 0:
        try:
            metadata = store.head(attempt.data_name).metadata
            return None if DIRECT_EPOCH.lower() in metadata else without_index(_with_names(attempt, metadata))
        except NotFound:
            return without_index(attempt)  # the object was deleted after the listing
    name = f"{listed.folder}{listed.key.index_name}"
    try:
        data, head = store.get(name, _INDEX_BYTES_MAX)
    except NotFound:
        return without_index(attempt)
    except (Corrupt, Refused) as wrong:
        return _with_fault(_with_names(attempt, _metadata_of(store, attempt.data_name)), wrong.message, damaged=True)
    return _with_index(store, _with_names(attempt, head.metadata), name, data, head.metadata.get(VERSION_KEY, VERSION))


def _with_index(store: ObjectStore, attempt: Attempt, name: str, data: bytes, version: str) -> Attempt:
    """Return the attempt with its parsed index, or with the fault of the index."""
    if version != VERSION:
        return _with_fault(attempt, f"{name} is of format version {version!r}, expected {VERSION!r}")
    try:
        index = parse_index(data, f"{store.address}/{name}")
    except LedgerError as wrong:
        return _with_fault(attempt, wrong.message, damaged=isinstance(wrong, Corrupt))
    return _check_data_size(_with_names(attempt, {}, index), index, f"{store.address}/{attempt.data_name}")


def _metadata_of(store: ObjectStore, name: str) -> Mapping[str, str]:
    """Return the user metadata of an object. Returns an empty mapping if they cannot be read."""
    try:
        return store.head(name).metadata
    except (Corrupt, NotFound):
        return {}


def _streaming_attempts(store: ObjectStore, key: str) -> list[Attempt]:
    """Return an invalid attempt for each segment of a streaming offload."""
    folder, slash, name = key.rpartition("/")
    data_name = key.removesuffix("-index")
    attempt, where = uuid.UUID(name.removesuffix("-index")), f"{store.address}/{key}"
    try:
        data, head = store.get(key, _INDEX_BYTES_MAX)
        segments = parse_streaming_index(data, where).segments
    except LedgerError as wrong:
        return [Attempt(ObjectKey(attempt, -1), folder + slash, fault=wrong.message, object_name=data_name)]
    topic, cluster = head.metadata.get(TOPIC_NAME, ""), head.metadata.get(CLUSTER_NAME, "")
    fault = f"{data_name} is a streaming offload (version 2), which is not read"
    return [
        Attempt(
            ObjectKey(attempt, segment.ledger_id), folder + slash, topic, cluster, fault=fault, object_name=data_name,
            entries=segment.info.entries,
        )
        for segment in segments
    ]  # fmt: skip


def _with_names(attempt: Attempt, metadata: Mapping[str, str], index: BlockIndex | None = None) -> Attempt:
    return replace(
        attempt,
        topic=attempt.topic or metadata.get(TOPIC_NAME, "") or (index.managed_ledger if index else ""),
        cluster=attempt.cluster or metadata.get(CLUSTER_NAME, ""),
        incarnation=attempt.incarnation or metadata.get(INCARNATION_NAME, ""),
        index=index,
    )


def _check_data_size(attempt: Attempt, index: BlockIndex, where: str) -> Attempt:
    """Return the attempt. Set its fault if its data object is missing, or is shorter than the index states."""
    if attempt.data_bytes < 0:
        return replace(_with_fault(attempt, f"{where} is missing, only its index exists"), entries=index.entries)
    if attempt.data_bytes < index.data_bytes:
        fault = f"{where} has {attempt.data_bytes} bytes, its index states {index.data_bytes}"
        return _with_fault(attempt, fault, damaged=True)
    return attempt


def _with_fault(attempt: Attempt, fault: str, *, damaged: bool = False) -> Attempt:
    return replace(attempt, fault=fault, damaged=damaged)
