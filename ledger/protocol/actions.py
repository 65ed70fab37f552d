"""Messages between a client and the broker over Arrow Flight, and the list of all actions.

    DoAction(type, body)     body and reply are JSON of the structs below; `ACTIONS` lists them all
    DoPut(append, producer)  record batches of one binary column `entry`; for each batch one metadata reply, `Appended`,
                             sent when all its entries are durable, in the order in which they were sent
    DoPut(acknowledge)       entries and rows that a cursor acknowledges, of the columns of
                             `ledger.positions.acknowledge_request`
    DoPut(stage, part)       the same batches, written to a staged part; one `StagedPart` reply at the end
    DoGet(ticket)            `ReadRequest`; record batches of the columns of `BLOCK_SCHEMA`, each row one block: frames
                             (length, entry id, entry) exactly as they are in the segment

Rules
- A number has the bounds of its type and is refused beyond them.
- Every reply is small. Entries are sent only by DoPut and DoGet.
- A position on the wire is `[ledger, entry]`.
- An error is sent as JSON of `WireError` in the Flight error's extra info.
- Fields are only ever added, with defaults.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol import cache, commits, cursors, ledgers, metrics, reads
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.settings.setting import Int64, NotNegative

PROTOCOL_VERSION = 2

ENTRY_SCHEMA = pa.schema([pa.field("entry", pa.binary(), nullable=False)])
BLOCK_SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("first_entry", pa.int64(), nullable=False),
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("frames", pa.large_binary(), nullable=False),
    ]
)


class WireError(msgspec.Struct, frozen=True):
    """Error on the wire, which `ledger.errors.error_for` converts back."""

    code: str
    message: str
    hint: str = ""


class Empty(msgspec.Struct, frozen=True):
    """Message without fields."""


class Hello(msgspec.Struct, frozen=True):
    """First call of every client. `store_id`, if given, must be the broker's."""

    version: Int64 = PROTOCOL_VERSION
    store_id: Name = ""


class Welcome(msgspec.Struct, frozen=True):
    """Identity of the broker. A client that can read `token_path` is on the same host, and sends the token with reads.

    `append_socket` is the abstract socket name for producers on the same host; empty if there is none.
    """

    version: int
    store_id: str
    store_path: str
    epoch: int
    pid: int
    token_path: str
    append_socket: str = ""


class CreateLedger(msgspec.Struct, frozen=True):
    """Request to create a managed ledger. With `exist_ok` the answer describes an existing one. 0 `partitions`: none.

    `durability` determines when an entry is acknowledged: when the device has it, or the operating system. Without
    `lists` the answer has neither segments nor cursors.
    """

    name: Name
    exist_ok: bool = False
    properties: dict[Name, str] = {}
    block_bytes: NotNegative = 0
    max_entries_per_ledger: NotNegative = 0
    max_size_per_ledger_bytes: NotNegative = 0
    partitions: NotNegative = 0
    deduplication: bool = False
    durability: Literal["fsync", "os"] = "fsync"
    lists: bool = True


class NameLedger(msgspec.Struct, frozen=True):
    """Request about one managed ledger."""

    name: Name


class DescribeLedger(msgspec.Struct, frozen=True):
    """Request for a managed ledger's description; without `lists` it has no segments and cursors."""

    name: Name
    lists: bool = True


class SegmentDescription(msgspec.Struct, frozen=True):
    """Segment of a managed ledger. `close_ms` is 0 while it is open.

    `offloaded`: object storage has a complete copy. `local`: the segment's file is on the broker's disk.
    """

    ledger_id: int
    entries: int
    size_bytes: int
    rows: int
    close_ms: int
    offloaded: bool = False
    local: bool = True


class LedgerDescription(msgspec.Struct, frozen=True):
    """Description of a managed ledger. `end` is the position after the last entry; `rows` counts all rows ever.

    For a partitioned ledger the counts are sums, and only its `partitions` have positions. `segment_count` counts the
    `segments`, which are left out for partitions and partitioned ledgers. `terminated`, once it is: the position of the
    last entry, `(-1, -1)` if there was none.
    """

    name: str
    incarnation: str
    start: Position
    end: Position
    entries: int
    size_bytes: int
    rows: int
    last_publish_ms: int
    schema_version: int
    segments: list[SegmentDescription]
    cursors: list[str]
    properties: dict[str, str] = {}
    partitions: list[LedgerDescription] = []
    terminated: Position | None = None
    segment_count: int = 0


class LedgerNames(msgspec.Struct, frozen=True):
    """Canonical names, sorted."""

    names: list[str]


class LedgerEnd(msgspec.Struct, frozen=True):
    """End of a log and the data after `since`, for a tailing reader. Cheap to compute.

    `first_publish_ms`: the broker's time of the first entry after `since`; 0 if there is none.
    """

    name: str
    incarnation: str
    start: Position
    end: Position
    rows_since: int = 0
    bytes_since: int = 0
    entries_since: int = 0
    last_publish_ms: int = 0
    terminated: bool = False
    first_publish_ms: int = 0


class AskEnd(msgspec.Struct, frozen=True):
    """Request for the end of a log. With `wait_ms` the answer waits until the end has passed `since`.

    `since` is valid in one log only. With another `incarnation` than the ledger's it is ignored, and the answer has the
    present one.
    """

    name: Name
    since: Position | None = None
    wait_ms: NotNegative = 0
    incarnation: Name = ""


class SchemaVersion(msgspec.Struct, frozen=True):
    """Registered schema: the bytes of an Arrow IPC schema message. Version -1: none is registered."""

    name: str
    version: int
    arrow_schema: bytes = b""


class RegisterSchema(msgspec.Struct, frozen=True):
    """Request to register the columns of a ledger as the version after `after`; -1 at its first write.

    If another version is the newest, nothing is registered and the answer is that version. So of two first writers one
    wins, and the other must compare.
    """

    name: Name
    arrow_schema: bytes
    after: Int64 = -1


class GetSchema(msgspec.Struct, frozen=True):
    """Request for the schema of a version, or the newest (-1)."""

    name: Name
    version: Int64 = -1


class SchemaOfMany(msgspec.Struct, frozen=True):
    """Registered schema, and the ledgers whose newest it is. Version -1: these have none."""

    version: int
    arrow_schema: bytes
    names: list[str]


class AskSchemas(msgspec.Struct, frozen=True):
    """Request for the newest schemas of many ledgers."""

    names: Annotated[list[Name], msgspec.Meta(max_length=reads.SURVEY_MAX)]


class LedgerSchemas(msgspec.Struct, frozen=True):
    """Distinct schemas, each once. Deleted ledgers are in none."""

    schemas: list[SchemaOfMany]


class Appended(msgspec.Struct, frozen=True):
    """Metadata reply of an append stream: `entries` consecutive entries from `first` are durable.

    A reply with `error` is the last one; later entries are not durable. It is sent at once, because the stream itself
    can end with an error only when the producer sends something or disconnects.
    """

    first: Position
    entries: int
    error: WireError | None = None


class ChangeSetting(msgspec.Struct, frozen=True):
    """Request to change a setting of the running broker, and `others` in the same step.

    No value: the configured one. `trial`: the broker first tries the new values, such as an offload address.
    """

    name: Name
    value: Int64 | Name | None = None
    others: dict[Name, Int64 | Name | None] = {}
    trial: bool = False


class SettingState(msgspec.Struct, frozen=True):
    """State of a setting. `live`: it can be changed; `changed`: it was."""

    name: str
    value: int | str
    default: int | str
    unit: str
    reason: str
    live: bool = False
    changed: bool = False


class SettingStates(msgspec.Struct, frozen=True):
    """All settings of a broker."""

    settings: list[SettingState]


class Health(msgspec.Struct, frozen=True):
    """Errors of a broker since its start.

    `given_up` has the reason for each managed ledger that accepts nothing until the broker is restarted. `errors` are
    the newest errors of broker.log, oldest first. `error_count` is the number of all of them.
    """

    given_up: dict[str, str] = {}
    errors: list[str] = []
    error_count: Int64 = 0


ACTIONS: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    "hello": (Hello, Welcome),
    "create": (CreateLedger, LedgerDescription),
    "describe": (DescribeLedger, LedgerDescription),
    "delete": (NameLedger, Empty),
    "producer.last": (ledgers.AskSequence, ledgers.LastSequence),
    "partitions": (NameLedger, ledgers.PartitionCount),
    "partitions.extend": (ledgers.ChangePartitions, LedgerDescription),
    "trim": (NameLedger, ledgers.TrimReply),
    "terminate": (NameLedger, reads.PositionReply),
    "seal": (ledgers.SealLedger, ledgers.SealReply),
    "properties": (ledgers.ChangeProperties, ledgers.Properties),
    "policy": (ledgers.ChangePolicy, ledgers.Policies),
    "offload": (ledgers.OffloadPrefix, ledgers.OffloadStatus),
    "offload.status": (NameLedger, ledgers.OffloadStatus),
    "list": (Empty, LedgerNames),
    "end": (AskEnd, LedgerEnd),
    "schema.get": (GetSchema, SchemaVersion),
    "schema.register": (RegisterSchema, SchemaVersion),
    "read.open": (reads.OpenRead, reads.OpenedRead),
    "locate": (reads.ReadRequest, reads.Places),
    "split": (reads.SplitRequest, reads.SplitParts),
    "seek": (reads.SeekTime, reads.PositionReply),
    "survey": (reads.AskLogStatuses, reads.LogStatuses),
    "quotas": (reads.AskLimitedRanges, reads.SplitParts),
    "split.many": (reads.SplitRanges, reads.RangeParts),
    "locate.many": (reads.LocateRanges, reads.RangePlaces),
    "schema.many": (AskSchemas, LedgerSchemas),
    "cursor.open": (cursors.OpenCursor, cursors.CursorState),
    "cursor.describe": (cursors.NameCursor, cursors.CursorState),
    "cursor.mark_delete": (cursors.MarkDelete, reads.PositionReply),
    "cursor.reset": (cursors.ResetCursor, cursors.CursorState),
    "cursor.delete": (cursors.NameCursor, Empty),
    "cursor.skip": (cursors.SkipEntries, cursors.CursorState),
    "cursor.properties": (cursors.CursorProperties, cursors.CursorState),
    "cursor.holes": (cursors.AskAckedRanges, cursors.AckedRanges),
    "delivery.next": (cursors.NextDelivery, cursors.DecidedDelivery),
    "delivery.due": (cursors.AskDue, cursors.Due),
    "delivery.get": (cursors.AskDelivery, cursors.Delivery),
    "delivery.bury": (cursors.AckDeadLetters, Empty),
    "lease.acquire": (cursors.AcquireLease, cursors.LeaseReply),
    "lease.release": (cursors.ReleaseLease, Empty),
    "stage.open": (commits.OpenStaging, commits.StagingPlace),
    "run.commit": (commits.CommitRun, commits.CommittedRun),
    "runs.commit": (commits.CommitRuns, commits.CommittedRuns),
    "run.newest": (commits.AskNewestBatch, commits.NewestBatch),
    "run.abort": (commits.AbortRun, Empty),
    "cache": (Empty, cache.CacheMetrics),
    "cache.reads": (Empty, cache.CacheReads),
    "cache.follow": (cache.RegisterReader, Empty),
    "cache.follow.many": (cache.RegisterReaders, Empty),
    "cache.hint": (reads.PrefetchRequest, reads.PrefetchReply),
    "health": (Empty, Health),
    "metrics": (metrics.AskMetrics, metrics.BrokerMetrics),
    "publish.report": (metrics.ReportPublished, Empty),
    "settings": (Empty, SettingStates),
    "settings.change": (ChangeSetting, SettingStates),
    "shutdown": (Empty, Empty),
}


class AppendCommand(msgspec.Struct, frozen=True, tag="append"):
    """Start of an append stream, as descriptor of DoPut or first packet at the append socket.

    A stream is one producer. Its order is the order in the log.
    """

    ledger: Name
    producer: Name


class StageCommand(msgspec.Struct, frozen=True, tag="stage"):
    """Descriptor of DoPut that stages a part of a run from another host."""

    query: Name
    batch: Int64


class AcknowledgeCommand(msgspec.Struct, frozen=True, tag="acknowledge"):
    """Descriptor of DoPut that acknowledges entries and rows for a cursor, in any order, or returns them for
    redelivery.

    The batches are those of `ledger.positions.acknowledge_request`. The reply, `CursorState`, is sent when all of it is
    durable. With an `incarnation`, another ledger of the name is refused.
    """

    ledger: Name
    cursor: Name
    incarnation: Name = ""
    action: Literal["ack", "nack"] = "ack"


PutCommand = AppendCommand | StageCommand | AcknowledgeCommand

# Created here, under the lock of the import: msgspec creates its data about a type at the first decoding. Threads that
# do so concurrently crash the process.
DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (*chain.from_iterable(ACTIONS.values()), reads.ReadRequest, PutCommand)
}
