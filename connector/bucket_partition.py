"""What a task does with a part of a bucket: objects in, record batches out. No broker is asked.

Rules: the store of objects is opened in the process that reads, and kept there for its next task. Credentials are found
there, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from connector.entry_rows import entry_rows
from connector.metadata_columns import Topic
from connector.row_shape import RowShape
from offload.bucket_fetch import read_part
from offload.bucket_log import Part
from offload.opened_store import open_object_store
from offload.s3_options import S3Options

if TYPE_CHECKING:
    from offload.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class BucketObjects:
    """What the partitions of a read share; pickles, and holds no secret."""

    address: str
    s3: S3Options
    shape: RowShape
    skip_missing: bool


@dataclass(frozen=True, slots=True)
class BucketPart:
    """One partition: a part of one topic."""

    source: BucketObjects
    topic: str
    part: Part


def fetch_part(wanted: BucketPart) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in order."""
    source = wanted.source
    store = _store(source.address, source.s3)
    entries = read_part(store, wanted.part, skip_missing=source.skip_missing)
    yield from entry_rows(Topic.of(wanted.topic), source.shape).batches(entries)


@lru_cache(maxsize=4)
def _store(address: str, s3: S3Options) -> ObjectStore:
    return open_object_store(address, s3)
