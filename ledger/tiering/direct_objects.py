"""Data objects of direct segments in the bucket of a store, for the broker of the store.

A task of a sink puts the *data object* (the bytes in the bucket) of a *direct segment* before the commit of its batch.
The object's key contains the id of the *attempt* (the upload) and the id of the segment. A *run* is the entries of one
batch in one ledger, and the *marker* is its last entry. The *epoch* of a broker is a number that rises with each broker
of the store.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.objects.object_store import ObjectHead, ObjectStore
from pyspark_ledger.ledger.objects.retry import retry
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.protocol.commits import BucketAccess, PartRun, StagedPart
from pyspark_ledger.ledger.segment.object_names import ObjectKey, user_metadata
from pyspark_ledger.ledger.transport.direct_upload import DirectPlace, direct_writer

DIRECT_EPOCH = "LedgerDirectEpoch"
"""Name in the user metadata of data objects that tasks put. S3 returns the name in lower case."""


def direct_metadata(extra: Mapping[str, str], epoch: int) -> dict[str, str]:
    """Return the user metadata of a data object: `extra`, and the epoch of the broker that gives a task the key."""
    return user_metadata("data", {**extra, DIRECT_EPOCH: str(epoch)})


class DirectObjects:
    """Data objects in the folder of the store's segments. Any thread may call any method."""

    def __init__(self, store: ObjectStore, options: S3Options) -> None:
        self._store = store
        self._options = options

    @cached_property
    def access(self) -> BucketAccess:
        """The address of the objects, in the form that tasks use."""
        address, options = self._store.address, self._options
        if address.startswith("s3:"):
            options = options.located(address)
        return BucketAccess(
            address,
            options.endpoint,
            options.region,
            options.path_style,
            options.encryption,
            options.kms_key,
            options.bucket_owner,
        )

    def head(self, key: ObjectKey) -> ObjectHead:
        """Return size and time of an object. Raises NotFound."""
        return retry(lambda: self._store.head(key.data_name))

    def copy(self, source: ObjectKey, target: ObjectKey, metadata: Mapping[str, str]) -> None:
        """Copy an object within the bucket. Raises NotFound."""
        retry(lambda: self._store.copy(source.data_name, target.data_name, metadata))

    def put(
        self, key: ObjectKey, metadata: Mapping[str, str], run: PartRun, entries: Iterable[tuple[Buffer, int]]
    ) -> StagedPart:
        """Put an object with these entries and the marker of the run. Each entry comes with its number of rows."""
        with direct_writer(DirectPlace(self._store, key, dict(metadata)), run) as part:
            for entry, rows in entries:
                part.write([entry], rows)
            return part.close()

    def put_before(self, until_ms: int, kept: Collection[uuid.UUID]) -> Iterator[ObjectKey]:
        """Yield the keys of objects and unfinished uploads that are older than a time, except attempts in `kept`.

        Only objects that a task has put are returned. Objects of offloads are left out.
        """
        for listed in self._store.objects():
            found = ObjectKey.parse(listed.key)
            if found is None or found[0].attempt in kept or listed.modified_ms >= until_ms:
                continue
            if self._is_direct(listed.key):
                yield found[0]
        for begun in self._store.begun_uploads():
            found = ObjectKey.parse(begun.upload.key)
            if found is not None and found[0].attempt not in kept and begun.begun_ms < until_ms:
                yield found[0]

    def _is_direct(self, key: str) -> bool:
        try:
            return DIRECT_EPOCH.lower() in self._store.head(key).metadata
        except NotFound:
            return False
