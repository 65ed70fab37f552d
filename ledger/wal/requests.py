"""Requests of the write-ahead log. Each request is repeated until its result is known.

Rules
- A put with a condition is repeated with the same bytes. If the server responds with 412 (the condition is not met),
  the broker reads the header of the object. The header shows whose put succeeded.
- 409 means that another put was running and nothing was stored. It is a temporary error at every request.
- A read is repeated after a temporary error.
- A request is also repeated if S3 refuses the credentials, because another program may renew expired credentials.
- Each request has a deadline, a shorter one for refused credentials. After the deadline, the last error is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import AlreadyExists, Archived, LedgerError, NotFound, Unauthenticated, Unavailable
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import MANIFEST, log_key
from pyspark_ledger.ledger.wal.fence import Slot, is_own_replacement, require_home, slot_content
from pyspark_ledger.ledger.wal.log_object import HEADER_BYTES, Header, decode_header
from pyspark_ledger.ledger.wal.manifest import (
    BYTES_MAX,
    StoreManifest,
    decode_manifest,
    encode_manifest,
    require_successor,
)

_PAUSE_MS, _PAUSE_MS_MAX = 50, 2_000
_log = logging.getLogger(__name__)


T = TypeVar("T")


class FoundManifest(NamedTuple):
    """Manifest, the object that names the owner of the store, and its etag, S3's id of the content.

    A put that replaces the manifest succeeds only if the manifest in the bucket still has this etag.
    """

    manifest: StoreManifest
    etag: str


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a writer and its requests.

    `flush_interval_ms` is the minimum time between two objects that are not full. `object_bytes` is the size of a full
    object. After `idle_ms` without a batch, the writer puts one object without parts (`ledger.wal.flush`).
    `deadline_ms` is the time after which a request is not repeated again. `refused_ms` is this time while S3 refuses
    the credentials.
    """

    flush_interval_ms: int = 100
    object_bytes: int = 8 * 1024 * 1024
    idle_ms: int = 30_000
    deadline_ms: int = 300_000
    refused_ms: int = 30_000


READER_LIMITS = RequestLimits(deadline_ms=60_000, refused_ms=1_000)
"""Limits of a process that reads the store without its broker."""


def store_object(
    bucket: ObjectStore,
    header: Header,
    data: Sequence[Buffer],
    limits: RequestLimits,
    is_over: Callable[[], bool] = lambda: False,
) -> Slot:
    """Put a log object, and repeat the put until its result is known. Return whose object is in the slot.

    Raises the last error after the deadline or if `is_over` returns True.
    """
    key = log_key(header.number)
    retry = Retry(limits, is_over)
    while True:
        try:
            bucket.put(key, data, only_new=True)
        except AlreadyExists as error:
            slot = slot_content(repeated(lambda: _header(bucket, key), limits, is_over), header)
            if slot is not Slot.FREE:
                return slot
            retry.pause(error)
        except (Unavailable, Unauthenticated) as error:
            retry.pause(error)
        else:
            return Slot.MINE


def read_manifest(
    bucket: ObjectStore,
    limits: RequestLimits,
    is_over: Callable[[], bool] = lambda: False,
    *,
    of_any_home: bool = False,
) -> FoundManifest:
    """Return the manifest. Raises NotFound if there is none.

    Raises Refused for a copy of another bucket or prefix, unless `of_any_home` is set. Only a broker that was told why
    the store is here sets it.
    """
    fetched = repeated(lambda: bucket.get(MANIFEST, BYTES_MAX), limits, is_over)
    manifest = decode_manifest(fetched.data, f"{MANIFEST} of {bucket.address}")
    if not of_any_home:
        require_home(manifest, bucket.address)
    return FoundManifest(manifest, fetched.head.etag)


def put_first_manifest(bucket: ObjectStore, manifest: StoreManifest, limits: RequestLimits) -> FoundManifest:
    """Put the manifest that makes a prefix a store. Raises AlreadyExists if the bucket has a manifest.

    The manifest there is this one if the answer to an earlier attempt was lost.
    """
    data = encode_manifest(manifest)
    return FoundManifest(manifest, repeated(lambda: bucket.put(MANIFEST, data, only_new=True), limits))


def replace_manifest(
    bucket: ObjectStore, before: FoundManifest, after: StoreManifest, limits: RequestLimits
) -> FoundManifest:
    """Replace the manifest, and repeat the put until its result is known.

    Raises AlreadyExists, and changes nothing, if the bucket has another manifest than `before`.
    """
    require_successor(before.manifest, after, f"{MANIFEST} of {bucket.address}")
    retry = Retry(limits, lambda: False)
    while True:
        try:
            return FoundManifest(after, bucket.put(MANIFEST, encode_manifest(after), if_match=before.etag))
        except AlreadyExists:
            found = read_manifest(bucket, limits)
            if not is_own_replacement(found.manifest, after):
                raise
            return found
        except (Unavailable, Unauthenticated) as error:
            retry.pause(error)


def repeated(call: Callable[[], T], limits: RequestLimits, is_over: Callable[[], bool] = lambda: False) -> T:
    """Return the result of a request that may be repeated after any temporary error."""
    retry = Retry(limits, is_over)
    while True:
        try:
            return call()
        except (Unavailable, Unauthenticated) as error:
            retry.pause(error)


def _header(bucket: ObjectStore, key: str) -> Header | None:
    try:
        return decode_header(bucket.get_range(key, 0, HEADER_BYTES), f"{key} of {bucket.address}")[0]
    except NotFound:
        return None


class Retry:
    """Growing pauses between the attempts of one request, up to the deadline."""

    def __init__(self, limits: RequestLimits, is_over: Callable[[], bool]) -> None:
        self._limits = limits
        self._is_over = is_over
        self._started_ms = monotonic_ms()
        self._attempts = 0

    def pause(self, error: LedgerError) -> None:
        """Pause before the next attempt. Raise `error` after the deadline, or if a repetition cannot help."""
        limits = self._limits
        most = limits.refused_ms if isinstance(error, Unauthenticated) else limits.deadline_ms
        if isinstance(error, Archived) or self._is_over() or monotonic_ms() - self._started_ms >= most:
            raise error
        if not self._attempts:
            _log.warning("a request is repeated: %s", error)
        pause(min(_PAUSE_MS << self._attempts, _PAUSE_MS_MAX))
        self._attempts = min(self._attempts + 1, 10)
