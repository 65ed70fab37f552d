"""Snapshot of a store's records: the SQLite file of the metadata, compressed, as one object.

    "LSNP"  size of the SQLite file (u64)  the SQLite file, compressed with ZSTD

Integers are big-endian. The manifest, the object that names the store's broker, has the size and the checksum (CRC32C)
of the snapshot.

Invariants
- A snapshot is complete in the bucket before a manifest names it. It never changes.
- A snapshot contains the records after a committed transaction, never during a transaction.
"""

from __future__ import annotations

import sqlite3
import struct
import tempfile
from pathlib import Path

import pyarrow as pa

from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import snapshot_key
from pyspark_ledger.ledger.wal.manifest import SnapshotName
from pyspark_ledger.ledger.wal.requests import RequestLimits, repeated

_HEAD = struct.Struct(">4sQ")
_MAGIC = b"LSNP"
BYTES_MAX = 4 * 1024 * 1024 * 1024


def snapshot_of(connection: sqlite3.Connection) -> bytes:
    """Return the bytes of a snapshot with the committed records that the connection reads."""
    with tempfile.TemporaryDirectory(prefix="ledger-snapshot-") as directory:
        path = Path(directory) / "metadata.sqlite"
        connection.execute("VACUUM INTO ?", (str(path),))
        data = path.read_bytes()
    compressed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return _HEAD.pack(_MAGIC, len(data)) + compressed


def put_snapshot(
    bucket: ObjectStore, data: bytes, *, records_from: int, epoch: int, nonce: str, limits: RequestLimits
) -> SnapshotName:
    """Put a snapshot. Return its name, size and checksum for the manifest."""
    key = snapshot_key(records_from, epoch, nonce)

    def put() -> None:
        try:
            bucket.put(key, data, only_new=True)
        except AlreadyExists:
            if bucket.get(key, BYTES_MAX).data != data:
                raise

    repeated(put, limits)
    return SnapshotName(key, records_from, len(data), crc32c(data))


def read_snapshot(bucket: ObjectStore, name: SnapshotName, limits: RequestLimits) -> bytes:
    """Return the SQLite file in a snapshot. Raises Corrupt if the object is damaged."""
    where = f"{name.key} of {bucket.address}"
    data = repeated(lambda: bucket.get(name.key, max(name.size, 1)), limits).data
    found = (len(data), crc32c(data))
    if found != (name.size, name.crc32c):
        raise Corrupt(f"{where} has (bytes, CRC32C) {found}, the manifest states {(name.size, name.crc32c)}")
    magic, size = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise Corrupt(f"{where} starts with {magic.hex()}, expected {_MAGIC.hex()}")
    raw: bytes = pa.decompress(data[_HEAD.size :], decompressed_size=size, codec="zstd", asbytes=True)
    return raw
