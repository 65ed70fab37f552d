"""Policy of a managed ledger: block size, rollover, retention and offload.

Rules
- A value comes from the first of these that sets it: the ledger's policy, its namespace's policy, the broker's
  settings. The two values of retention are set together. If only one is set, the other is -1 (keep everything).
- The block size, entries and bytes given at creation are properties of the ledger's record. Reason: they must not
  change with the broker's defaults. A policy of the ledger itself overrides entries and bytes. The block size never
  changes.
- An unknown name, a value out of range and two contradicting values are refused with an error that names them.
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
from pyspark_ledger.ledger.segment.format import entry_bytes_max
from pyspark_ledger.ledger.settings.broker import SETTINGS, Settings

RESERVED_PREFIX = "ledger."
DURABILITY = "ledger.durability"
"""Property with the value "os" if entries are acknowledged before they are synced to the device."""
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
"""The policies by name, each with the broker's setting that is its default and gives its range."""

# Names of PIP-17, with other units. Their values are stored under the later names.
_EARLIER = {"offloadTimeInMinutes": (OFFLOAD_SECONDS, 60), "offloadSizeInMB": (OFFLOAD_BYTES, _MB)}

Stated = Mapping[str, int]
"""Policies that a ledger or a namespace sets: values by name."""


@dataclass(frozen=True, slots=True)
class LedgerPolicy:
    """Effective policy of a managed ledger.

    - Size: a segment is full at `entries_max` entries or `size_max` bytes. A block has `block_bytes`.
    - Rollover: a segment is due at the age `rollover_max_ms` (0: never). It is never sealed by size or age before it is
      older than `rollover_min_ms` (0: no minimum).
    - Retention: a segment expires after `retention_ms`. It also expires if `retention_bytes` remain without it.
      -1 disables a limit. Segments up to the id `published` may be deleted at once (-1: none).
    - Offload: a segment is offloaded `offload_ms` after its seal, or when it and all later segments exceed
      `offload_bytes`. -1 disables a threshold. Its local copy is deleted `offload_lag_ms` later (-1: never).
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
    def entry_bytes_max(self) -> int:
        """The maximum size of an entry in a block, broker metadata included."""
        return entry_bytes_max(self.block_bytes)

    @property
    def keeps_everything(self) -> bool:
        """True if no segment is ever trimmed."""
        return self.retention_ms < 0 and self.retention_bytes < 0 and self.published == NOT_PUBLISHED

    @property
    def offloads(self) -> bool:
        """True if segments are offloaded automatically."""
        return self.offload_ms >= 0 or self.offload_bytes >= 0

    def may_roll_over(self, age_ms: int) -> bool:
        """Return whether a full segment of this age may be sealed."""
        return self.rollover_min_ms == 0 or age_ms > self.rollover_min_ms

    def is_due(self, ledger_id: int, age_ms: int) -> bool:
        """Return whether a segment must be sealed because of its age.

        The due time is spread by the segment's id over 5 % of `rollover_max_ms`. Reason: segments should not all be
        sealed at the same time.
        """
        spread = self.rollover_max_ms * _spread(ledger_id) // 20_000
        return 0 < self.rollover_max_ms <= age_ms - spread and self.may_roll_over(age_ms)

    @classmethod
    def of(cls, info: ManagedLedgerInfo, ledger: Stated, namespace: Stated, settings: Settings) -> Self:
        """Return the effective policy from a record, the policies of its ledger and namespace, and the settings."""
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
        """Return the properties of a new ledger's record. The block size is always among them."""
        stated = {
            _BLOCK_BYTES: request.block_bytes or settings.ledgerBlockSizeBytes,
            _ENTRIES_MAX: request.max_entries_per_ledger,
            _SIZE_MAX: request.max_size_per_ledger_bytes,
        }
        return {name: str(value) for name, value in stated.items() if value}


def effective(ledger: Stated, namespace: Stated, settings: Settings) -> dict[str, int]:
    """Return the effective value of every policy: the ledger's, else the namespace's, else the broker's."""
    ledger, namespace = _whole(ledger), _whole(namespace)
    return {
        name: ledger.get(name, namespace.get(name, getattr(settings, setting))) for name, setting in POLICIES.items()
    }


def require_policies(stated: Mapping[str, int], where: str) -> None:
    """Raise Refused for an unknown name, a value out of range, or a retention with 0 in only one of its values."""
    for name, value in stated.items():
        _require_known(name, where)
        allowed = SETTINGS[POLICIES[name]]
        if type(value) is not int or not allowed.least <= value <= allowed.most:
            raise Refused(
                f"policy {name!r} of {where} is {value!r}, expected an integer from {allowed.least} to "
                f"{allowed.most} {allowed.unit}"
            )
    whole = _whole(stated)
    time, size = whole.get(RETENTION_TIME, -1), whole.get(RETENTION_SIZE, -1)
    if (time == 0) != (size == 0):
        raise Refused(
            f"retention of {where} is {time} minutes and {size} MiB: 0 in one of them only",
            hint="Say 0 in both to delete what every cursor has read, or -1 to keep without that limit",
        )


def require_offload(values: Stated, where: str) -> None:
    """Raise Refused if the effective values would delete a segment before it is offloaded."""
    for offload, retention, unit in ((OFFLOAD_SECONDS, RETENTION_TIME, 60), (OFFLOAD_BYTES, RETENTION_SIZE, _MB)):
        least, most = values[offload], values[retention] * unit
        if values[retention] >= 0 and least >= 0 and least >= most:
            raise Refused(
                f"{where} would be offloaded at {offload} {least}, and deleted before at {retention} "
                f"{values[retention]} ({most} in the same unit)",
                hint=f"Set {offload} below {retention}, or {retention} to -1",
            )


def in_later_names(values: Mapping[str, int], where: str) -> dict[str, int]:
    """Return the policies with names and units of PIP-17 replaced by the later ones.

    Raises Refused if the earlier and the later name have different values.
    """
    found: dict[str, int] = {}
    for name, value in values.items():
        later, unit = _EARLIER.get(name, (name, 1))
        scaled = value * unit if type(value) is int and value > 0 else value
        if found.setdefault(later, scaled) != scaled:
            raise Refused(f"{where} states {later} twice, as {found[later]} and, by {name!r}, as {scaled}")
    return found


def require_rollover(values: Stated, where: str) -> None:
    """Raise Refused if the effective maximum rollover age is below the minimum."""
    most, least = values[_ROLLOVER_MAX], values[_ROLLOVER_MIN]
    if 0 < most < least:
        raise Refused(
            f"{where} would roll over after {most} minutes and not before {least}",
            hint=f"Set {_ROLLOVER_MAX} to 0 or to at least {_ROLLOVER_MIN}",
        )


def require_properties(values: Iterable[str], remove: Iterable[str], where: str) -> None:
    """Raise Refused for property names that are reserved for the broker or not allowed."""
    require_property_names(values, where)
    wrong = sorted(name for name in (*values, *remove) if not name or name.startswith(RESERVED_PREFIX))
    if wrong:
        raise Refused(
            f"properties {wrong} of {where!r} cannot be set: {RESERVED_PREFIX}… are the broker's",
            hint="Choose another name, or set a policy",
        )


def require_settings(settings: Settings) -> None:
    """Raise Refused if settings of the broker contradict each other, by the rules for policies."""
    values = effective({}, {}, settings)
    require_policies(values, "the broker's settings")
    require_rollover(values, "the broker")
    require_offload(values, "a ledger of the broker")


def require_names(names: Iterable[str], where: str) -> None:
    """Raise Refused if a name is not the name of a policy."""
    for name in names:
        _require_known(name, where)


def _require_known(name: str, where: str) -> None:
    if name not in POLICIES:
        near = nearest(name, POLICIES)
        hint = f"Did you mean {near!r}?" if near else f"There are {', '.join(POLICIES)}"
        raise Refused(f"there is no policy {name!r} to set for {where}", hint=hint)


def _whole(stated: Stated) -> Stated:
    """Return the policies with both values of retention set, if one is set."""
    if not any(name in stated for name in _RETENTION):
        return stated
    return {**dict.fromkeys(_RETENTION, -1), **stated}


def _scaled(value: int, unit: int) -> int:
    return -1 if value < 0 else value * unit


def _spread(ledger_id: int) -> int:
    """Return a number below 1000 that is spread evenly over consecutive ids."""
    return (ledger_id * 2_654_435_761 & 0xFFFF_FFFF) * 1000 >> 32
