"""Messages between a client and the broker over Arrow Flight, and the list of all actions.

    DoAction(type, body)     body and reply are JSON of the structs below; `ACTIONS` lists them all
    DoPut(append, producer)  record batches of one binary column `entry`; for each batch one metadata reply, `Appended`,
                             sent when all its entries are durable, in the order in which they were sent
    DoPut(acknowledge)       entries and rows that a cursor acknowledges, of the columns of
                             `ledger.positions.acknowledge_request`
    DoPut(stage, part)       the same batches, written to a staged part; one `StagedPart` reply at the end
    DoGet(ticket)            `ReadRequest`; record batches of the columns of `BLOCK_SCHEMA`, each row one block: frames
                             (length, entry id, entry) exactly as they stand in the segment

Rules: a number has the bounds that its type says and is refused beyond them. Every reply is small; entries travel
only in DoPut and DoGet. A position on the wire is `[ledger, entry]`. An error crosses as JSON of `WireError` in the
Flight error's extra info. Fields are only ever added, with defaults.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol import cache, commits, cursors, ledgers, reads
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
    """An error as it crosses the wire; `ledger.errors.error_for` makes it one again."""

    code: str
    message: str
    hint: str = ""


class Empty(msgspec.Struct, frozen=True):
    """Nothing to say."""


class Hello(msgspec.Struct, frozen=True):
    """The first call of every client. `store_id`, when given, must be the broker's."""

    version: Int64 = PROTOCOL_VERSION
    store_id: Name = ""


class Welcome(msgspec.Struct, frozen=True):
    """Who answers. Reading `token_path` proves that the client is on the same host (send the token with reads).

    `append_socket` is the abstract name where producers on the same host come in; empty when there is none.
    """

    version: int
    store_id: str
    store_path: str
    epoch: int
    pid: int
    token_path: str
    append_socket: str = ""


class CreateLedger(msgspec.Struct, frozen=True):
    """Create a managed ledger. With `exist_ok` an existing one is answered as it is. 0 `partitions`: it has none.

    `durability` says when an entry is acknowledged: once the device has it, or the operating system. Without `lists`
    the answer has neither segments nor cursors.
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
    """A request about one managed ledger."""

    name: Name


class DescribeLedger(msgspec.Struct, frozen=True):
    """How a managed ledger stands; without `lists` its segments and cursors are left out of the answer."""

    name: Name
    lists: bool = True


class SegmentDescription(msgspec.Struct, frozen=True):
    """One ledger (segment) of a managed ledger. `close_ms` is 0 while it is open."""

    ledger_id: int
    entries: int
    size_bytes: int
    rows: int
    close_ms: int


class LedgerDescription(msgspec.Struct, frozen=True):
    """A managed ledger as it stands. `end` is the position after the last entry; `rows` counts all rows ever.

    Of a partitioned ledger the counts are sums, and positions stand in its `partitions` only. `segment_count`: of
    `segments`, which are left out of partitions and their whole.
    `terminated`, once it is: the position of the last entry there will ever be, `(-1, -1)` if there was none.
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
    """The cheap question of a tailing reader: where the log ends and how much lies after `since`.

    `first_publish_ms`: when the broker took the first entry after `since`; 0 when there is none.
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
    """Where does the log end? With `wait_ms` the answer waits until the end has passed `since`.

    `since` means something in one log only: with another `incarnation` than the ledger's it is not looked at, and the
    answer says which one it is.
    """

    name: Name
    since: Position | None = None
    wait_ms: NotNegative = 0
    incarnation: Name = ""


class SchemaVersion(msgspec.Struct, frozen=True):
    """A registered schema: the bytes of an Arrow IPC schema message. Version -1: none is registered."""

    name: str
    version: int
    arrow_schema: bytes = b""


class RegisterSchema(msgspec.Struct, frozen=True):
    """Register the columns of a ledger as the version after `after`; -1 at its first write.

    When another version is the newest, that one is answered and nothing is registered: of two first writers one wins,
    and the other has to compare.
    """

    name: Name
    arrow_schema: bytes
    after: Int64 = -1


class GetSchema(msgspec.Struct, frozen=True):
    """The schema of a version, or the newest (-1)."""

    name: Name
    version: Int64 = -1


class SchemaOfMany(msgspec.Struct, frozen=True):
    """One registered schema, and the ledgers whose newest it is. Version -1: these have none."""

    version: int
    arrow_schema: bytes
    names: list[str]


class AskSchemas(msgspec.Struct, frozen=True):
    """The newest schemas of many ledgers."""

    names: Annotated[list[Name], msgspec.Meta(max_length=reads.SURVEY_MAX)]


class LedgerSchemas(msgspec.Struct, frozen=True):
    """Each distinct schema once; ledgers that are gone are in none."""

    schemas: list[SchemaOfMany]


class Appended(msgspec.Struct, frozen=True):
    """`entries` consecutive entries from `first` are durable. Metadata reply of an append stream.

    With `error`, nothing that comes later is: it is the last reply, sent at once because the stream itself can end with
    an error only when the producer sends something or hangs up.
    """

    first: Position
    entries: int
    error: WireError | None = None


class ChangeSetting(msgspec.Struct, frozen=True):
    """Change a setting of the running broker, and `others` in the same step. No value: back to what is configured."""

    name: Name
    value: Int64 | Name | None = None
    others: dict[Name, Int64 | Name | None] = {}


class SettingState(msgspec.Struct, frozen=True):
    """One setting as it stands. `live`: it can be changed; `changed`: it was."""

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
    """The errors of a broker since its start.

    `given_up` has, for each managed ledger that takes nothing until the broker is started again, the reason. `errors`
    are the newest errors of broker.log, oldest first, `error_count` is the number of all of them.
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
    "settings": (Empty, SettingStates),
    "settings.change": (ChangeSetting, SettingStates),
    "shutdown": (Empty, Empty),
}


class AppendCommand(msgspec.Struct, frozen=True, tag="append"):
    """Begins an append stream, as descriptor of DoPut or first packet at the append socket.

    A stream is one producer; its order is the order in the log.
    """

    ledger: Name
    producer: Name


class StageCommand(msgspec.Struct, frozen=True, tag="stage"):
    """Descriptor of DoPut: stage a part of a run from another host."""

    query: Name
    batch: Int64


class AcknowledgeCommand(msgspec.Struct, frozen=True, tag="acknowledge"):
    """Descriptor of DoPut: acknowledge entries and rows in a cursor's name, in any order, or give them back.

    The batches are those of `ledger.log.acknowledged_positions`; the reply, `CursorState`, comes when all of it is
    durable. With
    an `incarnation`, that of another ledger of the name is refused.
    """

    ledger: Name
    cursor: Name
    incarnation: Name = ""
    action: Literal["ack", "nack"] = "ack"


PutCommand = AppendCommand | StageCommand | AcknowledgeCommand

# Made here, under the lock of the import: msgspec makes what it knows of a type when that is first decoded, and threads
# that come first together crash the process.
DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (*chain.from_iterable(ACTIONS.values()), reads.ReadRequest, PutCommand)
}
