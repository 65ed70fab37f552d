"""What a client and the broker say to each other about cursors and leases: a part of `ledger.protocol`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ledger.position import Position, PositionRange
from ledger.wire_names import Name
from ledger.wire_numbers import Int64

LEASE_MS_MAX = 24 * 3600 * 1000


class OpenCursor(msgspec.Struct, frozen=True):
    """Open a durable cursor, creating it with `start` as its next position to read if it does not exist."""

    ledger: Name
    cursor: Name
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


class NameCursor(msgspec.Struct, frozen=True):
    """A request about one cursor. Not `precise`: rows and bytes of its backlog are estimated, and no file is read."""

    ledger: Name
    cursor: Name
    precise: bool = True


class MarkDelete(msgspec.Struct, frozen=True):
    """Everything before `next_position` is acknowledged. Going back is ignored: acknowledgement is monotone.

    `replay_floor`: the end of the last batch known to be in the reader's commit log; never moves back either.
    """

    ledger: Name
    cursor: Name
    next_position: Position
    replay_floor: Position | None = None


class ResetCursor(msgspec.Struct, frozen=True):
    """Move a cursor to any position, backwards too."""

    ledger: Name
    cursor: Name
    next_position: Position


class SkipEntries(msgspec.Struct, frozen=True):
    """Acknowledge the next `entries` entries that deliver rows and are not acknowledged; all there are, for -1.

    They are counted from `start`, where the caller saw the cursor, and end at `end`, where it saw the log's: so that a
    call whose answer was lost may be repeated.
    """

    ledger: Name
    cursor: Name
    entries: Int64
    start: Position
    end: Position


class CursorProperties(msgspec.Struct, frozen=True):
    """Set and remove properties of a cursor; they are kept with it and mean nothing to the broker."""

    ledger: Name
    cursor: Name
    values: dict[Name, str] = {}
    remove: list[Name] = []


class AskHoles(msgspec.Struct, frozen=True):
    """What of a range is acknowledged by a cursor, beyond its mark-delete. `whole`: its mark-delete in any case."""

    ledger: Name
    cursor: Name
    range: PositionRange
    whole: bool = False


class Holes(msgspec.Struct, frozen=True):
    """A PositionInfo of one moment: mark-delete, and what of the range is acknowledged beyond it.

    Empty when nothing is, unless the `whole` was asked for.
    """

    info: bytes = b""


class AcquireLease(msgspec.Struct, frozen=True):
    """Take or renew the lease of a subscription. `holder` is `host/pid/start/id`; `ttl_ms` from now.

    A lease is granted when it is free, run out, the holder's own, or held by a process of the broker's host that is
    gone. Otherwise `LeaseReply.granted` is false and the reply names the holder and the end of its lease.
    """

    ledger: Name
    cursor: Name
    holder: Name
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=LEASE_MS_MAX)]


class LeaseReply(msgspec.Struct, frozen=True):
    """The lease as it stands after the call."""

    granted: bool
    holder: str
    until_ms: int


class ReleaseLease(msgspec.Struct, frozen=True):
    """Give a lease back; ignored unless `holder` holds it."""

    ledger: Name
    cursor: Name
    holder: Name
