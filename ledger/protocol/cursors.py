"""Messages about cursors, leases, acknowledgements and deliveries.

A part of `ledger.protocol.actions`, whose rules hold here too.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.settings.setting import Int64, NotNegative

LEASE_MS_MAX = 24 * 3600 * 1000


class CursorRequest(msgspec.Struct, frozen=True):
    """A request about one cursor of a managed ledger."""

    ledger: Name
    cursor: Name


class OpenCursor(CursorRequest, frozen=True):
    """Open a durable cursor, creating it with `start` as its next position to read if it does not exist."""

    start: Position
    create: bool = True


class CursorState(msgspec.Struct, frozen=True):
    """A durable cursor. `next_position` is the first position not acknowledged; the rest is what it has left.

    An entry that delivers no row, a marker of a run, is not counted in `backlog_entries`; an estimate counts it.
    `acknowledged_…` lie beyond `next_position`: ranges and entries acknowledged out of order, which the backlog leaves
    out; of `partial_entries` some rows are. `cursor_ledger` is where all that is kept (-1: in the record).
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
    """Name a cursor. Not `precise`: rows and bytes of its backlog are estimated, and no file is read."""

    precise: bool = True


class MarkDelete(CursorRequest, frozen=True):
    """Acknowledge everything before `next_position`. Going back is ignored: acknowledgement is monotone.

    `replay_floor`: the end of the last batch known to be in the reader's commit log; never moves back either.
    """

    next_position: Position
    replay_floor: Position | None = None


class ResetCursor(CursorRequest, frozen=True):
    """Move a cursor to any position, backwards too."""

    next_position: Position


class SkipEntries(CursorRequest, frozen=True):
    """Acknowledge the next `entries` entries that deliver rows and are not acknowledged; all there are, for -1.

    They are counted from `start`, where the caller saw the cursor, and end at `end`, where it saw the log's: so that a
    call whose answer was lost may be repeated.
    """

    entries: Int64
    start: Position
    end: Position


class CursorProperties(CursorRequest, frozen=True):
    """Set and remove properties of a cursor; they are kept with it and mean nothing to the broker."""

    values: dict[Name, str] = {}
    remove: list[Name] = []


class AskAckedRanges(CursorRequest, frozen=True):
    """Ask for the positions of a range that a cursor acknowledged beyond its mark-delete. `whole`: mark-delete, too."""

    range: PositionRange
    whole: bool = False


class AckedRanges(msgspec.Struct, frozen=True):
    """A PositionInfo of one moment: mark-delete, and the acknowledged positions of the range beyond it.

    Empty if there are none, unless `whole` was set.
    """

    info: bytes = b""


class AcquireLease(CursorRequest, frozen=True):
    """Take or renew the lease of a subscription. `holder` is `host/pid/start/id`; `ttl_ms` from now.

    A lease is granted when it is free, run out, the holder's own, or held by a process of the broker's host that is
    gone. Otherwise `LeaseReply.granted` is false and the reply names the holder and the end of its lease.
    """

    holder: Name
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=LEASE_MS_MAX)]


class LeaseReply(msgspec.Struct, frozen=True):
    """The lease as it stands after the call."""

    granted: bool
    holder: str
    until_ms: int


class ReleaseLease(CursorRequest, frozen=True):
    """Give a lease back; ignored unless `holder` holds it."""

    holder: Name


UNLIMITED = 2**62


class DeliveredRange(msgspec.Struct, frozen=True, array_like=True):
    """Rows that are delivered together: all of a range but what `skip` holds, a PositionInfo (empty: nothing).

    `count`: how often they were delivered before. `at_ms`: when, by the broker's clock.
    """

    count: int
    range: PositionRange
    skip: bytes = b""
    at_ms: int = 0


class NextDelivery(CursorRequest, frozen=True):
    """Decide on the batch after record `after` (0: there was none), which reads on at `start` and up to `end`.

    `explicit`: rows stay outstanding until they are acknowledged, and come back after `ack_timeout_ms`; those that
    were delivered more than `max_redeliveries` times again (-1: no limit) are dead letters. Otherwise the batch is the
    range without what is acknowledged in it already.

    Of what comes back the batch takes at most `back_rows` and `back_bytes`, but with `back_first` at least its first
    entry; what is left of it comes with later batches. What was delivered at `before_ms` or later, by the broker's
    clock, does not come back yet, nor what of it was given back.
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
    """Ask which rows would be redelivered with the batch after a record, if there were no limit."""

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
    """The record of the batch, durable; 0 when there is nothing to deliver, or nothing but the plain range.

    `position` is where the batch after it reads on. `dead`: the number of a batch of dead letters that has to be buried
    first (0: none). `back_…`: what of the batch comes back.
    """

    record: int
    position: Position
    dead: int = 0
    back_rows: int = 0
    back_bytes: int = 0


class AskDelivery(CursorRequest, frozen=True):
    """The shares of a record; of the dead letters for -1, of the newest record for 0."""

    record: Int64


class Delivery(msgspec.Struct, frozen=True):
    """A record: its number (0: there is none), where the batch after it reads on, and what it delivers.

    Of the newest, when it was asked for, `now_ms` is the time that shares are stamped with.
    """

    record: int
    position: Position
    shares: list[DeliveredRange] = []
    now_ms: int = 0


class AckDeadLetters(CursorRequest, frozen=True):
    """Acknowledge the dead letters of this number: another ledger has them."""

    dead: NotNegative
