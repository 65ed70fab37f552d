"""Tasks that read a part of a bucket's topic from its objects, without a broker.

Rules
- The executor opens the object store, and later tasks use it again.
- The executor reads the credentials and the keys of encrypted messages. A task has only references to them.
- If no key decrypts a message, the rescue column contains the encrypted message. Without that column the read fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.connector.decryption_keys import KeyReferences, read_keys
from pyspark_ledger.connector.rows.arrow_rows import entry_rows
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.message.encryption import PrivateKeys
from pyspark_ledger.ledger.message.entry import ParsedEntry
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.prefetch import IN_FLIGHT
from pyspark_ledger.ledger.objects.recycled_memory import RecycledMemory
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.rows.metadata_columns import Topic
from pyspark_ledger.offload.bucket.fetch import Opener, read_part
from pyspark_ledger.offload.bucket.topic_log import Part

if TYPE_CHECKING:
    from pyspark_ledger.ledger.objects.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class BucketObjects:
    """Parameters that all tasks of a read share. They are pickled, and contain no secret."""

    address: str
    s3: S3Options
    shape: RowShape
    skip_missing: bool
    keys: KeyReferences = ()


@dataclass(frozen=True, slots=True)
class BucketTask:
    """Task that reads a part of one topic."""

    source: BucketObjects
    topic: str
    part: Part

    def read(self) -> Iterator[pa.RecordBatch]:
        source = self.source
        store = _store(source.address, source.s3)
        opener = _make_opener(read_keys(source.keys), lenient=source.shape.rescues)
        entries = read_part(store, self.part, skip_missing=source.skip_missing, opener=opener)
        yield from entry_rows(Topic.of(self.topic), source.shape).batches(entries)


def _make_opener(keys: PrivateKeys | None, *, lenient: bool) -> Opener | None:
    if keys is None or not lenient:
        return None if keys is None else keys.opened

    def open_or_keep(entry: ParsedEntry, where: str) -> ParsedEntry:
        try:
            return keys.opened(entry, where)
        except (Unsupported, Refused):
            return entry

    return open_or_keep


_MEMORY = RecycledMemory(IN_FLIGHT + 1)


@lru_cache(maxsize=4)
def _store(address: str, s3: S3Options) -> ObjectStore:
    return open_object_store(address, s3, _MEMORY)
