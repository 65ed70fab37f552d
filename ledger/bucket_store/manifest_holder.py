"""Manifest as this broker last wrote it. One thread at a time changes the manifest.

The manifest is the object that names the broker of a store in a bucket. The *etag* is S3's id of an object's content. A
change is a put that succeeds only if the manifest in the bucket still has the etag of this broker's last put.

Invariants
- A change succeeds only if no other broker replaced the manifest. So a success proves that this broker owns the store.
- If the bucket has the manifest of another broker, a change raises Fenced.
- Each change also states up to which number the log is acknowledged.
- If a change gets no response before its deadline, it may have succeeded. So the next change first reads the manifest,
  and starts from the content that it finds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from pyspark_ledger.ledger.errors import AlreadyExists
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.fence import require_epoch
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.requests import FoundManifest, RequestLimits, read_manifest, replace_manifest


class ManifestHolder:
    """Manifest of the broker that owns the store. Any thread may call any method.

    `end` returns the lowest number that is not acknowledged.
    """

    def __init__(
        self, bucket: ObjectStore, found: FoundManifest, limits: RequestLimits, end: Callable[[], int]
    ) -> None:
        self._bucket = bucket
        self._found = found
        self._limits = limits
        self._end = end
        self._lock = threading.Lock()

    @property
    def manifest(self) -> StoreManifest:
        return self._found.manifest

    def change(self, **values: Any) -> StoreManifest:
        """Replace fields of the manifest. Raises Fenced if another broker replaced the manifest."""
        with self._lock:
            while True:
                before = self._found
                stated = {"revision": before.manifest.revision + 1, "acknowledged": self._end()}
                after = replace(before.manifest, **stated, **values)
                try:
                    self._found = replace_manifest(self._bucket, before, after, self._limits)
                except AlreadyExists:
                    found = read_manifest(self._bucket, self._limits)
                    require_epoch(found.manifest, before.manifest.epoch, self._bucket.address)
                    if found.manifest.revision != after.revision:
                        raise
                    self._found = found
                else:
                    return after
