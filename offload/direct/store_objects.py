"""Data objects of direct segments in the bucket of a store, for the broker of the store."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.protocol.commits import BucketAccess, PartRun, StagedPart
from pyspark_ledger.ledger.tiering.direct_objects import DirectKey, FoundObject
from pyspark_ledger.offload.direct.upload import DirectPlace, DirectUpload
from pyspark_ledger.offload.format.object_names import ObjectKey
from pyspark_ledger.offload.index_objects import DIRECT_EPOCH, direct_metadata
from pyspark_ledger.offload.storage.object_store import ObjectStore
from pyspark_ledger.offload.storage.s3_options import S3Options
from pyspark_ledger.offload.upload import retry


class StoreObjects:
    """Implementation of `ledger.tiering.direct_objects` for one address."""

    def __init__(self, store: ObjectStore, options: S3Options) -> None:
        self._store = store
        self._options = options

    @cached_property
    def access(self) -> BucketAccess:
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

    def metadata(self, extra: Mapping[str, str], epoch: int) -> dict[str, str]:
        return direct_metadata(extra, epoch)

    def head(self, key: DirectKey) -> FoundObject:
        found = retry(lambda: self._store.head(ObjectKey(*key).data_name))
        return FoundObject(found.size, found.modified_ms)

    def copy(self, source: DirectKey, target: DirectKey, metadata: Mapping[str, str]) -> None:
        retry(lambda: self._store.copy(ObjectKey(*source).data_name, ObjectKey(*target).data_name, metadata))

    def put(
        self, key: DirectKey, metadata: Mapping[str, str], run: PartRun, entries: Iterable[tuple[Buffer, int]]
    ) -> StagedPart:
        upload = DirectUpload(run, 0)
        try:
            upload.begin(DirectPlace(self._store, ObjectKey(*key), dict(metadata)))
            for entry, rows in entries:
                upload.write([entry], rows)
            return upload.close()
        except BaseException:
            upload.abort()
            raise

    def put_before(self, until_ms: int, kept: Collection[uuid.UUID]) -> Iterator[DirectKey]:
        for listed in self._store.objects():
            found = ObjectKey.parse(listed.key)
            if found is None or found[0].attempt in kept or listed.modified_ms >= until_ms:
                continue
            if self._is_direct(listed.key):
                yield DirectKey(*found[0])
        for begun in self._store.begun_uploads():
            found = ObjectKey.parse(begun.upload.key)
            if found is not None and found[0].attempt not in kept and begun.begun_ms < until_ms:
                yield DirectKey(*found[0])

    def _is_direct(self, key: str) -> bool:
        try:
            return DIRECT_EPOCH.lower() in self._store.head(key).metadata
        except NotFound:
            return False
