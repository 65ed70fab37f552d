"""Offloaded ledgers in a bucket of a real S3 server on this host, for benchmarks of readers.

Rules
- The project's offloader makes the objects, in the format of Pulsar's offloader.
- The server is SeaweedFS, and its files are in the page cache.
- Both sides of a comparison read the same bytes from the server.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.raw_disk import bench_dir
from benchmarks.rows import fill
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import Empty
from pyspark_ledger.offload.bucket.catalogue import Segment
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.storage.factory import open_object_store
from pyspark_ledger.offload.storage.object_store import ObjectStore
from streaming_examples.s3_server import CREDENTIALS, S3Server

PROVIDER = "streaming_examples.s3_server:credentials"
BUCKET = "bench"


@dataclass
class Bucket:
    """Store that offloads to a bucket, and the bucket."""

    server: S3Server
    store: LedgerStore
    objects: ObjectStore
    folder: Path

    @property
    def address(self) -> str:
        """The address of the bucket."""
        return f"s3://{BUCKET}"

    def options(self) -> dict[str, str]:
        """Return the reader's options to access the bucket."""
        return {"offload": self.address, "offloadEndpoint": self.server.endpoint, "credentialProvider": PROVIDER}

    def put_columns(self, name: str, entries: int, row_bytes: int) -> list[Segment]:
        """Create and offload a ledger of Arrow entries of 4 MiB."""
        fill(self.store.client, canonical_name(name), entries, row_bytes)
        return self._offloaded(name)

    def put_messages(self, name: str, messages: int, size: int, compression: str) -> list[Segment]:
        """Create and offload a ledger of a Pulsar client's batches, of up to 1,000 messages and 128 KiB.

        All values differ. Reason: Parquet would store few values once, so its reader would not fetch the same bytes.
        """
        letters = np.random.Generator(np.random.SFC64(7)).integers(0, 26, messages * size, dtype=np.uint8) + ord("a")
        ends = np.arange(0, (messages + 1) * size, size, dtype=np.int32)
        column = pa.Array.from_buffers(pa.binary(), messages, [None, pa.py_buffer(ends), pa.py_buffer(letters)])
        with self.store.ledger(name).producer(compression=compression) as producer:
            producer.send_column(column)
        return self._offloaded(name)

    def _offloaded(self, name: str) -> list[Segment]:
        self.store.ledger(name).offload(seal=True)
        (topic,) = read_catalogue(self.objects).find(name)
        return list(topic.segments)


@contextmanager
def bucket() -> Iterator[Bucket]:
    """Yield a server, a bucket and a store that offloads to the bucket."""
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as text:
        folder = Path(text)
        with S3Server.start(folder / "s3") as server:
            address = server.make_bucket(BUCKET)
            os.environ.update(CREDENTIALS)  # the broker inherits them
            store = connect(folder / "store")
            try:
                store.offload_to(address, endpoint=server.endpoint)
                yield Bucket(server, store, open_object_store(address, server.options), folder)
            finally:
                store.client.call("shutdown", Empty())
