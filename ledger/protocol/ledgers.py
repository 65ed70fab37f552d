"""Messages about one managed ledger: its properties, policies, partitions, sealing, offloading, publishing.

A part of `ledger.protocol.actions`, whose rules hold here too. How far a log is published in a table is a property of
the ledger:

    published:/tables/orders = {"table":"<Delta's id of the table>","segment":7}

Rules of that note
- It is written after the commit that it states, so it is never ahead of the table.
- It does not decide what is published. Retention reads it, and a publisher detects a table that was made anew.
- If a log is published to several tables, the one that is behind counts.
- A note that cannot be read counts as nothing published.
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
    """Ledgers that a trim took off a managed ledger, oldest first; the managed ledger now begins at `start`.

    For the ledgers in `local` only the local copies were deleted: they are in object storage.
    """

    name: str
    ledgers: list[int]
    entries: int
    size_bytes: int
    start: Position
    local: list[int] = []


class ChangeProperties(msgspec.Struct, frozen=True):
    """Set properties of a managed ledger, and remove others; the broker's own, `ledger.…`, are refused."""

    name: Name
    values: dict[Name, str] = {}
    remove: list[Name] = []


class Properties(msgspec.Struct, frozen=True):
    """All properties of a managed ledger."""

    name: str
    properties: dict[str, str]


class ChangePolicy(msgspec.Struct, frozen=True):
    """Set policies of a ledger, or of a namespace (`tenant/namespace`), and forget others. Without either: look.

    What is forgotten is again as the namespace or the broker's settings say.
    """

    scope: Name
    namespace: bool = False
    values: dict[Name, int] = {}
    forget: list[Name] = []


class Policies(msgspec.Struct, frozen=True):
    """The policies of a ledger or a namespace: its own, those of its namespace, and the effective ones."""

    scope: str
    stated: dict[str, int]
    inherited: dict[str, int]
    effective: dict[str, int]


class OffloadPrefix(msgspec.Struct, frozen=True):
    """Offload all sealed ledgers before a position; without one, all there are. Answered at once: it runs by itself.

    With `seal` the ledger that is being written is sealed first, if it holds an entry, so that it goes, too.
    With `cancel` what runs is to stop instead. With `sweep` objects that nobody refers to are deleted instead: those
    that are noted, and what a listing of the bucket finds of this store.
    """

    name: Name
    until: Position | None = None
    cancel: bool = False
    sweep: bool = False
    seal: bool = False


class OffloadStatus(msgspec.Struct, frozen=True):
    """How far the offload of a managed ledger is. `state`: idle, waiting, running, done, failed, cancelled.

    `bytes_done` of `bytes_total` of the ledgers `left` and those `done` in this run; `first_left` begins the first
    ledger that is not offloaded. `failure` is the first error; other ledgers went on after it. `swept`: objects that a
    sweep deleted.
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
    """Ledgers that are in object storage, of this run or others."""
    local: int = 0
    """Offloaded ledgers that have a local copy as well."""


class ChangePartitions(msgspec.Struct, frozen=True):
    """Increase the number of partitions of a partitioned ledger."""

    name: Name
    partitions: NotNegative


class PartitionCount(msgspec.Struct, frozen=True):
    """The number of partitions; 0 for a ledger that has none, or that is not there."""

    partitions: NotNegative


class AskSequence(msgspec.Struct, frozen=True):
    """The last sequence id of a producer in a ledger."""

    ledger: Name
    producer: Name


class LastSequence(msgspec.Struct, frozen=True):
    """The highest sequence id that is durable, -1 for none; None for a ledger without de-duplication."""

    sequence_id: int | None


_PREFIX = "published:"
NOT_PUBLISHED = -1


class PublishedNote(msgspec.Struct, frozen=True, rename={"table_id": "table"}):
    """How far a log is in the table of this id: `segment` and all before it."""

    table_id: str
    segment: int

    @classmethod
    def of(cls, properties: Mapping[str, str], target: str) -> PublishedNote | None:
        """The note about a table; None when there is none that can be read."""
        try:
            return msgspec.json.decode(properties.get(_PREFIX + target, ""), type=cls)
        except JSON_FAULTS:
            return None

    def properties(self, target: str) -> dict[str, str]:
        return {_PREFIX + target: msgspec.json.encode(self).decode()}


def published_everywhere(properties: Mapping[str, str]) -> int:
    """The newest segment that is in all tables that the log is published to; NOT_PUBLISHED where there is none."""
    targets = [name.removeprefix(_PREFIX) for name in properties if name.startswith(_PREFIX)]
    notes = [PublishedNote.of(properties, target) for target in targets]
    return min((NOT_PUBLISHED if note is None else note.segment for note in notes), default=NOT_PUBLISHED)


class SealLedger(msgspec.Struct, frozen=True):
    """Seal the open segment of a ledger, if it holds an entry and is at least so old; the next append opens another."""

    name: Name
    older_than_ms: NotNegative = 0


class SealReply(msgspec.Struct, frozen=True):
    """Whether there was something to seal."""

    name: str
    sealed: bool
