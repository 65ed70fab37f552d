"""Steps of a move in the bucket: reserve the prefix, put files as log objects, complete the manifest, end the move.

    reserve ─▶ put_files, put_snapshot ─▶ planned manifest ─▶ complete (still `arriving`) ─▶ end (no field `move`)

Rules
- The first manifest reserves the prefix. Its nonce, a random id, identifies the move. If a run of the command is
  killed, the next run finds this manifest and continues the move.
- A run of the command puts log objects under successive numbers. A killed run may have put log objects before, and one
  put of it may still arrive late. So the next run leaves one number free after these objects, and its manifest leaves
  out this number. If the late put takes a number of the next run instead, that run fails.
- No manifest names the new objects before `complete`, and no broker serves the store before `end`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.bucket_store.creation import require_unused
from pyspark_ledger.ledger.bucket_store.probe import probe_bucket
from pyspark_ledger.ledger.bucket_store.snapshots import put_snapshot
from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.clock import Clock, new_id
from pyspark_ledger.ledger.errors import AlreadyExists, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import LOG_PREFIX, log_key, number_of
from pyspark_ledger.ledger.wal.fence import Slot
from pyspark_ledger.ledger.wal.log_object import Header, encode_object
from pyspark_ledger.ledger.wal.manifest import Move, StoreManifest
from pyspark_ledger.ledger.wal.packing import FileBytes, Packer
from pyspark_ledger.ledger.wal.requests import (
    FoundManifest,
    RequestLimits,
    put_first_manifest,
    read_manifest,
    repeated,
    replace_manifest,
    store_object,
)


class ArrivingFile(NamedTuple):
    """File of the store: its name in the store's directory, its path, and the length to copy."""

    name: str
    path: Path
    length: int

    def bytes(self) -> FileBytes:
        return FileBytes(self.name, 0, self.length, self._read)

    def _read(self, offset: int, length: int) -> Buffer:
        with disk.opened(self.path) as fd:
            return disk.read_exact(fd, length, offset)


def require_free(bucket: ObjectStore, store_id: str, limits: RequestLimits) -> FoundManifest | None:
    """Return the manifest of an unfinished move of this store, or None if the prefix is empty.

    Raises Refused if the prefix has another store.
    """
    try:
        found = read_manifest(bucket, limits)
    except NotFound:
        require_unused(bucket, limits)
        return None
    other, move = found.manifest.store_id, found.manifest.move
    if other == store_id and not isinstance(move, UnsetType) and move.state == "arriving":
        return found
    what = "the same store already" if other == store_id else f"store {other} already, the source is store {store_id}"
    raise Refused(f"{bucket.address} has {what}", hint="Choose an empty prefix")


def reserve(
    bucket: ObjectStore,
    store_id: str,
    move: Move,
    limits: RequestLimits,
    window: int,
    probe: Callable[[ObjectStore], None] = probe_bucket,
) -> FoundManifest:
    """Reserve the prefix for a store, or find the reservation of an earlier run. Raises Refused if it is in use."""
    found = require_free(bucket, store_id, limits)
    if found is not None:
        return found
    probe(bucket)
    manifest = StoreManifest(store_id, str(uuid.uuid4()), window=window, move=move, home=bucket.address)
    try:
        return put_first_manifest(bucket, manifest, limits)
    except AlreadyExists:
        found = require_free(bucket, store_id, limits)
        if found is None:
            raise
        return found


def plan(
    bucket: ObjectStore,
    reserved: StoreManifest,
    files: Iterable[ArrivingFile],
    records: bytes,
    limits: RequestLimits,
    clock: Clock,
) -> StoreManifest:
    """Put the bytes of files and a snapshot of the records. Return the manifest that names them."""
    first, end = _put_files(bucket, reserved, files, limits, clock)
    snapshot = put_snapshot(
        bucket, records, records_from=end, epoch=0, nonce=f"{reserved.nonce}-{new_id()}", limits=limits
    )
    return replace(reserved, revision=reserved.revision + 1, first=first, snapshot=snapshot)


def complete(
    bucket: ObjectStore, reserved: FoundManifest, planned: StoreManifest, limits: RequestLimits
) -> FoundManifest:
    """Put the planned manifest. The store is then complete, but no broker may serve it yet."""
    return replace_manifest(bucket, reserved, planned, limits)


def end(bucket: ObjectStore, completed: FoundManifest, limits: RequestLimits) -> FoundManifest:
    """End the move: from now on the store is in the bucket."""
    manifest = completed.manifest
    return replace_manifest(bucket, completed, replace(manifest, revision=manifest.revision + 1, move=UNSET), limits)


def _put_files(
    bucket: ObjectStore, reserved: StoreManifest, files: Iterable[ArrivingFile], limits: RequestLimits, clock: Clock
) -> tuple[int, int]:
    """Put the bytes of files. Return the number of the first object, and the number after the last."""
    numbers = repeated(lambda: [number_of(found.key) for found in bucket.objects(LOG_PREFIX)], limits)
    first = number = max(numbers) + 2 if numbers else 0
    packer, nonce = Packer(), uuid.uuid4()
    for file in files:
        packer.put([file.bytes()])
    while len(packer):
        header = Header(uuid.UUID(reserved.store_id), 0, number, nonce, clock())
        slot = store_object(bucket, header, encode_object(header, packer.pack(limits.object_bytes).parts), limits)
        if slot is not Slot.MINE:
            raise Unavailable(
                f"{log_key(number)} of {bucket.address} was put by another run of the move",
                hint="Wait until no other run is active, and run the command again",
            )
        number += 1
    return first, number
