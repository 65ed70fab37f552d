"""Messages between a client and the broker over Arrow Flight, and the table of all actions.

Arrow Flight is Apache Arrow's protocol for calls that carry record batches. It has these calls:

    DoAction(type, body)     body and reply are JSON of a `Request` and its reply; `REQUESTS` has all of them
    DoPut(append, producer)  the client sends record batches with one binary column `entry`; the broker answers each
                             batch, in order, with one reply `Appended` when all its entries are durable
    DoPut(acknowledge)       the client sends the entries and rows that a cursor acknowledges, in the columns of
                             `ledger.positions.acknowledge_request`
    DoPut(stage, part)       the client sends batches as for an append; the broker writes them to a staged part, a file
                             with the rows of one task, and answers with one `StagedPart` at the end
    DoGet(ticket)            the ticket (Flight's word for the request) is a `ReadRequest`; the broker sends batches in
                             the columns of `BLOCK_SCHEMA`; each row is one block: a sequence of frames (length, entry
                             id, entry), byte for byte as in the segment

Rules
- A number outside the bounds of its type is refused.
- Every reply is small. Entries are sent only by DoPut and DoGet.
- A position on the wire is `[segment id, entry id]`. A field `ledger_id` has the id of a segment, because Pulsar calls
  a segment a ledger.
- An error is sent as the JSON of a `WireError`, in the field `extra_info` of Flight's error.
- A later release may add fields with defaults. It never removes or changes a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol import cache, commits, cursors, ends, ledgers, metrics, reads  # noqa: F401 — declare actions
from pyspark_ledger.ledger.protocol.ends import WireError
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.protocol.request import ANY_TASK, WRITE, Call, Empty, LedgerRequest, Request, declared
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


class Welcome(msgspec.Struct, frozen=True):
    """Identity of the broker.

    The file `token_path` has a token. A client that can read this file is on the broker's host, and sends the token
    with its reads. `append_socket` is the name of the Unix socket for producers on the broker's host. The socket has no
    file (it is *abstract*). The name is empty if the broker has no such socket. `place` is the live place of the store
    (`ledger.ownership.live_place`). It is empty from a broker of an earlier release. With `announcements` the broker
    answers announcements of large batches. `former` are the earlier ids of a copy, oldest first.
    """

    version: int
    store_id: str
    store_path: str
    epoch: int
    pid: int
    token_path: str
    append_socket: str = ""
    place: str = ""
    announcements: bool = False
    former: tuple[str, ...] = ()


class Hello(Request[Welcome], frozen=True, action="hello", right=ANY_TASK, ledgers=(), changes=False):
    """First request of every client. The broker refuses `store_id` or `place` of another store, and accepts none."""

    version: Int64 = PROTOCOL_VERSION
    store_id: Name = ""
    place: Name = ""


class DeleteLedger(LedgerRequest[Empty], frozen=True, action="delete"):
    """Request to delete a managed ledger with its entries, cursors and schemas."""


class SegmentDescription(msgspec.Struct, frozen=True):
    """Segment of a managed ledger. `close_ms` is the time at which the segment was sealed; 0 while it is open.

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
    """Description of a managed ledger.

    `end` is the position after the last entry. `rows` counts all rows that were ever appended, also deleted ones. For a
    partitioned ledger the counts are sums, and only its `partitions` have positions. `segments` is empty for a
    partitioned ledger and in the descriptions of its partitions; `segment_count` is always set. For a terminated
    ledger, `terminated` is the position of the last entry, or `(-1, -1)` for an empty ledger. `durability` is "bucket"
    for a ledger of a store in a bucket. If a Spark task has at least `upload_from` bytes of rows, the task uploads the
    rows to the bucket, and the broker does not. -1: tasks never upload.
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
    durability: Literal["fsync", "os", "bucket"] = "fsync"
    upload_from: int = -1


class DescribeLedger(LedgerRequest[LedgerDescription], frozen=True, action="describe", right=WRITE, changes=False):
    """Request for the description of a managed ledger. Without `lists` the reply lists neither segments nor cursors."""

    lists: bool = True


class CreateLedger(LedgerRequest[LedgerDescription], frozen=True, action="create", right=WRITE):
    """Request to create a managed ledger. With `exist_ok` an existing ledger is no error, and the reply describes it.

    A ledger without partitions has 0 `partitions`. With `durability` "fsync" the broker acknowledges an entry after it
    is synced to the device. With "os" the broker acknowledges an entry when the operating system has it. Without
    `lists` the reply lists neither segments nor cursors.
    """

    exist_ok: bool = False
    properties: dict[Name, str] = {}
    block_bytes: NotNegative = 0
    max_entries_per_ledger: NotNegative = 0
    max_size_per_ledger_bytes: NotNegative = 0
    partitions: NotNegative = 0
    deduplication: bool = False
    durability: Literal["fsync", "os"] = "fsync"
    lists: bool = True


class ChangePartitions(LedgerRequest[LedgerDescription], frozen=True, action="partitions.extend"):
    """Request to increase the number of partitions of a partitioned ledger."""

    partitions: NotNegative


class LedgerNames(msgspec.Struct, frozen=True):
    """Canonical names, sorted."""

    names: list[str]


class ListLedgers(Request[LedgerNames], frozen=True, action="list", ledgers=(), changes=False):
    """Request for the names of all managed ledgers."""


class LedgerEnd(msgspec.Struct, frozen=True):
    """Start and end of a log, and the amount of data after a position `since`. The broker reads no entry.

    `first_publish_ms` is the time at which the broker stored the first entry after `since`; 0 without such an entry.
    The values named `…_since` are 0 if no `since` was given.
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


class AskEnd(LedgerRequest[LedgerEnd], frozen=True, action="end", changes=False):
    """Request for the end of a log."""

    since: Position | None = None


class SchemaVersion(msgspec.Struct, frozen=True):
    """Registered schema, as the bytes of a schema in Arrow's format. Version -1: no schema is registered."""

    name: str
    version: int
    arrow_schema: bytes = b""


class RestoreSchema(LedgerRequest[SchemaVersion], frozen=True, action="schema.restore"):
    """Request to delete the newest versions of a schema that no reader can use. The reply is the newest one left."""


class RegisterSchema(LedgerRequest[SchemaVersion], frozen=True, action="schema.register", right=WRITE):
    """Request to register new columns of a ledger.

    `after` is the version that the writer knows as the newest; -1: none.

    If the newest version is not `after`, the broker registers nothing and returns the newest version. So the broker
    registers the schema of only one of two concurrent writers. The other writer compares its schema with the reply.
    """

    arrow_schema: bytes
    after: Int64 = -1


class GetSchema(LedgerRequest[SchemaVersion], frozen=True, action="schema.get", right=WRITE, changes=False):
    """Request for one version of a ledger's schema; -1 requests the newest version."""

    version: Int64 = -1


class SchemaOfMany(msgspec.Struct, frozen=True):
    """Registered schema, and the ledgers that have it as their newest schema.

    Version -1: these ledgers have no schema.
    """

    version: int
    arrow_schema: bytes
    names: list[str]


class LedgerSchemas(msgspec.Struct, frozen=True):
    """Distinct schemas, each with its ledgers. The reply leaves out deleted ledgers."""

    schemas: list[SchemaOfMany]


class AskSchemas(Request[LedgerSchemas], frozen=True, action="schema.many", ledgers=("names",), changes=False):
    """Request for the newest schemas of many ledgers."""

    names: Annotated[list[Name], msgspec.Meta(max_length=reads.SURVEY_MAX)]


class Appended(msgspec.Struct, frozen=True):
    """Reply in an append stream: `entries` consecutive entries from position `first` are durable.

    A reply with `error` is the last reply of its stream. Entries without a reply are not durable. The broker sends the
    error as a reply, because Flight reports an error only when the producer sends again or disconnects.
    """

    first: Position
    entries: int
    error: WireError | None = None


class SettingState(msgspec.Struct, frozen=True):
    """State of a setting. `live`: a running broker can change it. `changed`: the running broker has changed it."""

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


class ChangeSetting(Request[SettingStates], frozen=True, action="settings.change", ledgers=()):
    """Request to change a setting of the running broker. The settings in `others` change in the same step.

    None as a value restores the configured value. With `trial` the broker first tries the new values: for example, it
    opens a new offload address.
    """

    name: Name
    value: Int64 | Name | None = None
    others: dict[Name, Int64 | Name | None] = {}
    trial: bool = False


class AskSettings(Request[SettingStates], frozen=True, action="settings", ledgers=(), changes=False):
    """Request for all settings of a broker."""


class Health(msgspec.Struct, frozen=True):
    """Errors of a broker since its start.

    `given_up` has the managed ledgers that refuse appends until the broker restarts, each with its error. `errors` are
    the newest errors of broker.log, oldest first. `error_count` is the number of all errors.
    """

    given_up: dict[str, str] = {}
    errors: list[str] = []
    error_count: Int64 = 0


class AskHealth(Request[Health], frozen=True, action="health", ledgers=(), changes=False):
    """Request for the errors of a broker."""


class StopBroker(Request[Empty], frozen=True, action="shutdown", ledgers=(), changes=False):
    """Request to end the broker."""


class AppendCommand(Call, frozen=True, ledgers=("ledger",), tag="append"):
    """Start of an append stream: the descriptor (header) of DoPut, or the first packet on the append socket.

    Each stream has one producer. The log has the entries in the order of the stream.
    """

    ledger: Name
    producer: Name


class StageCommand(Call, frozen=True, right=WRITE, ledgers=(), tag="stage"):
    """Descriptor of DoPut with which a client on another host writes a staged part.

    If `announced` is set, the client announces each large batch, and waits for the broker's answer before it sends the
    batch (`ledger.protocol.announcements`).
    """

    query: Name
    batch: Int64
    announced: bool = False


class AcknowledgeCommand(Call, frozen=True, ledgers=("ledger",), tag="acknowledge"):
    """Descriptor of DoPut that acknowledges entries and rows for a cursor, in any order.

    With `action` "nack" (negative acknowledgement) the cursor redelivers the rows instead.
    `ledger.positions.acknowledge_request` defines the columns of the record batches. The broker sends the reply,
    `CursorState`, when all acknowledgements are durable. If an `incarnation` is given and the ledger has another one,
    the broker refuses the stream.
    """

    ledger: Name
    cursor: Name
    incarnation: Name = ""
    action: Literal["ack", "nack"] = "ack"


PutCommand = AppendCommand | StageCommand | AcknowledgeCommand

REQUESTS: Mapping[str, type[Request[Any]]] = declared
"""The class of every action, by the action's name."""

# All decoders are created here, at the import. Reason: msgspec prepares a type when its first decoder is created, and
# the process crashes if two threads do so at the same time. Python's import lock admits one thread only.
DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (*REQUESTS.values(), *(request.call.reply for request in REQUESTS.values()), PutCommand)
}
