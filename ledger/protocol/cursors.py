"""Messages about cursors, leases, acknowledgements and deliveries.

`ledger.protocol.actions` has the rules of all messages.

- A *cursor* is the durable position of one reader. Its `next_position` is the first position that is not acknowledged.
  Its *mark-delete position*, Pulsar's term, is the entry before `next_position`. A cursor can also acknowledge single
  rows after `next_position`.
- A *delivery record* is the durable list of the rows of one batch. Each record of a cursor has a higher number than the
  record before it.
- A *dead letter* is a row that was redelivered too often. It is written to another ledger and then acknowledged.
- `PositionInfo` is Pulsar's Protobuf message for a set of acknowledged positions (`ledger.positions.position_info`).
"""

from __future__ import annotations

from typing import Annotated, Generic

import msgspec

from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.protocol.reads import OpenedRead, PositionReply
from pyspark_ledger.ledger.protocol.request import Empty, Reply, Request
from pyspark_ledger.ledger.settings.setting import Int64, NotNegative

LEASE_MS_MAX = 24 * 3600 * 1000
CURSORS_MAX = 1_000
"""Most cursors of one request. The client sends several requests for more cursors."""


class CursorRequest(Request[Reply], Generic[Reply], frozen=True, ledgers=("ledger",)):
    """Request about one cursor of a managed ledger."""

    ledger: Name
    cursor: Name


class CursorState(msgspec.Struct, frozen=True):
    """State of a cursor. `next_position` is the first unacknowledged position.

    The backlog has the unacknowledged entries from `next_position` to the end of the log. `backlog_entries` excludes
    entries without rows, such as the marker that closes a committed batch. An estimated backlog includes them.

    - `acknowledged_ranges` and `acknowledged_entries` count the whole entries that are acknowledged after
      `next_position`. `partial_entries` counts the entries that are acknowledged in part.
    - `cursor_ledger` is the id of the cursor's own log, which stores these acknowledgements. It is -1 if the cursor's
      metadata record stores them.
    - `replay_floor` is the end of the last batch that Spark is known to have committed. No replay starts before it.
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
    acknowledged_ranges: int = 0
    acknowledged_entries: int = 0
    partial_entries: int = 0
    cursor_ledger: int = -1
    properties: dict[str, str] = {}


class OpenCursor(CursorRequest[CursorState], frozen=True, action="cursor.open"):
    """Request to open a durable cursor. A new cursor starts at `start`."""

    start: Position
    create: bool = True


class OpenCursors(Request[Empty], frozen=True, action="cursor.open.many", ledgers=("cursors.ledger",)):
    """Request to create those of the cursors that are missing. Creates all of them, or none if one is refused."""

    cursors: Annotated[list[OpenCursor], msgspec.Meta(max_length=CURSORS_MAX)]


class NameCursor(CursorRequest[Reply], Generic[Reply], frozen=True):
    """Request about a cursor.

    Without `precise` the broker reads no file, and estimates the backlog's rows and bytes.
    """

    precise: bool = True


class DescribeCursor(NameCursor[CursorState], frozen=True, action="cursor.describe", changes=False):
    """Request for the state of a cursor."""


class DeleteCursor(NameCursor[Empty], frozen=True, action="cursor.delete"):
    """Request to delete a cursor. `precise` has no effect."""


class MarkDelete(CursorRequest[PositionReply], frozen=True, action="cursor.mark_delete"):
    """Request to acknowledge everything before `next_position`. The broker ignores a move backwards.

    `replay_floor` is the end of the last batch that is known to be in the commit log of the reader's checkpoint. It
    also moves forward only.
    """

    next_position: Position
    replay_floor: Position | None = None


class ResetCursor(CursorRequest[CursorState], frozen=True, action="cursor.reset"):
    """Request to move a cursor to any position, also backwards."""

    next_position: Position


class SkipEntries(CursorRequest[CursorState], frozen=True, action="cursor.skip"):
    """Request to acknowledge the next `entries` unacknowledged entries with rows; -1 means all of them.

    The caller sends the cursor's position as `start`, and the log's end as `end`. The broker counts the entries from
    `start` to `end`. So a repeated request, after a lost reply, skips no further entry.
    """

    entries: Int64
    start: Position
    end: Position


class CursorProperties(CursorRequest[CursorState], frozen=True, action="cursor.properties"):
    """Request to set and remove properties of a cursor. The broker stores them and does not interpret them."""

    values: dict[Name, str] = {}
    remove: list[Name] = []


class AckedRanges(msgspec.Struct, frozen=True):
    """Encoded PositionInfo: the mark-delete position, and the acknowledged positions of the range after it.

    The broker reads both in one step. Without `whole`, `info` is empty if no position after the mark-delete position is
    acknowledged.
    """

    info: bytes = b""


class AskAckedRanges(CursorRequest[AckedRanges], frozen=True, action="cursor.holes", changes=False):
    """Request for the positions of a range that a cursor has acknowledged after its mark-delete position.

    With `whole` the reply has the mark-delete position even if the range has no acknowledged position.
    """

    range: PositionRange
    whole: bool = False


class LeaseReply(msgspec.Struct, frozen=True):
    """Holder of the lease after the call, and the time at which the lease expires."""

    granted: bool
    holder: str
    until_ms: int


class AcquireLease(CursorRequest[LeaseReply], frozen=True, action="lease.acquire"):
    """Request to acquire or renew the lease of a subscription, for `ttl_ms` from now.

    `holder` is `host/pid/start/id`: the query's host, process, start time of the process, and own id.

    A *lease* gives one query the right to use a subscription. The broker grants a lease that is free, that has expired
    or that the same holder has. It also grants the lease of a dead process on the broker's host. Otherwise
    `LeaseReply.granted` is false, and the reply names the holder and the end of its lease. With `renews` the broker
    grants the lease only if the holder has it.
    """

    holder: Name
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=LEASE_MS_MAX)]
    renews: bool = False


class ReleaseLease(CursorRequest[Empty], frozen=True, action="lease.release"):
    """Request to release a lease. The broker ignores the request if `holder` does not have the lease."""

    holder: Name


class LeaseReplies(msgspec.Struct, frozen=True):
    """Replies to the leases of the request, in the same order."""

    leases: list[LeaseReply]


class AcquireLeases(Request[LeaseReplies], frozen=True, action="lease.acquire.many", ledgers=("leases.ledger",)):
    """Request to acquire or renew the leases of several cursors.

    The broker grants all leases without `renews`, or none of them. It grants each renewal by itself, and refuses the
    renewal of a missing cursor.
    """

    leases: Annotated[list[AcquireLease], msgspec.Meta(max_length=CURSORS_MAX)]


class ReleaseLeases(Request[Empty], frozen=True, action="lease.release.many", ledgers=("leases.ledger",)):
    """Request to release the leases of several cursors. The broker ignores those that the holder does not have."""

    leases: Annotated[list[ReleaseLease], msgspec.Meta(max_length=CURSORS_MAX)]


UNLIMITED = 2**62


class DeliveredRange(msgspec.Struct, frozen=True, array_like=True):
    """Rows that are delivered together: the rows of `range` without the rows in `skip`, an encoded PositionInfo.

    An empty `skip` excludes no row. `count` is the number of earlier deliveries of the rows. `at_ms` is the time of the
    last earlier delivery by the broker's clock.
    """

    count: int
    range: PositionRange
    skip: bytes = b""
    at_ms: int = 0


class Due(msgspec.Struct, frozen=True):
    """Rows and bytes that are due for redelivery. `head_rows` and `head_bytes` are the part of the first due entry."""

    rows: int
    size_bytes: int
    head_rows: int
    head_bytes: int


class AskDue(CursorRequest[Due], frozen=True, action="delivery.due", changes=False):
    """Request for the number and size of the rows that are due for redelivery after delivery record `after`."""

    after: NotNegative
    ack_timeout_ms: NotNegative = 0
    max_redeliveries: Int64 = -1
    before_ms: NotNegative = UNLIMITED


class DecidedDelivery(msgspec.Struct, frozen=True):
    """Decided batch. `record` is the number of its delivery record. `position` is the start of the next batch.

    `record` is 0 if the batch has no delivery record. An empty batch has no record. Without `explicit`, a range without
    acknowledged rows has no record. `dead` is the number of a batch of dead letters that the reader must write before
    this batch (0: none). `back_rows` and `back_bytes` are the redelivered part of the batch. If the request has a
    `holder`, `shares` are the ranges of the batch. Then `position` in the reply without a record is the log's end.
    `ahead` is the range of new rows that the next batch will have if nothing is redelivered, acknowledged or appended
    meanwhile. `opened` is the open read of this range.
    """

    record: int
    position: Position
    dead: int = 0
    back_rows: int = 0
    back_bytes: int = 0
    shares: list[DeliveredRange] = []
    ahead: PositionRange | None = None
    opened: OpenedRead | None = None


class NextDelivery(CursorRequest[DecidedDelivery], frozen=True, action="delivery.next"):
    """Request to decide which rows the next batch delivers. The batch follows delivery record `after` (0: none).

    New rows are the rows from `start` to `end`. With `explicit` the user acknowledges single rows (option `ackMode`).
    Without `explicit` the batch has the unacknowledged new rows.

    With `explicit` a delivered row stays outstanding until it is acknowledged. It is redelivered after
    `ack_timeout_ms`. After `max_redeliveries` redeliveries (-1: no limit) it becomes a dead letter instead.

    The batch has at most `back_rows` and `back_bytes` of redelivered rows; later batches have the other rows. With
    `back_first` the batch has at least the first due entry, even if this entry exceeds both limits. A row whose last
    delivery was at `before_ms` or later, by the broker's clock, is not redelivered yet, even after a negative
    acknowledgement.

    A loop of the Python API names itself as `holder` of the cursor's lease. Without this lease the broker raises
    LeaseLost. A loop always requests `explicit`, and repeats no batch. So for a loop
    - new rows start at the end of record `after`, or without this record at the cursor; `start` and `end` count nothing
    - `back_rows` and `back_bytes` limit redelivered and new rows together
    - rows whose last delivery was before `due_before_ms` are due at once: another reader received them
    - the rows of `nacked` are negatively acknowledged, and due at once
    - the rows of `done` are acknowledged first, as by `AckDelivery`
    - the cursor has no replay floor: the log keeps only unacknowledged rows
    - the reply has the open read of the next batch, as the reply to `OpenRead` with this `token`
    """

    after: NotNegative
    start: Position
    end: Position
    explicit: bool
    ack_timeout_ms: NotNegative = 0
    max_redeliveries: Int64 = -1
    back_rows: NotNegative = UNLIMITED
    back_bytes: NotNegative = UNLIMITED
    back_first: bool = True
    before_ms: NotNegative = UNLIMITED
    holder: Name = ""
    due_before_ms: NotNegative = 0
    nacked: list[DeliveredRange] = []
    done: list[DeliveredRange] = []
    token: Name = ""


class AckDelivery(CursorRequest[PositionReply], frozen=True, action="delivery.acknowledge"):
    """Request of a loop to acknowledge delivered rows. `holder` has the cursor's lease, or the broker raises LeaseLost.

    `shares` are ranges of a batch, as the broker delivered them. The broker acknowledges those of their rows that
    are outstanding from this delivery or a later one. It ignores all other rows. Reason: after a reset of the cursor,
    rows are delivered afresh. The reply is the cursor's first unacknowledged position.
    """

    holder: Name
    shares: list[DeliveredRange]


class Delivery(msgspec.Struct, frozen=True):
    """Delivery record: its number (0: there is no record), the start of the next batch, and its ranges.

    In the reply to record 0, `now_ms` is the broker's clock, from which `DeliveredRange.at_ms` comes. All earlier
    deliveries have an earlier time, and later ones no earlier time. `incarnation` is that of the ledger. With `idle`,
    no row of the ledger can be delivered now: there is none after `position`, and none is outstanding.
    """

    record: int
    position: Position
    shares: list[DeliveredRange] = []
    now_ms: int = 0
    incarnation: str = ""
    idle: bool = False


class AskDelivery(CursorRequest[Delivery], frozen=True, action="delivery.get", changes=False):
    """Request for the delivery record with the number `record`.

    -1 requests the dead letters. 0 requests the newest record, without its ranges.
    """

    record: Int64


class Deliveries(msgspec.Struct, frozen=True):
    """Delivery records that the elements of the request name, in the same order."""

    deliveries: list[Delivery]


class AskDeliveries(
    Request[Deliveries], frozen=True, action="delivery.get.many", ledgers=("requests.ledger",), changes=False
):
    """Request for delivery records of several cursors."""

    requests: Annotated[list[AskDelivery], msgspec.Meta(max_length=CURSORS_MAX)]


class AckDeadLetters(CursorRequest[Empty], frozen=True, action="delivery.bury"):
    """Request to acknowledge the batch `dead` of dead letters, after the reader wrote it to the dead-letter ledger."""

    dead: NotNegative
