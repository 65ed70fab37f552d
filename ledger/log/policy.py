"""Policy of a managed ledger: block size, rollover, retention and offload of its segments (files).

Rules
- Each value comes from the first of these places that sets it: the ledger's policy, its namespace's policy, the
  broker's settings. The two limits of retention, age and size, come from the same place. If a place sets only one of
  them, the other limit is -1 (no limit).
- The block size, and the maximum entries and bytes of a segment, can be set when the ledger is created. The ledger's
  record stores them as properties. So a later change of the broker's defaults has no effect on them. A policy of the
  ledger overrides entries and bytes. The block size never changes.
- An unknown name, a value out of range, or two values that contradict each other are refused. The error names the
  policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.names import nearest, require_property_names
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import NOT_PUBLISHED, published_everywhere
from pyspark_ledger.ledger.settings.broker import SETTINGS, Settings

RESERVED_PREFIX = "ledger."
DURABILITY = "ledger.durability"
"""Property with the value "os" if entries are acknowledged without a sync to the device."""
_BLOCK_BYTES, _ENTRIES_MAX, _SIZE_MAX = (
    "ledger.blockBytes",
    "ledger.maxEntriesPerLedger",
    "ledger.maxSizePerLedgerBytes",
)
_NAMES = frozenset({_BLOCK_BYTES, _ENTRIES_MAX, _SIZE_MAX})
_MB = 1024 * 1024
_MINUTE_MS = 60_000

RETENTION_TIME, RETENTION_SIZE = "retentionTimeInMinutes", "retentionSizeInMB"
OFFLOAD_SECONDS, OFFLOAD_BYTES = "managedLedgerOffloadThresholdInSeconds", "managedLedgerOffloadThresholdInBytes"
_OFFLOAD_LAG, _OFFLOAD_WAIT = "managedLedgerOffloadDeletionLagInMillis", "retentionWaitsForOffload"
_ROLLOVER_MAX, _ROLLOVER_MIN = "managedLedgerMaxLedgerRolloverTimeMinutes", "managedLedgerMinLedgerRolloverTimeMinutes"
_ENTRIES, _SIZE = "managedLedgerMaxEntriesPerLedger", "managedLedgerMaxSizePerLedgerMbytes"
_RETENTION = (RETENTION_TIME, RETENTION_SIZE)
_DELETE_PUBLISHED = "deleteAfterPublish"

POLICIES = {
    RETENTION_TIME: "defaultRetentionTimeInMinutes",
    RETENTION_SIZE: "defaultRetentionSizeInMB",
    _ENTRIES: _ENTRIES,
    _SIZE: _SIZE,
    _ROLLOVER_MAX: _ROLLOVER_MAX,
    _ROLLOVER_MIN: _ROLLOVER_MIN,
    OFFLOAD_SECONDS: OFFLOAD_SECONDS,
    OFFLOAD_BYTES: "managedLedgerOffloadAutoTriggerSizeThresholdBytes",
    _OFFLOAD_LAG: "managedLedgerOffloadDeletionLagMs",
    _OFFLOAD_WAIT: _OFFLOAD_WAIT,
    _DELETE_PUBLISHED: _DELETE_PUBLISHED,
}
"""Policies by name, each with the broker's setting that has its default value and its allowed range."""

# Older names of Pulsar, which have other units. The broker converts their values and stores them under newer names.
_EARLIER = {"offloadTimeInMinutes": (OFFLOAD_SECONDS, 60), "offloadSizeInMB": (OFFLOAD_BYTES, _MB)}

Stated = Mapping[str, int]
"""Policies that a ledger or a namespace sets: values by name."""


@dataclass(frozen=True, slots=True)
class LedgerPolicy:
    """Effective policy of a managed ledger.

    - Size: a segment is full at `entries_max` entries or `size_max` bytes. A block has `block_bytes` bytes.
    - Rollover: a segment is sealed at the age `rollover_max_ms` (0: no maximum). A full segment is sealed when it is
      older than `rollover_min_ms` (0: no minimum).
    - Retention: a segment expires `retention_ms` after its seal. It also expires if the later segments have at least
      `retention_bytes`. -1 disables a limit. Segments up to the id `published` are in all tables to which the ledger
      is published, and may be deleted at once (-1: none).
    - Offload: a segment is offloaded `offload_ms` after its seal, or when it and all later segments exceed
      `offload_bytes`. -1 disables a threshold. Its local copy is deleted `offload_lag_ms` after the offload (-1:
      never).
    """

    block_bytes: int
    entries_max: int
    size_max: int
    rollover_max_ms: int = 0
    rollover_min_ms: int = 0
    retention_ms: int = -1
    retention_bytes: int = -1
    offload_ms: int = -1
    offload_bytes: int = -1
    offload_lag_ms: int = 4 * 3_600_000
    waits_for_offload: bool = False
    published: int = NOT_PUBLISHED

    @property
    def keeps_everything(self) -> bool:
        """Whether no segment is ever trimmed."""
        return self.retention_ms < 0 and self.retention_bytes < 0 and self.published == NOT_PUBLISHED

    @property
    def offloads(self) -> bool:
        """Whether segments are offloaded automatically."""
        return self.offload_ms >= 0 or self.offload_bytes >= 0

    def may_roll_over(self, age_ms: int) -> bool:
        """Return whether a full segment of this age may be sealed."""
        return self.rollover_min_ms == 0 or age_ms > self.rollover_min_ms

    def is_due(self, ledger_id: int, age_ms: int) -> bool:
        """Return whether a segment must be sealed because of its age.

        `rollover_max_ms` is raised by up to 5 %, depending on the segment's id. Reason: segments of many ledgers that
        were created together are then not sealed at the same time.
        """
        if not 0 < self.rollover_max_ms <= age_ms:
            return False
        return self.rollover_max_ms <= age_ms - self._spread_ms(ledger_id) and self.may_roll_over(age_ms)

    def is_full(self, ledger_id: int, entries: int, size: int, age_ms: int) -> bool:
        """Return whether the next entry must go to a new segment. An empty segment is never full."""
        filled = entries >= self.entries_max or size >= self.size_max
        return entries > 0 and ((filled and self.may_roll_over(age_ms)) or self.is_due(ledger_id, age_ms))

    def left(self, ledger_id: int, entries: int, size: int, age_ms: int) -> tuple[int, int]:
        """Return the number of entries and bytes that fit before the segment is full.

        If the segment has reached its limits, return the limits of a new segment, because the next entries usually go
        to a new segment. Exception: a segment that is too young to be sealed gets the entries anyway.
        """
        left = self.entries_max - entries, self.size_max - size
        return (self.entries_max, self.size_max) if min(left) <= 0 or self.is_due(ledger_id, age_ms) else left

    def due_times(self, ledger_id: int, created_ms: int) -> list[int]:
        """Return the time at which an open segment must be sealed, or an empty list without a maximum age."""
        due_ms = created_ms + self.rollover_max_ms + self._spread_ms(ledger_id)
        return [due_ms] if self.rollover_max_ms > 0 else []

    def _spread_ms(self, ledger_id: int) -> int:
        return self.rollover_max_ms * _spread(ledger_id) // 20_000

    @classmethod
    def of(cls, info: ManagedLedgerInfo, ledger: Stated, namespace: Stated, settings: Settings) -> Self:
        """Return the policy of a ledger from its record, its own and its namespace's policies, and the settings."""
        created_with = {pair.key: int(pair.value) for pair in info.properties if pair.key in _NAMES}
        value = effective(ledger, namespace, settings)
        published = published_everywhere({pair.key: pair.value for pair in info.properties})
        entries = created_with.get(_ENTRIES_MAX, value[_ENTRIES])
        size = created_with.get(_SIZE_MAX, value[_SIZE] * _MB)
        return cls(
            created_with.get(_BLOCK_BYTES, settings.ledgerBlockSizeBytes),
            ledger.get(_ENTRIES, entries),
            ledger[_SIZE] * _MB if _SIZE in ledger else size,
            value[_ROLLOVER_MAX] * _MINUTE_MS,
            value[_ROLLOVER_MIN] * _MINUTE_MS,
            _scaled(value[RETENTION_TIME], _MINUTE_MS),
            _scaled(value[RETENTION_SIZE], _MB),
            _scaled(value[OFFLOAD_SECONDS], 1000),
            value[OFFLOAD_BYTES],
            value[_OFFLOAD_LAG],
            bool(value[_OFFLOAD_WAIT]),
            published if value[_DELETE_PUBLISHED] else NOT_PUBLISHED,
        )

    @staticmethod
    def properties(request: CreateLedger, settings: Settings) -> dict[str, str]:
        """Return the properties of a new ledger's record. They always include the block size."""
        stated = {
            _BLOCK_BYTES: request.block_bytes or settings.ledgerBlockSizeBytes,
            _ENTRIES_MAX: request.max_entries_per_ledger,
            _SIZE_MAX: request.max_size_per_ledger_bytes,
        }
        return {name: str(value) for name, value in stated.items() if value}


def effective(ledger: Stated, namespace: Stated, settings: Settings) -> dict[str, int]:
    """Return the value of every policy: from the ledger, or from its namespace, or from the broker, in this order."""
    ledger, namespace = _with_retention(ledger), _with_retention(namespace)
    return {
        name: ledger.get(name, namespace.get(name, getattr(settings, setting))) for name, setting in POLICIES.items()
    }


def require_policies(stated: Mapping[str, int], where: str) -> None:
    """Raise Refused for an unknown name, a value out of range, or a retention in which only one limit is 0."""
    for name, value in stated.items():
        _require_known(name, where)
        allowed = SETTINGS[POLICIES[name]]
        if type(value) is not int or not allowed.least <= value <= allowed.most:
            raise Refused(
                f"policy {name!r} of {where} is {value!r}, expected an integer from {allowed.least} to "
                f"{allowed.most} {allowed.unit}"
            )
    policies = _with_retention(stated)
    time, size = policies.get(RETENTION_TIME, -1), policies.get(RETENTION_SIZE, -1)
    if (time == 0) != (size == 0):
        raise Refused(
            f"retention of {where} is {time} minutes and {size} MiB: only one of the two limits is 0",
            hint="Set both to 0 to delete segments that every cursor has read, or set one to -1 to disable its limit",
        )


def require_offload(values: Stated, where: str) -> None:
    """Raise Refused if the effective values would delete a segment before it is offloaded."""
    for offload, retention, unit in ((OFFLOAD_SECONDS, RETENTION_TIME, 60), (OFFLOAD_BYTES, RETENTION_SIZE, _MB)):
        least, most = values[offload], values[retention] * unit
        if values[retention] >= 0 and least >= 0 and least >= most:
            raise Refused(
                f"segments of {where} would be deleted before their offload: {retention} is "
                f"{values[retention]} ({most} in the unit of {offload}), {offload} is {least}",
                hint=f"Set {offload} below {retention}, or {retention} to -1",
            )


def in_later_names(values: Mapping[str, int], where: str) -> dict[str, int]:
    """Return the policies under Pulsar's newer names and in their units.

    Raises Refused if the older and the newer name have different values.
    """
    found: dict[str, int] = {}
    for name, value in values.items():
        later, unit = _EARLIER.get(name, (name, 1))
        scaled = value * unit if type(value) is int and value > 0 else value
        if found.setdefault(later, scaled) != scaled:
            raise Refused(f"{where} has two values of {later}: {found[later]}, and {scaled} under the name {name!r}")
    return found


def require_rollover(values: Stated, where: str) -> None:
    """Raise Refused if the effective maximum rollover age is below the minimum."""
    most, least = values[_ROLLOVER_MAX], values[_ROLLOVER_MIN]
    if 0 < most < least:
        raise Refused(
            f"{where} has a maximum rollover age of {most} minutes, below its minimum of {least} minutes",
            hint=f"Set {_ROLLOVER_MAX} to 0 or to at least {_ROLLOVER_MIN}",
        )


def require_properties(values: Iterable[str], remove: Iterable[str], where: str) -> None:
    """Raise Refused for property names that are invalid or reserved for the broker."""
    require_property_names(values, where)
    wrong = sorted(name for name in (*values, *remove) if not name or name.startswith(RESERVED_PREFIX))
    if wrong:
        raise Refused(
            f"properties {wrong} of {where!r} cannot be set: the prefix {RESERVED_PREFIX} is reserved for the broker",
            hint="Choose another name, or set a policy",
        )


def require_settings(settings: Settings) -> None:
    """Raise Refused if the broker's settings of policies contradict each other."""
    values = effective({}, {}, settings)
    require_policies(values, "the broker's settings")
    require_rollover(values, "the broker")
    require_offload(values, "the broker's ledgers")


def require_names(names: Iterable[str], where: str) -> None:
    """Raise Refused if a name is not the name of a policy."""
    for name in names:
        _require_known(name, where)


def _require_known(name: str, where: str) -> None:
    if name not in POLICIES:
        near = nearest(name, POLICIES)
        hint = f"Did you mean {near!r}?" if near else f"The policies are {', '.join(POLICIES)}"
        raise Refused(f"{name!r} is not a policy that can be set for {where}", hint=hint)


def _with_retention(stated: Stated) -> Stated:
    """Return the policies. If only one limit of retention is set, add the other limit as -1."""
    if not any(name in stated for name in _RETENTION):
        return stated
    return {**dict.fromkeys(_RETENTION, -1), **stated}


def _scaled(value: int, unit: int) -> int:
    return -1 if value < 0 else value * unit


def _spread(ledger_id: int) -> int:
    """Hash a segment id to a number below 1000. The hashes of consecutive ids are evenly distributed."""
    return (ledger_id * 2_654_435_761 & 0xFFFF_FFFF) * 1000 >> 32
