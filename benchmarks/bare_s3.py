"""Python data sources with boto3 only: the upper bound for a source that reads entries from a bucket.

A task gets byte ranges of objects and fetches each range with one GET. There are four sources:

    bare_s3              steps from frame to frame, and yields the batches of their Arrow streams, without verification
    bare_messages        decodes nothing: it yields as many prepared messages as the range has
    inflated_messages    decompresses each batch of messages, and then yields prepared messages
    bare_store           as bare_s3, also for a frame that continues in the next object
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.rows import SCHEMA
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.segment.format import HEADER_BYTES

_FRAME = struct.Struct(">iq")
_U32 = struct.Struct(">I")
_STAMPED = b"\x0e\x02"
_BATCH_ROWS = 16 * 1024


class BareS3Source(DataSource):
    """Data source with the options `endpoint`, `bucket` and `tasks`.

    `tasks` is a JSON list of lists of `[key, start, end, header bytes]`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "bare_s3"

    def schema(self) -> str:
        """Return the columns of `benchmarks.rows`."""
        return "a bigint, b bigint, body binary"

    def reader(self, schema: Any) -> BareS3Reader:  # noqa: ARG002 — Spark's signature
        """Return the reader."""
        return BareS3Reader(dict(self.options))


class BareMessagesSource(BareS3Source):
    """Data source of prepared messages. A task is a list of `[key, start, end, messages, bytes of a message]`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "bare_messages"

    def schema(self) -> str:
        """Return the column of a message."""
        return "value binary"

    def reader(self, schema: Any) -> BareS3Reader:  # noqa: ARG002 — Spark's signature
        """Return the reader."""
        return BareMessagesReader(dict(self.options))


class InflatedMessagesSource(BareMessagesSource):
    """Data source that decompresses each batch, drops the bytes, and yields prepared messages."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "inflated_messages"

    def reader(self, schema: Any) -> BareS3Reader:  # noqa: ARG002 — Spark's signature
        """Return the reader."""
        return InflatedMessagesReader(dict(self.options))


class BareStoreSource(BareS3Source):
    """Data source that joins ranges. A task is a list of groups, and a group is a list of `[key, start, end]`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "bare_store"

    def reader(self, schema: Any) -> BareS3Reader:  # noqa: ARG002 — Spark's signature
        """Return the reader."""
        return BareStoreReader(dict(self.options))


class BareS3Reader(DataSourceReader):
    """Reader that fetches the ranges and yields their batches."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._endpoint, self._bucket = options["endpoint"], options["bucket"]
        self._tasks = options["tasks"]

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task of the options."""
        return [InputPartition(task) for task in json.loads(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of every entry in the ranges."""
        client = _client(self._endpoint)
        for key, start, end, *rest in partition.value:
            yield from self.rows(self.fetched(client, key, start, end), *rest)

    def fetched(self, client: Any, key: str, start: int, end: int) -> memoryview:
        """Return the bytes of one range."""
        said = client.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={start}-{end - 1}")
        return memoryview(said["Body"].read())

    def rows(self, data: memoryview, *rest: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        return batches(data, *rest)


class BareMessagesReader(BareS3Reader):
    """Reader that fetches the ranges and yields prepared messages."""

    def rows(self, _: memoryview, *rest: int) -> Iterator[pa.RecordBatch]:
        """Yield as many messages as the range has, all of one size."""
        count, size = rest
        values = pa.array([bytes(size)] * min(count, _BATCH_ROWS), pa.binary())
        batch = pa.record_batch([values], names=["value"])
        for at in range(0, count, _BATCH_ROWS):
            yield batch.slice(0, min(_BATCH_ROWS, count - at))


class InflatedMessagesReader(BareMessagesReader):
    """Reader that fetches the ranges, decompresses their batches, and yields prepared messages."""

    def rows(self, data: memoryview, *rest: int) -> Iterator[pa.RecordBatch]:
        """Decompress all LZ4 batches of a whole block. Yield as many messages as they have, all of one size."""
        codec = pa.Codec("lz4_raw")
        for entry in entries(data, HEADER_BYTES):
            (size,) = _U32.unpack_from(entry)
            metadata = MessageMetadata.FromString(entry[4 : 4 + size])  # type: ignore[arg-type]  # any buffer will do
            codec.decompress(entry[4 + size :], metadata.uncompressed_size)
        return super().rows(data, *rest)


class BareStoreReader(BareS3Reader):
    """Reader that joins the ranges of a group, and yields the batches of its frames."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of every entry in the groups."""
        client = _client(self._endpoint)
        for group in partition.value:
            pieces = [self.fetched(client, *place) for place in group]
            yield from batches(pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces)), 0)


@lru_cache(maxsize=1)
def _client(endpoint: str) -> Any:
    import boto3

    from streaming_examples.s3_server import ACCESS_KEY, SECRET_KEY

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    )


def entries(data: memoryview, at: int) -> Iterator[memoryview]:
    """Yield the entries of the frames from `at` on, from the size of their metadata on."""
    while at + _FRAME.size <= len(data):
        length, _ = _FRAME.unpack_from(data, at)
        if length <= 0:
            return
        entry = data[at + _FRAME.size : at + _FRAME.size + length]
        yield entry[6 + (6 + _U32.unpack_from(entry, 2)[0] if entry[:2] == _STAMPED else 0) :]
        at += _FRAME.size + length


def batches(data: memoryview, at: int) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of the frames from `at` on."""
    for entry in entries(data, at):
        payload = entry[4 + _U32.unpack_from(entry)[0] :]
        for batch in pa.ipc.open_stream(pa.py_buffer(payload)):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=SCHEMA)
