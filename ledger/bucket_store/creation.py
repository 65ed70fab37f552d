"""Creation of a store in a bucket: probe, first snapshot, manifest.

The *probe* tests whether puts with a condition are atomic on this server. The *snapshot* contains the records of the
empty store. The *manifest* is the object that makes the prefix a store.

Rules
- The manifest is put last, with `If-None-Match: *`. So if two processes create a store at the same time, one put
  succeeds. The other process then opens the store that the first process created.
- A prefix that has objects and no manifest is refused. Reason: another program may use the prefix, or a store there has
  lost its manifest. Exception: snapshots and objects of a probe are accepted. They come from another process that is
  creating the store, or that crashed before it put the manifest. The collector deletes them later.
"""

from __future__ import annotations

import sqlite3
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from pyspark_ledger.ledger.bucket_store.probe import PROBE_PREFIX
from pyspark_ledger.ledger.bucket_store.snapshots import put_snapshot, snapshot_of
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.database.record_tables import connect
from pyspark_ledger.ledger.errors import AlreadyExists, NotFound, Refused
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import SNAPSHOT_PREFIX
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.requests import FoundManifest, RequestLimits, put_first_manifest, read_manifest, repeated

_OF_CREATORS = (PROBE_PREFIX, SNAPSHOT_PREFIX)


def found_or_created(
    bucket: ObjectStore,
    clock: Clock,
    limits: RequestLimits,
    *,
    create: bool,
    window: int,
    probe: Callable[[ObjectStore], None],
    of_any_home: bool = False,
) -> FoundManifest:
    """Return the manifest of the store in a bucket. With `create`, create the store if there is none.

    Raises NotFound without `create`, and Refused if the bucket is not suitable or the prefix is in use. Raises Refused
    for a copy of another prefix, unless `of_any_home` is set.
    """
    try:
        return read_manifest(bucket, limits, of_any_home=of_any_home)
    except NotFound:
        if not create:
            raise NotFound(
                f"there is no ledger store at {bucket.address}",
                hint="Write to it once, create it with `ledger serve --create`, or correct the address",
            ) from None
    require_unused(bucket, limits)
    probe(bucket)
    store_id, nonce = str(uuid.uuid4()), str(uuid.uuid4())
    snapshot = put_snapshot(
        bucket, _first_records(store_id, clock), records_from=0, epoch=0, nonce=nonce, limits=limits
    )
    manifest = StoreManifest(store_id, nonce, window=window, snapshot=snapshot, home=bucket.address)
    try:
        return put_first_manifest(bucket, manifest, limits)
    except AlreadyExists:
        return read_manifest(bucket, limits)


def require_unused(bucket: ObjectStore, limits: RequestLimits) -> None:
    """Raise Refused if the prefix has objects that are neither snapshots nor of a probe."""

    def first_used() -> str | None:
        return next((found.key for found in bucket.objects() if not found.key.startswith(_OF_CREATORS)), None)

    used = repeated(first_used, limits)
    if used is not None:
        raise Refused(
            f"{bucket.address} has objects and no manifest, the first is {used}",
            hint="Choose an empty prefix. If a store was here, restore its object 'manifest'",
        )


def _first_records(store_id: str, clock: Clock) -> bytes:
    with tempfile.TemporaryDirectory(prefix="ledger-store-") as directory:
        path = Path(directory) / "metadata.sqlite"
        Metadata.create(path, store_id, "", clock).close()
        connection: sqlite3.Connection = connect(path)
        try:
            return snapshot_of(connection)
        finally:
            connection.close()
