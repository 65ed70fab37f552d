"""Take-over of a store in a bucket: raise the epoch, read the log, claim the slots of the earlier broker.

The *taker* is the broker that takes the store over. The *epoch* is a number in the manifest, the object that names the
broker of the store. Each new broker raises the epoch by 1. A *slot* is the place of one numbered object in the log. To
*claim* a slot is to put an empty object there, so that a late put of the earlier broker fails. The *window* is the
number of slots for which the earlier broker may have a put in flight.

    epoch + 1 ──▶ read to the first free slot ──▶ epoch? ──▶ claim it and the rest of the window ──▶ epoch? ──▶ write

In the diagram, *epoch?* is a read of the manifest, which must still have the taker's epoch.

Invariants
- The epoch is raised before the log is read. So the earlier broker acknowledges no put that succeeds later.
- Before its first claim and before its first put, the taker reads the manifest again, and ends if the epoch has
  changed. So a later taker finds every object that this taker has read or claimed, and uses only slots after them. If
  the operating system suspends a taker, its late claim or put cannot reach a slot of a later taker.
- Before its first claim, the taker checks that the free slot is the end of the log, and that no object there was lost
  (`WalReader.require_end`).
- The taker claims the first free slot. If the earlier broker has meanwhile put an object there, the taker reads this
  object and tries the next slot. Objects of the earlier broker in slots after the claim are void: readers skip them.
- Each other slot of the window gets a claim or has a void object. So a late put of the earlier broker cannot reach a
  number that this broker uses.
- A crash between any two steps leaves objects that every later reader skips.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import Corrupt, Unavailable
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import MANIFEST, log_key
from pyspark_ledger.ledger.wal.fence import Slot, claimed_slots, require_epoch, taken_over
from pyspark_ledger.ledger.wal.log_object import Header, encode_object
from pyspark_ledger.ledger.wal.reader import Batch, WalReader
from pyspark_ledger.ledger.wal.requests import (
    FoundManifest,
    RequestLimits,
    read_manifest,
    replace_manifest,
    store_object,
)
from pyspark_ledger.ledger.wal.scan import LogScan


class TakeOver:
    """Take-over by one broker. Call `raise_epoch`, then read all of `batches`, then use `first_number`, each once."""

    def __init__(self, bucket: ObjectStore, nonce: uuid.UUID, limits: RequestLimits, clock: Clock) -> None:
        self._bucket = bucket
        self._nonce = nonce
        self._limits = limits
        self._clock = clock
        self.scan: LogScan | None = None
        self._found: FoundManifest | None = None
        self._first_number: int | None = None

    @property
    def found(self) -> FoundManifest:
        """The manifest that this broker put."""
        assert self._found is not None, "raise_epoch comes first"  # noqa: S101 — order of calls
        return self._found

    @property
    def first_number(self) -> int:
        """The first number that this broker may put."""
        assert self._first_number is not None, "batches come first"  # noqa: S101 — order of calls
        return self._first_number

    def raise_epoch(self, before: FoundManifest, window: int, *, new_id: str = "") -> FoundManifest:
        """Put the manifest of the next epoch. Raises AlreadyExists if another process has replaced `before`.

        The manifest names the bucket. With `new_id`, the store is a copy, and gets this id.
        """
        home = self._bucket.address
        after = taken_over(before.manifest, self._nonce, window, home=home, new_id=new_id)
        self._found = replace_manifest(self._bucket, before, after, self._limits)
        return self._found

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of the log from the first live number on, then claim the slots of the window."""
        manifest = self.found.manifest
        scan = self.scan = LogScan(manifest.first)
        reader = WalReader(self._bucket, manifest.store_id, scan, self._limits, manifest.former_ids)
        yield from reader.batches()
        while self._claim_first(reader) is Slot.LOST:
            found = reader.fetch(scan.next)
            if found is None:
                raise Unavailable(f"{log_key(scan.next)} of {self._bucket.address} is deleted while it is read")
            yield from reader.apply(found)
            yield from reader.batches()
        claims = claimed_slots(scan.next, manifest.window)
        for number in claims[1:]:
            self._claim(number, claims.start)
        self._require_owner()
        self._first_number = claims.stop

    def _require_end(self, reader: WalReader) -> None:
        """Raise Corrupt if objects of the log are lost, or Fenced if a later taker has written after the window."""
        try:
            reader.require_end(self.found.manifest)
        except Corrupt:
            self._require_owner()
            raise

    def _claim_first(self, reader: WalReader) -> Slot:
        """Claim the first free slot. Raises Fenced if another broker has raised the epoch.

        A claim in the slot of a lost object would hide the loss, because it makes all later objects void. So a loss
        raises Corrupt before the claim.

        Raises Corrupt if the log has objects of this epoch already. Then an old version of the manifest was restored.
        """
        self._require_end(reader)
        self._require_owner()
        scan, epoch, where = reader.scan, self.found.manifest.epoch, self._bucket.address
        if scan.epoch >= epoch:
            raise Corrupt(
                f"{log_key(scan.next - 1)} of {where} follows epoch {scan.epoch}, the manifest had {epoch - 1}",
                hint=f"An older version of {MANIFEST} was restored; restore the newest",
            )
        return self._claim(scan.next, scan.next)

    def _require_owner(self) -> None:
        """Raise Fenced if a later taker has raised the epoch.

        The later taker may have deleted objects before this taker read them.
        """
        found = read_manifest(self._bucket, self._limits)
        require_epoch(found.manifest, self.found.manifest.epoch, self._bucket.address)

    def _claim(self, number: int, end: int) -> Slot:
        """Claim a slot. All objects below `end` were read."""
        manifest = self.found.manifest
        store_id, now_ms = uuid.UUID(manifest.store_id), self._clock()
        header = Header(store_id, manifest.epoch, number, self._nonce, now_ms, claim=True, pending=number - end)
        return store_object(self._bucket, header, encode_object(header, []), self._limits)


def identity_of(found: FoundManifest, first_number: int) -> Header:
    """Return the header of the broker's first object."""
    manifest = found.manifest
    return Header(uuid.UUID(manifest.store_id), manifest.epoch, first_number, uuid.UUID(manifest.nonce), 0)
