"""What a client and the broker say to each other over Arrow Flight.

    DoAction(type, body)     body and reply are JSON of the structs below; `ACTIONS` lists them all
    DoPut(append, producer)  record batches of one binary column `entry`; for each batch one metadata reply, `Appended`,
                             sent when all its entries are durable, in the order in which they were sent
    DoPut(stage, part)       the same batches, written to a staged part; one `StagedPart` reply at the end
    DoGet(ticket)            `ReadRequest`; record batches of the columns of `BLOCK_SCHEMA`, each row one block: frames
                             (length, entry id, entry) exactly as they stand in the segment

Rules: a number has the bounds that its type says and is refused beyond them. Every reply is small; entries travel
only in DoPut and DoGet. A position on the wire is `[ledger, entry]`. An error crosses as JSON of `WireError` in the
Flight error's extra info. Fields are only ever added, with defaults.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pyarrow as pa

from ledger.life_calls import ChangePolicy, ChangeProperties, Policies, Properties, TrimmedLedgers
from ledger.position import Position, PositionRange
from ledger.producer_messages import AskSequence, ChangePartitions, LastSequence, NotNegative, PartitionCount

PROTOCOL_VERSION = 1
SPLIT_PARTS_MAX = 100_000
BLOCK_BYTES_MAX = 2**30
LEASE_MS_MAX = 24 * 3600 * 1000
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Uint64 = Annotated[int, msgspec.Meta(ge=0)]  # below 2**64, which msgspec cannot say: see `CommitRun`

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
    store_id: str = ""


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

    `durability` says when an entry is acknowledged: once the device has it, or the operating system.
    """

    name: str
    exist_ok: bool = False
    properties: dict[str, str] = {}
    block_bytes: NotNegative = 0
    max_entries_per_ledger: NotNegative = 0
    max_size_per_ledger_bytes: NotNegative = 0
    partitions: NotNegative = 0
    deduplication: bool = False
    durability: Literal["fsync", "os"] = "fsync"


class NameLedger(msgspec.Struct, frozen=True):
    """A request about one managed ledger."""

    name: str


class LedgerSegment(msgspec.Struct, frozen=True):
    """One ledger (segment) of a managed ledger. `close_ms` is 0 while it is open."""

    ledger_id: int
    entries: int
    size_bytes: int
    rows: int
    close_ms: int


class LedgerDescription(msgspec.Struct, frozen=True):
    """A managed ledger as it stands. `end` is the position after the last entry; `rows` counts all rows ever.

    Of a partitioned ledger the counts are sums, and positions stand in its `partitions` only.
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
    segments: list[LedgerSegment]
    cursors: list[str]
    properties: dict[str, str] = {}
    partitions: list[LedgerDescription] = []
    terminated: Position | None = None


class LedgerNames(msgspec.Struct, frozen=True):
    """Canonical names, sorted."""

    names: list[str]


class LedgerEnd(msgspec.Struct, frozen=True):
    """The cheap question of a tailing reader: where the log ends and how much lies after `since`."""

    name: str
    incarnation: str
    start: Position
    end: Position
    rows_since: int = 0
    bytes_since: int = 0
    entries_since: int = 0
    last_publish_ms: int = 0
    terminated: bool = False


class AskEnd(msgspec.Struct, frozen=True):
    """Where does the log end? With `wait_ms` the answer waits until the end has passed `since`.

    `since` means something in one log only: with another `incarnation` than the ledger's it is not looked at, and the
    answer says which one it is.
    """

    name: str
    since: Position | None = None
    wait_ms: NotNegative = 0
    incarnation: str = ""


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

    name: str
    arrow_schema: bytes
    after: Int64 = -1


class GetSchema(msgspec.Struct, frozen=True):
    """The schema of a version, or the newest (-1)."""

    name: str
    version: Int64 = -1


class ReadRequest(msgspec.Struct, frozen=True):
    """Read the committed entries of a range. `max_block_bytes` bounds one block (one entry is always whole).

    `token` is what the client read from `Welcome.token_path`: with the right one, `locate` answers places.
    `incarnation`, when given, must be the ledger's: a ledger deleted and made again is an error, not other rows.
    """

    name: str
    range: PositionRange
    incarnation: str = ""
    subscription: str = ""
    token: str = ""
    max_block_bytes: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_BYTES_MAX)] = 4 * 1024 * 1024


class BlockPlace(msgspec.Struct, frozen=True):
    """Where a block of frames is on the broker's host. Map it, check the first frame, read no byte beyond."""

    ledger_id: int
    first_entry: int
    entries: int
    path: str
    offset: int
    length: int


class Places(msgspec.Struct, frozen=True):
    """The blocks of a range, in order, without gap. `mapped` is false when the range must be read by DoGet."""

    mapped: bool
    blocks: list[BlockPlace] = []


class SplitRequest(msgspec.Struct, frozen=True):
    """Cut a range at entry boundaries into parts of about `target_bytes`, at most `max_parts`."""

    name: str
    range: PositionRange
    target_bytes: NotNegative
    max_parts: Annotated[int, msgspec.Meta(ge=1, le=SPLIT_PARTS_MAX)] = 1024


class SplitPart(msgspec.Struct, frozen=True):
    """One part of a split, with what it holds."""

    range: PositionRange
    entries: int
    rows: int
    size_bytes: int


class SplitParts(msgspec.Struct, frozen=True):
    """The parts, in order; together exactly the range asked for, as far as it is committed."""

    parts: list[SplitPart]


class SeekTime(msgspec.Struct, frozen=True):
    """The first position whose broker timestamp is at or after `timestamp_ms` (the end, if there is none)."""

    name: str
    timestamp_ms: Int64


class PositionReply(msgspec.Struct, frozen=True):
    """One position."""

    position: Position


class Appended(msgspec.Struct, frozen=True):
    """`entries` consecutive entries from `first` are durable. Metadata reply of an append stream.

    With `error`, nothing that comes later is: it is the last reply, sent at once because the stream itself can end with
    an error only when the producer sends something or hangs up.
    """

    first: Position
    entries: int
    error: WireError | None = None


class OpenCursor(msgspec.Struct, frozen=True):
    """Open a durable cursor, creating it with `start` as its next position to read if it does not exist."""

    ledger: str
    cursor: str
    start: Position
    create: bool = True


class CursorState(msgspec.Struct, frozen=True):
    """A durable cursor. `next_position` is the first position not acknowledged; the rest is what it has left.

    An entry that delivers no row, a marker of a run, is not counted in `backlog_entries`; an estimate counts it.
    """

    ledger: str
    cursor: str
    next_position: Position
    created: bool
    backlog_entries: int
    backlog_rows: int
    backlog_bytes: int
    lease_holder: str = ""
    lease_until_ms: int = 0
    replay_floor: Position | None = None


class NameCursor(msgspec.Struct, frozen=True):
    """A request about one cursor. Not `precise`: rows and bytes of its backlog are estimated, and no file is read."""

    ledger: str
    cursor: str
    precise: bool = True


class MarkDelete(msgspec.Struct, frozen=True):
    """Everything before `next_position` is acknowledged. Going back is ignored: acknowledgement is monotone.

    `replay_floor`: the end of the last batch known to be in the reader's commit log; never moves back either.
    """

    ledger: str
    cursor: str
    next_position: Position
    replay_floor: Position | None = None


class ResetCursor(msgspec.Struct, frozen=True):
    """Move a cursor to any position, backwards too."""

    ledger: str
    cursor: str
    next_position: Position


class AcquireLease(msgspec.Struct, frozen=True):
    """Take or renew the lease of a subscription. `holder` is `host/pid/start/id`; `ttl_ms` from now.

    A lease is granted when it is free, run out, the holder's own, or held by a process of the broker's host that is
    gone. Otherwise `LeaseReply.granted` is false and the reply names the holder and the end of its lease.
    """

    ledger: str
    cursor: str
    holder: str
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=LEASE_MS_MAX)]


class LeaseReply(msgspec.Struct, frozen=True):
    """The lease as it stands after the call."""

    granted: bool
    holder: str
    until_ms: int


class ReleaseLease(msgspec.Struct, frozen=True):
    """Give a lease back; ignored unless `holder` holds it."""

    ledger: str
    cursor: str
    holder: str


class OpenStaging(msgspec.Struct, frozen=True):
    """Where a task may stage a part of a run: a new file in the store, for a client that proved the same host."""

    query: str
    batch: Int64
    token: str


class StagingPlace(msgspec.Struct, frozen=True):
    """The file to write frames to (created empty by the broker), and the part's name in the store."""

    part: str
    path: str


class StagedPart(msgspec.Struct, frozen=True):
    """A staged part as its writer describes it: frames numbered from 0; `crc32c` is over all bytes of the file."""

    part: str
    entries: Int64
    rows: Int64
    length: Int64
    crc32c: Int64


class CommitRun(msgspec.Struct, frozen=True):
    """Append the staged parts as one run, closed by a marker, exactly once per (ledger, query, batch).

    `txn_most` and `txn_least` are the run's id, as its entries carry it. `once`: the query commits nothing else, so it
    need not be remembered for longer than its parts may lie about.
    """

    ledger: str
    query: str
    batch: Int64
    txn_most: Uint64
    txn_least: Uint64
    parts: list[StagedPart]
    once: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError, which a decoder takes for a field that is wrong."""
        if max(self.txn_most, self.txn_least) >= 2**64:
            raise ValueError("each half of a run's id has 64 bits")


class LedgerParts(msgspec.Struct, frozen=True):
    """The staged parts that one ledger gets, in order."""

    ledger: str
    parts: list[StagedPart]


class CommitRuns(msgspec.Struct, frozen=True):
    """Commit one batch of a query to several ledgers, exactly once: the first commit of it decides what goes where."""

    query: str
    batch: Int64
    txn_most: Uint64
    txn_least: Uint64
    runs: list[LedgerParts]

    def __post_init__(self) -> None:
        """Raises ValueError, which a decoder takes for a field that is wrong."""
        if max(self.txn_most, self.txn_least) >= 2**64:
            raise ValueError("each half of a run's id has 64 bits")


class CommittedRun(msgspec.Struct, frozen=True):
    """A run that is in the log. `repeated` when this call found it there already."""

    repeated: bool
    first: Position
    end: Position
    entries: int
    rows: int


class CommittedRuns(msgspec.Struct, frozen=True):
    """A batch that is in its ledgers, by their canonical names. `repeated`: this call brought nothing new.

    Of a batch before the newest one the ledgers are not known any more.
    """

    repeated: bool
    runs: dict[str, CommittedRun]


class AbortRun(msgspec.Struct, frozen=True):
    """Throw staged parts away. Parts that are gone already are ignored."""

    query: str
    batch: Int64
    parts: list[str]


class CacheMetrics(msgspec.Struct, frozen=True):
    """What the cache did since the broker started. Bytes and counts of entries."""

    hits: int
    misses: int
    hit_bytes: int
    miss_bytes: int
    size_bytes: int
    mapped_entries: int
    mapped_bytes: int


class ChangeSetting(msgspec.Struct, frozen=True):
    """Change a setting of the running broker; without a value, back to what it was configured with."""

    name: str
    value: Int64 | None = None


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


ACTIONS: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    "hello": (Hello, Welcome),
    "create": (CreateLedger, LedgerDescription),
    "describe": (NameLedger, LedgerDescription),
    "delete": (NameLedger, Empty),
    "producer.last": (AskSequence, LastSequence),
    "partitions": (NameLedger, PartitionCount),
    "partitions.extend": (ChangePartitions, LedgerDescription),
    "trim": (NameLedger, TrimmedLedgers),
    "terminate": (NameLedger, PositionReply),
    "properties": (ChangeProperties, Properties),
    "policy": (ChangePolicy, Policies),
    "list": (Empty, LedgerNames),
    "end": (AskEnd, LedgerEnd),
    "schema.get": (GetSchema, SchemaVersion),
    "schema.register": (RegisterSchema, SchemaVersion),
    "locate": (ReadRequest, Places),
    "split": (SplitRequest, SplitParts),
    "seek": (SeekTime, PositionReply),
    "cursor.open": (OpenCursor, CursorState),
    "cursor.describe": (NameCursor, CursorState),
    "cursor.mark_delete": (MarkDelete, CursorState),
    "cursor.reset": (ResetCursor, CursorState),
    "cursor.delete": (NameCursor, Empty),
    "lease.acquire": (AcquireLease, LeaseReply),
    "lease.release": (ReleaseLease, Empty),
    "stage.open": (OpenStaging, StagingPlace),
    "run.commit": (CommitRun, CommittedRun),
    "runs.commit": (CommitRuns, CommittedRuns),
    "run.abort": (AbortRun, Empty),
    "cache": (Empty, CacheMetrics),
    "settings": (Empty, SettingStates),
    "settings.change": (ChangeSetting, SettingStates),
    "shutdown": (Empty, Empty),
}


class AppendCommand(msgspec.Struct, frozen=True, tag="append"):
    """Begins an append stream, as descriptor of DoPut or first packet at the append socket.

    A stream is one producer; its order is the order in the log.
    """

    ledger: str
    producer: str


class StageCommand(msgspec.Struct, frozen=True, tag="stage"):
    """Descriptor of DoPut: stage a part of a run from another host."""

    query: str
    batch: Int64


PutCommand = AppendCommand | StageCommand
