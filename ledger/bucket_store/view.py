"""View of a store in its bucket: a directory like the one that a new broker would build now.

A process that is not the store's broker uses the view to read or to verify the store. The *manifest* is the object that
names the store's broker and its newest *snapshot*, a copy of the metadata.

    manifest ─▶ snapshot, log up to its end ─▶ directory ─▶ manifest again, to check that the end was reached

Rules
- The view changes nothing in the bucket. So a broker may serve the store at the same time.
- The view contains all entries that were acknowledged before the call: all log objects up to the first missing number.
- An object may be missing because the broker's collector has deleted it, and not because the log ends there. The *first
  live number* in the manifest is the number of the oldest log object that is still needed. The collector first raises
  this number, and then deletes the objects below it.
- So at the end the manifest is read a second time. If it now has another snapshot, or a first live number above the
  missing number, the view is built again.

`BuiltView.advance` adds the later objects of the log to a view:

    log from the view's end on ─▶ manifest ─▶ directory

- The manifest is read after the log. In three cases the view is built again. First: the store is another one, or an
  older copy. Second: the view ended below the first live number. An object there may have been deleted, and a replaced
  broker may have put its own object into the place. Third: an acknowledged object is missing.
- If no object was added, `advance` sends two requests: for the next object, and for the manifest.
- An object is final when all objects before it exist: a take-over keeps such an object, or skips it everywhere. So a
  view may contain entries a moment before their broker acknowledges them.
- After an error the directory is incomplete, and the caller closes the view.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark_ledger.ledger.bucket_store.builder import Builder
from pyspark_ledger.ledger.bucket_store.log_places import LogPlaces
from pyspark_ledger.ledger.bucket_store.snapshots import read_snapshot
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Unavailable
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.ownership import host_identity
from pyspark_ledger.ledger.wal.bucket import MANIFEST, log_key
from pyspark_ledger.ledger.wal.fence import require_served
from pyspark_ledger.ledger.wal.log_object import HEADER_BYTES
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.reader import WalReader
from pyspark_ledger.ledger.wal.requests import RequestLimits, read_manifest, repeated
from pyspark_ledger.ledger.wal.scan import LogScan

_ATTEMPTS = 5


@dataclass
class BuiltView:
    """Built view: the newest manifest that was read, the directory's builder, and the reader of the log."""

    manifest: StoreManifest
    _bucket: ObjectStore
    _builder: Builder
    _reader: WalReader
    _limits: RequestLimits

    @property
    def end(self) -> int:
        """The first missing number of the log."""
        return self._reader.scan.next

    @property
    def places(self) -> LogPlaces:
        """The places in the log of all bytes of files."""
        return self._builder.places

    def advance(self) -> bool:
        """Add the later objects of the log. Return False if the view must be built again; it is then incomplete."""
        start = self.end
        for batch in self._reader.batches():
            self._builder.resume()
            self._builder.apply(batch, f"{log_key(batch.place.last)} of {self._bucket.address}")
        before, now = self.manifest, _manifest(self._bucket, self._limits)
        is_later = now.store_id == before.store_id and now.revision >= before.revision
        if not is_later or now.first > start or now.stated_end > self.end:
            return False
        self.manifest = now
        if self.end > start:
            self.finish()
        return True

    def finish(self) -> None:
        """Complete the directory."""
        self._builder.resume()
        self._builder.finish(host_identity(self._builder.directory), self.manifest, self._bucket.address)


def build_view(
    bucket: ObjectStore,
    directory: Path,
    limits: RequestLimits,
    advance: Callable[[int], object] = lambda _: None,
    *,
    planned: StoreManifest | None = None,
) -> BuiltView:
    """Build the store in `directory`, a new directory that the caller deletes.

    `advance` is called with the number of log objects that were read. With `planned`, build the store of a manifest
    that is not in the bucket yet. Raises NotFound if there is no store, and Refused if the store has moved. Raises
    Corrupt for damage. Raises Unavailable if the collector deletes objects faster than the view reads them.
    """
    if planned is not None:
        return _build(bucket, directory, planned, limits, advance)
    manifest = _manifest(bucket, limits)
    for _ in range(_ATTEMPTS):
        built, failure = None, None
        try:
            built = _build(bucket, directory, manifest, limits, advance)
        except (NotFound, Corrupt) as error:
            failure = error
        now = _manifest(bucket, limits)
        if built is not None and now.store_id == manifest.store_id and now.first <= built.end:
            return built
        if failure is not None and (now.store_id, now.first, now.snapshot) == _collected(manifest):
            raise failure
        manifest = now
        shutil.rmtree(directory, ignore_errors=True)
    raise Unavailable(
        f"objects of the log of {bucket.address} are deleted faster than they are read", hint="Read the store again"
    )


def has_grown(bucket: ObjectStore, store_id: str, end: int, limits: RequestLimits) -> bool:
    """Return whether the store may have newer data than a view that ended at `end`. Sends two requests.

    The log has not grown if the object at `end` is missing, and the newest manifest has a first live number up to
    `end`.
    """
    try:
        repeated(lambda: bucket.get_range(log_key(end), 0, HEADER_BYTES), limits)
    except NotFound:
        now = _manifest(bucket, limits)
        return now.store_id != store_id or now.first > end
    return True


def _collected(manifest: StoreManifest) -> tuple[object, ...]:
    return manifest.store_id, manifest.first, manifest.snapshot


def _manifest(bucket: ObjectStore, limits: RequestLimits) -> StoreManifest:
    try:
        manifest = read_manifest(bucket, limits).manifest
    except NotFound:
        raise NotFound(f"there is no ledger store at {bucket.address}", hint="Correct the address") from None
    require_served(manifest, bucket.address)
    return manifest


def _build(
    bucket: ObjectStore,
    directory: Path,
    manifest: StoreManifest,
    limits: RequestLimits,
    advance: Callable[[int], object],
) -> BuiltView:
    if manifest.snapshot is None:
        raise Corrupt(f"{MANIFEST} of {bucket.address} names no snapshot")
    builder = Builder(directory, manifest.snapshot.records_from)
    builder.begin(read_snapshot(bucket, manifest.snapshot, limits))
    reader = WalReader(bucket, manifest.store_id, LogScan(manifest.first), limits, manifest.former_ids)
    for batch in reader.batches():
        builder.apply(batch, f"{log_key(batch.place.last)} of {bucket.address}")
        advance(reader.scan.next - manifest.first)
    end = reader.scan.next
    try:
        reader.require_end(manifest)
    except Corrupt:
        if reader.fetch(end) is None:
            raise  # if the object exists now, a broker has put it since the view read the end
    built = BuiltView(manifest, bucket, builder, reader, limits)
    built.finish()
    return built
