"""Announcement of a large batch of a staging stream. The broker makes room before the client sends the batch.

Flight receives a whole batch before its receiver learns the size. So the client first sends an empty batch, whose
metadata has the size of the next batch. It sends the next batch after the broker's answer:

    client    empty batch [size u64]            batch   empty batch [size u64]            batch …      little-endian
    broker                             [room]                                    [room]

A broker states in its reply to `hello` whether it answers announcements.
"""

from __future__ import annotations

import struct

import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.errors import Refused

ANNOUNCED_FROM = 1024 * 1024
"""Bytes from which a batch must be announced."""
ROOM = b"room"
"""Answer of the broker to an announcement."""
_SIZE = struct.Struct("<Q")


def announcement_of(size: int) -> bytes:
    """Return the metadata of the empty batch that announces a batch of `size` bytes."""
    return _SIZE.pack(size)


def announced_size(chunk: flight.FlightStreamChunk) -> int:
    """Return the size that a chunk announces; 0 if it is no announcement. Raises Refused for a wrong announcement."""
    if chunk.app_metadata is None or chunk.data.num_rows:
        return 0
    if chunk.app_metadata.size != _SIZE.size:
        raise Refused(f"an announcement has {chunk.app_metadata.size} bytes, expected {_SIZE.size}")
    (size,) = _SIZE.unpack(chunk.app_metadata)
    return int(size)


def require_announced(batch: pa.RecordBatch, announced: int) -> None:
    """Raise Refused if a large batch has not been announced with its size."""
    if batch.nbytes > max(announced, ANNOUNCED_FROM):
        raise Refused(
            f"a batch of a staging stream has {batch.nbytes} bytes, {announced} were announced",
            hint="Use one release of pyspark-ledger on the driver and on the executors",
        )
