"""What reader and broker say to each other of batches that are more than a range: a part of `ledger.protocol`."""

from __future__ import annotations

import msgspec

from ledger.position import Position, PositionRange
from ledger.wire_numbers import Int64, NotNegative


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
    """

    ledger: str
    cursor: str
    after: NotNegative
    start: Position
    end: Position
    explicit: bool
    ack_timeout_ms: NotNegative = 0
    max_redeliveries: Int64 = -1


class DecidedDelivery(msgspec.Struct, frozen=True):
    """The record of the batch, durable; 0 when there is nothing to deliver, or nothing but the plain range.

    `position` is where the batch after it reads on. `dead`: the number of a batch of dead letters that has to be buried
    first (0: none).
    """

    record: int
    position: Position
    dead: int = 0


class AskDelivery(msgspec.Struct, frozen=True):
    """The shares of a record; of the dead letters for -1, of the newest record for 0."""

    ledger: str
    cursor: str
    record: Int64


class Delivery(msgspec.Struct, frozen=True):
    """A record: its number (0: there is none), where the batch after it reads on, and what it delivers."""

    record: int
    position: Position
    shares: list[Share] = []


class BuryDead(msgspec.Struct, frozen=True):
    """The dead letters of this number stand in another ledger: acknowledge them."""

    ledger: str
    cursor: str
    dead: NotNegative
