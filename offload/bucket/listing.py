"""The objects of a bucket, looked at: one listing, and one request for each index object, many at once.

Rules
- Whatever is not named as Pulsar names offloaded objects is passed over; the folder before a name means nothing.
- Streaming offloads (version 2) are not read and not passed over: their ledgers are listed, and are missing by name.
- An object of a later format is not guessed at: its attempt does not count, and says why.
- Objects do not change: of a bucket that is looked at again only the indexes of what is new are read, and of attempts
  that did not count.
- An index is read whole and bounded. What cannot be read is a fault of its attempt, never of the bucket.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from pyspark_ledger.ledger.errors import Corrupt, LedgerError, NotFound, Refused, Unsupported
from pyspark_ledger.offload.bucket.catalogue import Attempt, Catalogue, without_index
from pyspark_ledger.offload.format.block_index import BlockIndex, parse_index
from pyspark_ledger.offload.format.object_names import ObjectKey
from pyspark_ledger.offload.format.streaming_index import parse_streaming_index
from pyspark_ledger.offload.storage.object_store import ListedObject, ObjectStore

VERSION, VERSION_NAME = "1", "s3managedledgeroffloaderformatversion"
TOPIC_NAME, CLUSTER_NAME = "managedledgername", "pulsarclustername"
INCARNATION_NAME = "ledgerincarnation"
_INDEX_BYTES_MAX = 64 * 1024 * 1024
_AT_ONCE = 16
_STREAMED = re.compile(r"(?:.*/)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-index")


@dataclass(frozen=True, slots=True)
class _Listed:
    """The objects of one attempt; a size of -1: not there. `changed_ms`: when each was written."""

    key: ObjectKey
    folder: str
    data_bytes: int
    index_bytes: int
    changed_ms: tuple[int, int]


class BucketListing:
    """Everything below a store's address, looked at as often as somebody asks."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._known: dict[_Listed, Attempt] = {}

    def catalogue(self) -> Catalogue:
        """What is there now; raises NotFound when there is nothing to read."""
        store = self.store
        listed, strange = _listed(store)
        if not listed and not strange:
            raise NotFound(
                f"{store.address} holds no offloaded ledger: no object is named <uuid>-ledger-<id>",
                hint="Give the bucket and prefix that Pulsar or `ledger offload` wrote to",
            )
        if not listed:
            raise Unsupported(f"{store.address} holds only streaming offloads (version 2), such as {strange[0]}")
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="catalogue") as pool:
            found = list(pool.map(self._attempt, listed))
            self._known = {one: attempt for one, attempt in zip(listed, found, strict=True) if not attempt.fault}
            for streamed in pool.map(lambda key: _streamed(store, key), strange):
                found += streamed
        return Catalogue(found)

    def _attempt(self, listed: _Listed) -> Attempt:
        return self._known.get(listed) or _looked_at(self.store, listed)


def read_catalogue(store: ObjectStore) -> Catalogue:
    """The catalogue of everything below the store's address; raises NotFound when there is nothing to read."""
    return BucketListing(store).catalogue()


def _listed(store: ObjectStore) -> tuple[list[_Listed], list[str]]:
    found: dict[tuple[str, ObjectKey], dict[bool, ListedObject]] = {}
    strange = []
    for one in store.objects():
        folder, slash, name = one.key.rpartition("/")
        parsed = ObjectKey.parse(name)
        if parsed is None:
            if _STREAMED.fullmatch(one.key):
                strange.append(one.key)
            continue
        key, is_index = parsed
        found.setdefault((folder + slash, key), {})[is_index] = one
    return [_attempted(folder, key, of) for (folder, key), of in found.items()], strange


def _attempted(folder: str, key: ObjectKey, of: Mapping[bool, ListedObject]) -> _Listed:
    data, index = of.get(False), of.get(True)
    return _Listed(
        key,
        folder,
        -1 if data is None else data.size,
        -1 if index is None else index.size,
        (0 if data is None else data.modified_ms, 0 if index is None else index.modified_ms),
    )


def _looked_at(store: ObjectStore, listed: _Listed) -> Attempt:
    attempt = Attempt(listed.key, listed.folder, data_bytes=listed.data_bytes)
    if listed.index_bytes < 0:
        try:
            return without_index(_named(attempt, store.head(attempt.data_name).metadata))
        except NotFound:
            return without_index(attempt)  # it was swept meanwhile
    name = f"{listed.folder}{listed.key.index_name}"
    try:
        data, head = store.get(name, _INDEX_BYTES_MAX)
    except NotFound:
        return without_index(attempt)
    except (Corrupt, Refused) as wrong:
        return _faulty(_named(attempt, _metadata_of(store, attempt.data_name)), wrong.message, damaged=True)
    return _indexed(store, _named(attempt, head.metadata), name, data, head.metadata.get(VERSION_NAME, VERSION))


def _indexed(store: ObjectStore, attempt: Attempt, name: str, data: bytes, version: str) -> Attempt:
    """What the bytes of an index object make of its attempt."""
    if version != VERSION:
        return _faulty(attempt, f"{name} is of format version {version!r}, expected {VERSION!r}")
    try:
        index = parse_index(data, f"{store.address}/{name}")
    except LedgerError as wrong:
        return _faulty(attempt, wrong.message, damaged=isinstance(wrong, Corrupt))
    return _compared(_named(attempt, {}, index), index, f"{store.address}/{attempt.data_name}")


def _metadata_of(store: ObjectStore, name: str) -> Mapping[str, str]:
    """The user metadata of an object; none where they cannot be read either."""
    try:
        return store.head(name).metadata
    except (Corrupt, NotFound):
        return {}


def _streamed(store: ObjectStore, key: str) -> list[Attempt]:
    """The ledgers of a streaming offload, none of which counts."""
    folder, slash, name = key.rpartition("/")
    data_name = key.removesuffix("-index")
    attempt, where = uuid.UUID(name.removesuffix("-index")), f"{store.address}/{key}"
    try:
        data, head = store.get(key, _INDEX_BYTES_MAX)
        ledgers = parse_streaming_index(data, where).ledgers
    except LedgerError as wrong:
        return [Attempt(ObjectKey(attempt, -1), folder + slash, fault=wrong.message, object_name=data_name)]
    topic, cluster = head.metadata.get(TOPIC_NAME, ""), head.metadata.get(CLUSTER_NAME, "")
    fault = f"{data_name} is a streaming offload (version 2), which is not read"
    return [
        Attempt(
            ObjectKey(attempt, one.ledger_id), folder + slash, topic, cluster, fault=fault, object_name=data_name,
            entries=one.info.entries,
        )
        for one in ledgers
    ]  # fmt: skip


def _named(attempt: Attempt, metadata: Mapping[str, str], index: BlockIndex | None = None) -> Attempt:
    return Attempt(
        attempt.key,
        attempt.folder,
        attempt.topic or metadata.get(TOPIC_NAME, "") or (index.managed_ledger if index else ""),
        attempt.cluster or metadata.get(CLUSTER_NAME, ""),
        attempt.incarnation or metadata.get(INCARNATION_NAME, ""),
        index,
        attempt.data_bytes,
    )


def _compared(attempt: Attempt, index: BlockIndex, where: str) -> Attempt:
    """Whether the data object is there and whole, by its size."""
    if attempt.data_bytes < 0:
        return replace(_faulty(attempt, f"{where} is not there, only its index is"), entries=index.entries)
    if attempt.data_bytes < index.data_bytes:
        said = f"{where} has {attempt.data_bytes} bytes, its index states {index.data_bytes}"
        return _faulty(attempt, said, damaged=True)
    return attempt


def _faulty(attempt: Attempt, fault: str, *, damaged: bool = False) -> Attempt:
    return Attempt(
        attempt.key, attempt.folder, attempt.topic, attempt.cluster, attempt.incarnation, attempt.index,
        attempt.data_bytes, fault, damaged,
    )  # fmt: skip
