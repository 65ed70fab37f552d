"""Messages about one managed ledger: its properties, policies, partitions, sealing, offloading, publishing.

They are a part of `ledger.protocol.actions`, whose rules hold here too. A property of the ledger states how far the log
is published in a table:

    published:/tables/orders = {"table":"<Delta's id of the table>","segment":7}

Rules of that property
- It is written after the commit that it states, so it is never ahead of the table.
- It does not decide what is published. Retention reads it, and a publisher detects a table that was created again.
- If a log is published to several tables, the slowest table counts.
- An unreadable property counts as nothing published.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.settings.setting import NotNegative

DEDUPLICATION_ENABLED = "ledger.deduplicationEnabled"
"""The property of a ledger that has de-duplication."""


class TrimReply(msgspec.Struct, frozen=True):
    """Segments that a trim removed, oldest first; the managed ledger now begins at `start`.

    Of the segments in `local` only the local copies were deleted: they are in object storage.
    """

    name: str
    ledgers: list[int]
    entries: int
    size_bytes: int
    start: Position
    local: list[int] = []


class ChangeProperties(msgspec.Struct, frozen=True):
    """Request to set and remove properties of a managed ledger. The broker's own, `ledger.…`, are refused."""

    name: Name
    values: dict[Name, str] = {}
    remove: list[Name] = []


class Properties(msgspec.Struct, frozen=True):
    """All properties of a managed ledger."""

    name: str
    properties: dict[str, str]


class ChangePolicy(msgspec.Struct, frozen=True):
    """Request to set and remove policies of a ledger or of a namespace (`tenant/namespace`); without either, to show
    them.

    A removed policy falls back to the namespace's or the broker's setting.
    """

    scope: Name
    namespace: bool = False
    values: dict[Name, int] = {}
    forget: list[Name] = []


class Policies(msgspec.Struct, frozen=True):
    """Policies of a ledger or a namespace: its own, those of its namespace, and the effective ones."""

    scope: str
    stated: dict[str, int]
    inherited: dict[str, int]
    effective: dict[str, int]


class OffloadPrefix(msgspec.Struct, frozen=True):
    """Request to offload all sealed segments before a position; without one, all. The offload runs in the background.

    With `seal` the open segment is sealed first, if it holds an entry, and offloaded too. With `cancel` the running
    offload is stopped instead. With `sweep` unreferenced objects are deleted instead: recorded ones, and those that a
    listing of the bucket finds for this store.
    """

    name: Name
    until: Position | None = None
    cancel: bool = False
    sweep: bool = False
    seal: bool = False


class OffloadStatus(msgspec.Struct, frozen=True):
    """Progress of the offload of a managed ledger. `state`: idle, waiting, running, done, failed, cancelled.

    `done` and `left` are segments of this offload, and `bytes_done` of `bytes_total` are their bytes. `first_left` is
    the start of the first segment that is not offloaded. `failure` is the first error; other segments continued after
    the error. `swept` is the number of objects that a sweep deleted.
    """

    name: str
    state: str
    first_left: Position
    done: list[int] = []
    left: list[int] = []
    bytes_done: int = 0
    bytes_total: int = 0
    failure: str = ""
    swept: int = 0
    offloaded: int = 0
    """Number of segments in object storage, of this offload or earlier ones."""
    local: int = 0
    """Number of offloaded segments that have a local copy as well."""


class ChangePartitions(msgspec.Struct, frozen=True):
    """Request to increase the number of partitions of a partitioned ledger."""

    name: Name
    partitions: NotNegative


class PartitionCount(msgspec.Struct, frozen=True):
    """Number of partitions; 0 for a missing ledger, or one without partitions."""

    partitions: NotNegative


class AskSequence(msgspec.Struct, frozen=True):
    """Request for the last sequence id of a producer in a ledger."""

    ledger: Name
    producer: Name


class LastSequence(msgspec.Struct, frozen=True):
    """Highest durable sequence id, -1 for none; None for a ledger without de-duplication."""

    sequence_id: int | None


_PREFIX = "published:"
NOT_PUBLISHED = -1


class PublishedNote(msgspec.Struct, frozen=True, rename={"table_id": "table"}):
    """Progress of a log in the table of this id: `segment` and all before it are published."""

    table_id: str
    segment: int

    @classmethod
    def of(cls, properties: Mapping[str, str], target: str) -> PublishedNote | None:
        """Return the property about a table; None if there is no readable one."""
        try:
            return msgspec.json.decode(properties.get(_PREFIX + target, ""), type=cls)
        except JSON_FAULTS:
            return None

    def properties(self, target: str) -> dict[str, str]:
        return {_PREFIX + target: msgspec.json.encode(self).decode()}


def is_published(properties: Mapping[str, str]) -> bool:
    """Return whether a log is published to at least one table."""
    return any(name.startswith(_PREFIX) for name in properties)


def published_everywhere(properties: Mapping[str, str]) -> int:
    """Return the newest segment that is in all tables of the log; NOT_PUBLISHED if there is none."""
    targets = [name.removeprefix(_PREFIX) for name in properties if name.startswith(_PREFIX)]
    notes = [PublishedNote.of(properties, target) for target in targets]
    return min((NOT_PUBLISHED if note is None else note.segment for note in notes), default=NOT_PUBLISHED)


class SealLedger(msgspec.Struct, frozen=True):
    """Request to seal the open segment, if it holds an entry and is old enough. The next append opens another."""

    name: Name
    older_than_ms: NotNegative = 0


class SealReply(msgspec.Struct, frozen=True):
    """Result of a seal: whether there was an entry to seal."""

    name: str
    sealed: bool
