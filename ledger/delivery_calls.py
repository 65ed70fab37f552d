"""What reader and broker say to each other of batches that are more than a range: a part of `ledger.protocol`."""

from __future__ import annotations

import msgspec

from ledger.position import Position, PositionRange
from ledger.wire_names import Name
from ledger.wire_numbers import Int64, NotNegative

UNLIMITED = 2**62


class Share(msgspec.Struct, frozen=True, array_like=True):
    """Rows that are delivered together: all of a range but what `skip` holds, a PositionInfo (empty: nothing).

    `count`: how often they were delivered before. `at_ms`: when, by the broker's clock.
    """

    count: int
    range: PositionRange
    skip: bytes = b""
    at_ms: int = 0


class NextDelivery(msgspec.Struct, frozen=True):
    """Decide on the batch after record `after` (0: there was none), which reads on at `start` and up to `end`.

    `explicit`: rows stay outstanding until they are acknowledged, and come back after `ack_timeout_ms`; those that
    were delivered more than `max_redeliveries` times again (-1: no limit) are dead letters. Otherwise the batch is the
    range without what is acknowledged in it already.

    Of what comes back the batch takes at most `back_rows` and `back_bytes`, but with `back_first` at least its first
    entry; what is left of it comes with later batches. What was delivered at `before_ms` or later, by the broker's
    clock, does not come back yet, nor what of it was given back.
    """

    ledger: Name
    cursor: Name
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


class AskDue(msgspec.Struct, frozen=True):
    """What would come back with the batch after a record, if there were no limit."""

    ledger: Name
    cursor: Name
    after: NotNegative
    ack_timeout_ms: NotNegative = 0
    max_redeliveries: Int64 = -1
    before_ms: NotNegative = UNLIMITED


class Due(msgspec.Struct, frozen=True):
    """Rows and bytes that come back, and those of the entry that comes first."""

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


class AskDelivery(msgspec.Struct, frozen=True):
    """The shares of a record; of the dead letters for -1, of the newest record for 0."""

    ledger: Name
    cursor: Name
    record: Int64


class Delivery(msgspec.Struct, frozen=True):
    """A record: its number (0: there is none), where the batch after it reads on, and what it delivers.

    Of the newest, when it was asked for, `now_ms` is the time that shares are stamped with.
    """

    record: int
    position: Position
    shares: list[Share] = []
    now_ms: int = 0


class BuryDead(msgspec.Struct, frozen=True):
    """The dead letters of this number stand in another ledger: acknowledge them."""

    ledger: Name
    cursor: Name
    dead: NotNegative
