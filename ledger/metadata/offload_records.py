"""What the record of a managed ledger says of the offload of one of its ledgers: Pulsar's `OffloadContext`.

    uidMsb, uidLsb       the newest attempt, as two signed 64-bit halves; absent: never tried
    complete             its objects are whole, and everybody may read them
    bookkeeperDeleted    the local files are gone, or going
    timestamp            when it was completed, ms
    driverMetadata       where the objects are: a name and properties

Rules: the attempt is stored before its first byte leaves, and never used twice. `complete` and `bookkeeperDeleted` are
only ever set, by a change that compares the attempt.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadContext
from pyspark_ledger.ledger.settings.setting import signed

_HALF = 1 << 64


@dataclass(frozen=True, slots=True)
class Driver:
    """Where objects are: `name` is Pulsar's of the driver, `properties` what it needs beside credentials."""

    name: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffloadAttempt:
    """One attempt to offload one ledger. `local_deleted` and `completed_ms` mean something once it is `complete`."""

    attempt: uuid.UUID
    driver: Driver
    complete: bool = False
    local_deleted: bool = False
    completed_ms: int = 0

    @classmethod
    def of(cls, listed: ManagedLedgerInfo.LedgerInfo) -> Self | None:
        """What a record says of one ledger; None when nobody has tried yet."""
        said = listed.offloadContext
        if not listed.HasField("offloadContext") or not (said.HasField("uidMsb") or said.HasField("uidLsb")):
            return None
        properties = {pair.key: pair.value for pair in said.driverMetadata.properties}
        return cls(
            of_halves(said.uidMsb, said.uidLsb),
            Driver(said.driverMetadata.name, properties),
            said.complete,
            said.bookkeeperDeleted,
            said.timestamp,
        )

    def put(self, listed: ManagedLedgerInfo.LedgerInfo) -> None:
        """State it in a record, instead of what was stated before."""
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

    def without_local(self) -> OffloadAttempt:
        """The same, its local files gone."""
        return replace(self, local_deleted=True)


def halves(attempt: uuid.UUID) -> tuple[int, int]:
    """A UUID as two signed 64-bit numbers, most significant first."""
    most, least = divmod(attempt.int, _HALF)
    return signed(most), signed(least)


def of_halves(most: int, least: int) -> uuid.UUID:
    """The UUID of two signed 64-bit numbers."""
    return uuid.UUID(int=(most % _HALF) << 64 | least % _HALF)
