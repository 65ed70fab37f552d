"""Part of a task for a store in a bucket: a large part goes into the bucket, a small part to the broker.

    entries ─▶ memory ─ `upload_from` bytes ─▶ data object in the bucket (`ledger.transport.direct_upload`)
                  └──── fewer, or no access ─▶ staged part of the broker (`ledger.client.part_stream`)

Rules
- Only when its part is large enough, the task asks the broker for the key of a new object. So small parts cost no
  request.
- The task uses the credentials of its process, or the credentials that an option of the write names.
- If the task cannot begin the upload, it sends the part through the broker. For a while, the next tasks of the process
  do the same (`connector.bucket_switch`).
- An upload that fails later fails the task, because its first entries are not in memory any more. Spark repeats the
  task.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from pyspark_ledger.connector.bucket_switch import CONNECT_MS, BucketSwitch
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.transport.direct_upload import DirectPlace, direct_writer

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.objects.object_store import ObjectStore
    from pyspark_ledger.ledger.protocol.commits import BucketAccess, OpenUpload, PartRun
    from pyspark_ledger.ledger.transport.part_writer import PartWriter


def large_part(client: Client, request: OpenUpload, run: PartRun, given: S3Options | None) -> PartWriter:
    """Return the writer of a large part. It writes to the broker if this process cannot write to the bucket.

    `given` are the options of the write for access to the bucket.
    """
    switch = _switch(client.store_id, given)
    target = client.ask(request) if switch.is_on() else None
    if target is not None and target.access is not None:
        store = bucket_of(target.access, given)
        key = ObjectKey(uuid.UUID(target.attempt), target.ledger_id)
        try:
            return direct_writer(DirectPlace(store, key, target.metadata), run)
        except LedgerError as error:
            switch.turn_off(error)
    return client.stage_part(request.query, request.batch, run)


def bucket_of(access: BucketAccess, given: S3Options | None) -> ObjectStore:
    """Return the bucket of a store. Options of the write (`given`) take precedence over the options of the broker."""
    stated = msgspec.structs.asdict(access)
    address, options = stated.pop("address"), (given or S3Options()).completed(stated)
    return _opened(address, replace(options, connect_timeout_ms=CONNECT_MS))


@lru_cache(maxsize=4)
def _opened(address: str, options: S3Options) -> ObjectStore:
    return open_object_store(address, options)


@lru_cache(maxsize=64)
def _switch(store_id: str, given: S3Options | None) -> BucketSwitch:  # noqa: ARG001 — the arguments are the key
    return BucketSwitch("large parts go through the broker, because tasks of this process cannot write to the bucket")
