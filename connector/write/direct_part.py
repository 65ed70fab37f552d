"""Part of a task for a store in a bucket: a large part goes into the bucket, a small part to the broker.

    entries ─▶ memory ─ `upload_from` bytes ─▶ data object in the bucket (`offload.direct.upload`)
                  └──── fewer, or no access ─▶ staged part of the broker (`ledger.client.part_writer`)

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
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from pyspark_ledger.connector.bucket_switch import CONNECT_MS, BucketSwitch
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.offload.direct.upload import DirectPlace, DirectUpload
from pyspark_ledger.offload.format.object_names import ObjectKey
from pyspark_ledger.offload.storage.factory import open_object_store
from pyspark_ledger.offload.storage.s3_options import S3Options

if TYPE_CHECKING:
    from pyspark_ledger.ledger.checksum import Buffer
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.client.part_writer import PartWriter
    from pyspark_ledger.ledger.protocol.commits import BucketAccess, OpenUpload, PartRun, StagedPart, UploadTarget
    from pyspark_ledger.offload.storage.object_store import ObjectStore


class DirectPart:
    """Writer of one part, with the methods of `PartWriter`."""

    def __init__(
        self, client: Client, request: OpenUpload, run: PartRun, upload_from: int, given: S3Options | None
    ) -> None:
        """`given` are the options of the write for access to the bucket."""
        self._client, self._request, self._run, self._given = client, request, run, given
        self._upload: DirectUpload | None = DirectUpload(run, upload_from)
        self._staged: PartWriter | None = None

    def write(self, entry: Sequence[Buffer], rows: int) -> None:
        """Write one entry with `rows` rows. `entry` has its bytes as a list of buffers."""
        if self._upload is None:
            self._through_broker().write(entry, rows)
            return
        self._upload.write(entry, rows)
        if self._upload.is_due:
            self._begin(self._upload)

    def rest(self) -> None:
        """If the upload has not begun, free the part's memory: send its entries to the broker."""
        if self._upload is not None and not self._upload.is_begun:
            self._hand_over(self._upload)
        if self._staged is not None:
            self._staged.rest()

    def close(self) -> StagedPart:
        """End the part. Return its description."""
        if self._upload is None:
            return self._through_broker().close()
        if not self._upload.is_begun:
            self._hand_over(self._upload)
            return self._through_broker().close()
        return self._upload.close()

    def abort(self) -> None:
        """Abort the upload, after an error."""
        if self._upload is not None:
            self._upload.abort()

    def _begin(self, upload: DirectUpload) -> None:
        switch = _switch(self._client.store_id, self._given)
        if not switch.is_on():
            self._hand_over(upload)
            return
        target: UploadTarget = self._client.call("stage.upload", self._request)
        if target.access is None:
            self._hand_over(upload)
            return
        store = bucket_of(target.access, self._given)
        key = ObjectKey(uuid.UUID(target.attempt), target.ledger_id)
        try:
            upload.begin(DirectPlace(store, key, target.metadata))
        except LedgerError as error:
            switch.turn_off(error)
            self._hand_over(upload)

    def _hand_over(self, upload: DirectUpload) -> None:
        """Send the entries in memory to the broker, and then all later entries."""
        self._upload = None
        for entry, rows in upload.entries():
            self._through_broker().write([entry], rows)

    def _through_broker(self) -> PartWriter:
        if self._staged is None:
            self._staged = self._client.stage_part(self._request.query, self._request.batch, self._run)
        return self._staged


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
