"""A durable cursor: how far one named reader of a managed ledger has acknowledged, and who may read in its name.

Pure values: a record in, a record out; the store keeps them (see `ledger.metadata`).

Invariants
- Acknowledgement is monotone: `advance` never moves back, only `reset` does.
- The cursor never passes the end of the log.
- The replay floor (the end of the last batch known to be in the reader's own commit log) is monotone too, but for a
  reset; what lies at or after the lower of the two must stay readable.
- A lease is granted when it is free, run out, the holder's own, or its holder is known to be gone.

Pulsar stores the *mark-delete* position, the last acknowledged entry; here the first position not acknowledged is
used, and `mark_delete(next) = (ledger, entry - 1)`, which may be `(ledger, -1)` just as Pulsar writes it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ledger.errors import Refused
from ledger.position import Position
from ledger.proto.managed_ledger_pb2 import ManagedCursorInfo


class Lease(msgspec.Struct, frozen=True):
    """The right to read in a cursor's name, until `until_ms`. An empty holder means that nobody has it."""

    holder: str = ""
    until_ms: int = 0


class Cursor(msgspec.Struct, frozen=True):
    """One durable cursor. `next_position` is the first position not acknowledged."""

    ledger: str
    name: str
    next_position: Position
    replay_floor: Position | None = None
    lease: Lease = Lease()

    def advance(self, next_position: Position, end: Position, replay_floor: Position | None) -> Cursor:
        """Acknowledge everything before `next_position`. Going back is ignored; beyond the end is refused."""
        self._require_within(next_position, end)
        floor = self.replay_floor
        if replay_floor is not None:
            self._require_within(replay_floor, end)
            floor = replay_floor if floor is None else max(floor, replay_floor)
        return msgspec.structs.replace(self, next_position=max(self.next_position, next_position), replay_floor=floor)

    def reset(self, next_position: Position, end: Position) -> Cursor:
        """Move anywhere, backwards too. The replay floor goes back with the cursor, never ahead of it."""
        self._require_within(next_position, end)
        floor = self.replay_floor
        return msgspec.structs.replace(
            self,
            next_position=next_position,
            replay_floor=None if floor is None else min(floor, next_position),
        )

    def with_lease(
        self, holder: str, ttl_ms: int, now_ms: int, holder_is_gone: Callable[[str], bool]
    ) -> tuple[Cursor, bool]:
        """The cursor after `holder` asked for its lease, and whether it was granted."""
        held = self.lease
        free = not held.holder or held.holder == holder or held.until_ms <= now_ms
        if not free and not holder_is_gone(held.holder):
            return self, False
        return msgspec.structs.replace(self, lease=Lease(holder, now_ms + ttl_ms)), True

    def without_lease(self, holder: str) -> Cursor:
        """The cursor after `holder` gave its lease back; unchanged when somebody else holds it."""
        if self.lease.holder != holder:
            return self
        return msgspec.structs.replace(self, lease=Lease())

    def _require_within(self, position: Position, end: Position) -> None:
        if position > end:
            raise Refused(
                f"cursor {self.name!r} of {self.ledger!r} cannot acknowledge up to {position}: the log ends at {end}",
                hint="Acknowledge only positions that were read from this ledger",
            )


def cursor_info(cursor: Cursor) -> ManagedCursorInfo:
    """The record as Pulsar's metadata store holds it: state inline, so no cursor ledger (`cursorsLedgerId` -1)."""
    return ManagedCursorInfo(
        cursorsLedgerId=-1,
        markDeleteLedgerId=cursor.next_position.ledger_id,
        markDeleteEntryId=cursor.next_position.entry_id - 1,
    )


def next_position_of(info: ManagedCursorInfo) -> Position:
    """The first position that the recorded mark-delete leaves unacknowledged."""
    return Position(info.markDeleteLedgerId, info.markDeleteEntryId + 1)
