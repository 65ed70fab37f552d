"""Messages about one managed ledger: its properties, policies, partitions, sealing, offloading, publishing.

`ledger.protocol.actions` has the rules of all messages. To *publish* a segment is to write its rows to a Delta table. A
property of the ledger states the last published segment of each table:

    published:/tables/orders = {"table":"<Delta's id of the table>","segment":7}

Rules of that property
- A publisher writes the property after its commit to the table, so the property is never ahead of the table.
- The commits of the table decide what is published. Retention reads the property to keep unpublished segments. A
  publisher compares the table's id, to detect a table that was created again.
- If a log is published to several tables, the slowest table counts.
- An unreadable property counts as if no segment were published.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.protocol.reads import PositionReply
from pyspark_ledger.ledger.protocol.request import LedgerRequest, Request
from pyspark_ledger.ledger.settings.setting import NotNegative

DEDUPLICATION_ENABLED = "ledger.deduplicationEnabled"
"""Property of a ledger with de-duplication. Such a ledger stores a message once, even if it is sent again."""


class TrimReply(msgspec.Struct, frozen=True):
    """Segments that a trim (a deletion by the ledger's policies) removed, oldest first. The log now begins at `start`.

    The trim deleted only the local copies of the segments in `local`, because object storage has these segments.
    """

    name: str
    ledgers: list[int]
    entries: int
    size_bytes: int
    start: Position
    local: list[int] = []


class TrimLedger(LedgerRequest[TrimReply], frozen=True, action="trim"):
    """Request to delete the segments that retention does not keep."""


class TerminateLedger(LedgerRequest[PositionReply], frozen=True, action="terminate"):
    """Request to terminate a ledger: it accepts no further entry. The reply is the position of its last entry."""


class Properties(msgspec.Struct, frozen=True):
    """All properties of a managed ledger."""

    name: str
    properties: dict[str, str]


class ChangeProperties(LedgerRequest[Properties], frozen=True, action="properties"):
    """Request to set and remove properties of a managed ledger.

    Names that begin with `ledger.` belong to the broker and are refused.
    """

    values: dict[Name, str] = {}
    remove: list[Name] = []


class Policies(msgspec.Struct, frozen=True):
    """Policies of a ledger or a namespace: its own (`stated`), its namespace's, and the effective policies."""

    scope: str
    stated: dict[str, int]
    inherited: dict[str, int]
    effective: dict[str, int]


class ChangePolicy(Request[Policies], frozen=True, action="policy", ledgers=("scope",)):
    """Request to set and remove policies of a ledger or of a namespace (`tenant/namespace`).

    Without values and without names to forget, the request changes nothing, and the reply shows the policies. A
    forgotten policy is replaced by the policy of the namespace, or else by the broker's setting.
    """

    scope: Name
    namespace: bool = False
    values: dict[Name, int] = {}
    forget: list[Name] = []


class OffloadStatus(msgspec.Struct, frozen=True):
    """Progress of the offload of a managed ledger. `state`: idle, waiting, running, done, failed, cancelled.

    `done` and `left` are the finished and the remaining segments of this offload. `bytes_total` is the size
    of these segments, `bytes_done` the part of it that is uploaded. `first_left` is the start of the first segment that
    is not offloaded. `failure` is the first error; the offload of the other segments continues after an error. `swept`
    is the number of abandoned uploads whose objects were deleted from the bucket.
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
    """Number of segments in object storage, from this offload and earlier offloads."""
    local: int = 0
    """Number of offloaded segments that have a local copy as well."""
    foreign: int = 0
    """Number of offloaded segments whose objects the original of this copied store wrote."""


class OffloadPrefix(LedgerRequest[OffloadStatus], frozen=True, action="offload"):
    """Request to copy sealed segments to object storage, in the background: the segments before `until`, or all.

    - With `seal` the broker first seals the open segment, if it has an entry, and offloads it too.
    - With `cancel` the broker stops the running offload instead.
    - With `sweep` the broker deletes unreferenced objects instead. It deletes the objects that its metadata records as
      unwanted, and objects of this store that a listing of the bucket finds.
    - With `adopt` the objects that the original of this copied store wrote become this store's own instead.
    """

    until: Position | None = None
    cancel: bool = False
    sweep: bool = False
    seal: bool = False
    adopt: bool = False


class AskOffload(LedgerRequest[OffloadStatus], frozen=True, action="offload.status", changes=False):
    """Request for the progress of a ledger's offload."""


class PartitionCount(msgspec.Struct, frozen=True):
    """Number of partitions; 0 for a missing ledger, or a ledger without partitions."""

    partitions: NotNegative


class AskPartitions(LedgerRequest[PartitionCount], frozen=True, action="partitions", changes=False):
    """Request for the number of a ledger's partitions."""


class LastSequence(msgspec.Struct, frozen=True):
    """Highest durable sequence id of the producer; -1 if it has none. None for a ledger without de-duplication."""

    sequence_id: int | None


class AskSequence(Request[LastSequence], frozen=True, action="producer.last", ledgers=("ledger",)):
    """Request for the last sequence id of a producer in a ledger."""

    ledger: Name
    producer: Name


_PREFIX = "published:"
NOT_PUBLISHED = -1


class PublishedNote(msgspec.Struct, frozen=True, rename={"table_id": "table"}):
    """Progress of a log in the table with id `table_id`: `segment` and all segments before it are published."""

    table_id: str
    segment: int

    @classmethod
    def of(cls, properties: Mapping[str, str], target: str) -> PublishedNote | None:
        """Return the property about the table `target`; None if the log has no readable property about it."""
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
    """Return the newest segment that all tables of the log contain; NOT_PUBLISHED if there is no such segment."""
    targets = [name.removeprefix(_PREFIX) for name in properties if name.startswith(_PREFIX)]
    notes = [PublishedNote.of(properties, target) for target in targets]
    return min((NOT_PUBLISHED if note is None else note.segment for note in notes), default=NOT_PUBLISHED)


class SealReply(msgspec.Struct, frozen=True):
    """Result of the request: whether the broker sealed a segment."""

    name: str
    sealed: bool


class SealLedger(LedgerRequest[SealReply], frozen=True, action="seal"):
    """Request to seal the open segment, if it has an entry and is at least `older_than_ms` old.

    The next append opens a new segment.
    """

    older_than_ms: NotNegative = 0
