"""Offload of a segment to object storage, as the segment's record describes it: Pulsar's message `OffloadContext`.

A *segment* is one file of a ledger. An *attempt* is one upload of a segment, identified by a UUID.

    uidMsb, uidLsb       the newest attempt, as two signed 64-bit halves; absent before the first attempt
    complete             the objects are complete and readable
    bookkeeperDeleted    the local data file is deleted, or will be deleted
    timestamp            the time of completion, in ms
    driverMetadata       the location of the objects: a driver's name and its properties

A *direct segment* is a segment whose data object (its bytes) a Spark task has put into the bucket. The commit of the
batch lists it as offloaded. Its driver has two more properties:

    stampTime            time of all entries of the segment, in ms. The stamps (time and row number before each entry)
                         in the object are placeholders: readers compute the real stamps
                         (`ledger.segment.provisional_stamps`)
    indexObjects         `pending` until the entry index and the block index are in the bucket

The driver of a segment in a copied store has one more property, if the original wrote the objects:

    owner                the id that the store had before, or the id of an earlier original. The objects are only read

Rules
- Each upload has a new attempt, which is recorded before the upload starts. Exception: the task uploads a direct
  segment before the commit records it.
- `complete` and `bookkeeperDeleted` of an attempt never change back. A change fails if the record has another attempt.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadContext
from pyspark_ledger.ledger.settings.setting import signed

_LISTED = ManagedLedgerInfo.LedgerInfo
STAMP_TIME = "stampTime"
INDEX_OBJECTS, PENDING = "indexObjects", "pending"
OWNER = "owner"
_HALF = 1 << 64


@dataclass(frozen=True, slots=True)
class Driver:
    """Location of objects. `name` is Pulsar's name for the kind of storage. `properties` contain no credentials."""

    name: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffloadAttempt:
    """Attempt to offload one segment. `local_deleted` and `completed_ms` have a meaning only if `complete` is set."""

    attempt: uuid.UUID
    driver: Driver
    complete: bool = False
    local_deleted: bool = False
    completed_ms: int = 0

    @classmethod
    def of(cls, listed: ManagedLedgerInfo.LedgerInfo) -> Self | None:
        """Return the attempt in the record of a segment, or None."""
        context = listed.offloadContext
        if not listed.HasField("offloadContext") or not (context.HasField("uidMsb") or context.HasField("uidLsb")):
            return None
        properties = {pair.key: pair.value for pair in context.driverMetadata.properties}
        return cls(
            of_halves(context.uidMsb, context.uidLsb),
            Driver(context.driverMetadata.name, properties),
            context.complete,
            context.bookkeeperDeleted,
            context.timestamp,
        )

    @classmethod
    def direct(cls, attempt: uuid.UUID, driver: Driver, time_ms: int) -> Self:
        """Return the attempt of a direct segment at its commit. `time_ms` is the time of its entries."""
        properties = {**driver.properties, STAMP_TIME: str(time_ms), INDEX_OBJECTS: PENDING}
        return cls(attempt, Driver(driver.name, properties), complete=True, local_deleted=True, completed_ms=time_ms)

    @property
    def stamp_time_ms(self) -> int | None:
        """The time of all entries of a direct segment. None for any other segment."""
        stated = self.driver.properties.get(STAMP_TIME)
        return None if stated is None else int(stated)

    @property
    def lacks_indexes(self) -> bool:
        """Whether the index objects of a direct segment must still be put."""
        return self.driver.properties.get(INDEX_OBJECTS) == PENDING and not self.owner

    @property
    def owner(self) -> str:
        """The former id of the store that wrote the objects. Empty if the objects are this store's own."""
        return self.driver.properties.get(OWNER, "")

    def owned_by(self, store_id: str) -> OffloadAttempt:
        """Return the attempt with this owner. With an empty id, the objects become this store's own."""
        properties = {key: value for key, value in self.driver.properties.items() if key != OWNER}
        properties |= {OWNER: store_id} if store_id else {}
        return replace(self, driver=Driver(self.driver.name, properties))

    def put(self, listed: ManagedLedgerInfo.LedgerInfo) -> None:
        """Write the attempt into the record of a segment. Replaces an earlier attempt."""
        most, least = halves(self.attempt)
        context = OffloadContext(
            uidMsb=most,
            uidLsb=least,
            complete=self.complete,
            bookkeeperDeleted=self.local_deleted,
            timestamp=self.completed_ms,
        )
        context.driverMetadata.name = self.driver.name
        for key, value in sorted(self.driver.properties.items()):
            context.driverMetadata.properties.add(key=key, value=value)
        listed.offloadContext.CopyFrom(context)

    def completed(self, now_ms: int) -> OffloadAttempt:
        return replace(self, complete=True, completed_ms=now_ms)

    def with_indexes(self) -> OffloadAttempt:
        """Return the attempt of a direct segment with its index objects in the bucket."""
        properties = {key: value for key, value in self.driver.properties.items() if key != INDEX_OBJECTS}
        return replace(self, driver=Driver(self.driver.name, properties))

    def at(self, driver: Driver) -> OffloadAttempt:
        """Return the attempt with its objects at another location."""
        kept = {key: value for key, value in self.driver.properties.items() if key in (STAMP_TIME, INDEX_OBJECTS)}
        return replace(self, driver=Driver(driver.name, {**driver.properties, **kept}))

    def without_local(self) -> OffloadAttempt:
        """Return the attempt with its local files deleted."""
        return replace(self, local_deleted=True)


def halves(attempt: uuid.UUID) -> tuple[int, int]:
    """Return a UUID as two signed 64-bit numbers, the most significant half first."""
    most, least = divmod(attempt.int, _HALF)
    return signed(most), signed(least)


def of_halves(most: int, least: int) -> uuid.UUID:
    """Return the UUID of two signed 64-bit numbers."""
    return uuid.UUID(int=(most % _HALF) << 64 | least % _HALF)


def disown_objects(c: sqlite3.Connection, former: str) -> None:
    """Record that all objects in object storage are those of the store `former`. Called when a copy gets its own id.

    A segment with a local file is not offloaded any more, so that this store uploads it again. Reason: the original may
    delete its objects at any time.
    """
    c.execute("DELETE FROM unwanted_row")
    for ledger_id, info in c.execute("SELECT ledger_id, info FROM segment").fetchall():
        listed = _LISTED.FromString(info)
        attempt = OffloadAttempt.of(listed)
        if attempt is None:
            continue
        if attempt.complete and attempt.local_deleted:
            attempt.owned_by(attempt.owner or former).put(listed)
        else:
            listed.ClearField("offloadContext")
        c.execute("UPDATE segment_row SET info = ? WHERE ledger_id = ?", (listed.SerializeToString(), ledger_id))


def adopt_objects(c: sqlite3.Connection, name: str) -> int:
    """Record that the objects of a managed ledger are this store's. Return the number of segments that changed."""
    adopted = 0
    query = "SELECT ledger_id, info FROM segment WHERE ledger = ?"
    for ledger_id, info in c.execute(query, (name,)).fetchall():
        listed = _LISTED.FromString(info)
        attempt = OffloadAttempt.of(listed)
        if attempt is not None and attempt.owner:
            attempt.owned_by("").put(listed)
            c.execute("UPDATE segment_row SET info = ? WHERE ledger_id = ?", (listed.SerializeToString(), ledger_id))
            adopted += 1
    return adopted
