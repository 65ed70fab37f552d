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

from collections.abc import Callable, Collection, Mapping

import msgspec

from ledger.errors import Refused
from ledger.position import Position
from ledger.position_info import encode_info
from ledger.position_set import PositionSet
from ledger.proto.managed_ledger_pb2 import ManagedCursorInfo, PositionInfo


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
    kept: bytes = b""

    def at(self, next_position: Position) -> Cursor:
        """The cursor with its mark-delete there, and all else as it is."""
        return msgspec.structs.replace(self, next_position=next_position)

    def kept_info(self) -> ManagedCursorInfo:
        """What its record holds beside the mark-delete: where its set is, or the set itself, and properties."""
        return ManagedCursorInfo.FromString(self.kept) if self.kept else ManagedCursorInfo(cursorsLedgerId=-1)

    def in_ledger(self, ledger_id: int) -> Cursor:
        """The cursor whose set is in a ledger of its own; -1: it has none."""
        info = self.kept_info()
        info.cursorsLedgerId = ledger_id
        del info.individualDeletedMessages[:]
        del info.batchedEntryDeletionIndexInfo[:]
        return self.keeping(info)

    def inline(self, positions: PositionSet) -> Cursor:
        """The cursor whose set is in its record, which is for small ones: as ranges, as Pulsar does it."""
        said = PositionInfo.FromString(encode_info(self.next_position, positions, as_words=False))
        info = self.in_ledger(-1).kept_info()
        info.individualDeletedMessages.extend(said.individualDeletedMessages)
        info.batchedEntryDeletionIndexInfo.extend(said.batchedEntryDeletionIndexInfo)
        return self.keeping(info)

    @property
    def properties(self) -> dict[str, str]:
        """What somebody has noted of it."""
        return {pair.name: pair.value for pair in self.kept_info().cursorProperties}

    def with_properties(self, values: Mapping[str, str], remove: Collection[str]) -> Cursor:
        """The cursor with properties set and removed."""
        kept = {name: value for name, value in self.properties.items() if name not in remove}
        info = self.kept_info()
        del info.cursorProperties[:]
        for name, value in sorted({**kept, **values}.items()):
            info.cursorProperties.add(name=name, value=value)
        return self.keeping(info)

    def keeping(self, info: ManagedCursorInfo) -> Cursor:
        """The cursor whose record says this, but for the mark-delete, which is its own."""
        info.ClearField("markDeleteLedgerId")
        info.ClearField("markDeleteEntryId")
        plain = info == ManagedCursorInfo(cursorsLedgerId=-1)
        return msgspec.structs.replace(self, kept=b"" if plain else info.SerializeToString())

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
            kept=self.in_ledger(-1).kept,
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
    """The record as Pulsar's metadata store holds it; without a ledger of its own `cursorsLedgerId` is -1."""
    info = cursor.kept_info()
    info.markDeleteLedgerId = cursor.next_position.ledger_id
    info.markDeleteEntryId = cursor.next_position.entry_id - 1
    return info


def next_position_of(info: ManagedCursorInfo) -> Position:
    """The first position that the recorded mark-delete leaves unacknowledged."""
    return Position(info.markDeleteLedgerId, info.markDeleteEntryId + 1)
