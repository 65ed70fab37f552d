"""Messages about cursors, leases, acknowledgements and deliveries: a part of `ledger.protocol.actions`.

The rules of `ledger.protocol.actions` hold here, too. `PositionInfo` is Pulsar's Protobuf message for a set of
acknowledged positions (`ledger.positions.position_info`).

A delivery record is the durable list of the rows of one batch. The numbers of a cursor's records rise.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.settings.setting import Int64, NotNegative

LEASE_MS_MAX = 24 * 3600 * 1000


class CursorRequest(msgspec.Struct, frozen=True):
    """Request about one cursor of a managed ledger."""

    ledger: Name
    cursor: Name


class OpenCursor(CursorRequest, frozen=True):
    """Request to open a durable cursor. A new cursor starts at `start`."""

    start: Position
    create: bool = True


class CursorState(msgspec.Struct, frozen=True):
    """Durable cursor. `next_position` is the first unacknowledged position; the backlog is what follows.

    `backlog_entries` excludes entries without rows, such as the marker that closes a committed batch. An estimated
    backlog includes them. The backlog excludes everything that is acknowledged out of order.

    Counts of acknowledgements from `next_position` on: `acknowledged_ranges` and `acknowledged_entries` of whole
    entries, `partial_entries` of entries with some acknowledged rows. `cursor_ledger` is the id of the cursor's own
    log, which stores these acknowledgements. With -1 the cursor's metadata record stores them.
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


class NameCursor(CursorRequest, frozen=True):
    """Request about a cursor. Not `precise`: rows and bytes of its backlog are estimated, and no file is read."""

    precise: bool = True


class MarkDelete(CursorRequest, frozen=True):
    """Request to acknowledge everything before `next_position`. A move backwards is ignored.

    `replay_floor`: the end of the last batch known to be in the reader's commit log; it never moves back either.
    """

    next_position: Position
    replay_floor: Position | None = None


class ResetCursor(CursorRequest, frozen=True):
    """Request to move a cursor to any position, also backwards."""

    next_position: Position


class SkipEntries(CursorRequest, frozen=True):
    """Request to acknowledge the next `entries` unacknowledged entries with rows; all of them for -1.

    They are counted from `start`, the caller's view of the cursor, to `end`, its view of the log's end. So a call with
    a lost answer may be repeated.
    """

    entries: Int64
    start: Position
    end: Position


class CursorProperties(CursorRequest, frozen=True):
    """Request to set and remove properties of a cursor. The broker stores them and does not interpret them."""

    values: dict[Name, str] = {}
    remove: list[Name] = []


class AskAckedRanges(CursorRequest, frozen=True):
    """Request for the positions of a range that a cursor acknowledged beyond its mark-delete.

    With `whole` the answer contains the mark-delete position even if the range has no such position.
    """

    range: PositionRange
    whole: bool = False


class AckedRanges(msgspec.Struct, frozen=True):
    """Encoded PositionInfo: the mark-delete position, and the acknowledged positions of the range beyond it.

    Both are of the same moment. Empty if no position beyond mark-delete is acknowledged, unless `whole` was set.
    """

    info: bytes = b""


class AcquireLease(CursorRequest, frozen=True):
    """Request to take or renew the lease of a subscription. `holder` is `host/pid/start/id`; `ttl_ms` counts from now.

    A lease is granted if it is free, expired, the holder's own, or held by a dead process of the broker's host.
    Otherwise `LeaseReply.granted` is false and the reply names the holder and the end of its lease.
    """

    holder: Name
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=LEASE_MS_MAX)]


class LeaseReply(msgspec.Struct, frozen=True):
    """Lease after the call."""

    granted: bool
    holder: str
    until_ms: int


class ReleaseLease(CursorRequest, frozen=True):
    """Request to release a lease; ignored unless `holder` holds it."""

    holder: Name


UNLIMITED = 2**62


class DeliveredRange(msgspec.Struct, frozen=True, array_like=True):
    """Rows that are delivered together: a range without the rows of `skip`, an encoded PositionInfo (empty: none).

    `count`: earlier deliveries of the rows. `at_ms`: time of the last one, by the broker's clock.
    """

    count: int
    range: PositionRange
    skip: bytes = b""
    at_ms: int = 0


class NextDelivery(CursorRequest, frozen=True):
    """Request to decide which rows the next batch delivers. The batch follows delivery record `after` (0: none).

    New rows are those from `start` to `end`. Without `explicit` the batch is this range without its acknowledged rows.

    With `explicit` a delivered row stays outstanding until it is acknowledged. It is redelivered after
    `ack_timeout_ms`. After `max_redeliveries` redeliveries (-1: no limit) it becomes a dead letter instead.

    The batch takes at most `back_rows` and `back_bytes` of redelivered rows. With `back_first` it takes the first due
    entry in any size. The rest follows in later batches. Rows that were delivered at `before_ms` or later, by the
    broker's clock, are not redelivered yet, even after a negative acknowledgement.
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


class AskDue(CursorRequest, frozen=True):
    """Request for the size of the rows that the batch after delivery record `after` would redeliver without a limit."""

    after: NotNegative
    ack_timeout_ms: NotNegative = 0
    max_redeliveries: Int64 = -1
    before_ms: NotNegative = UNLIMITED


class Due(msgspec.Struct, frozen=True):
    """Rows and bytes that would be redelivered, and those of the first entry."""

    rows: int
    size_bytes: int
    head_rows: int
    head_bytes: int


class DecidedDelivery(msgspec.Struct, frozen=True):
    """Decided batch. `record` is the number of its delivery record.

    `record` is 0 for an empty batch. Without `explicit` it is also 0 for a range without acknowledged rows. Neither
    needs a record. `position` is the start of the next batch. `dead`: the number of a batch of dead letters that must
    be written first (0: none). `back_…`: the redelivered part of the batch.
    """

    record: int
    position: Position
    dead: int = 0
    back_rows: int = 0
    back_bytes: int = 0


class AskDelivery(CursorRequest, frozen=True):
    """Request for a delivery record by number; -1: that of the dead letters, 0: the newest, without its ranges."""

    record: Int64


class Delivery(msgspec.Struct, frozen=True):
    """Delivery record: its number (0: there is none), the start of the next batch, and its ranges.

    If the newest was requested, `now_ms` is the time that ranges are stamped with.
    """

    record: int
    position: Position
    shares: list[DeliveredRange] = []
    now_ms: int = 0


class AckDeadLetters(CursorRequest, frozen=True):
    """Request to acknowledge the batch `dead` of dead letters, after it was written to the dead-letter ledger."""

    dead: NotNegative
