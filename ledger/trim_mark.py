"""How far a managed ledger was trimmed: the first position that retention left, and the rows before it.

    property "ledger.trimmed" of the record:  LEDGER:ENTRY ROWS

Kept because the ledgers themselves are gone from the list: a reader at the end of the last of them has lost nothing,
one before it has, and the count of rows goes on from where it was.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from ledger.errors import Corrupt
from ledger.position import Position
from ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo

_PROPERTY = "ledger.trimmed"


class TrimMark(NamedTuple):
    """Everything before `position` is gone; `rows` of the log were there."""

    position: Position
    rows: int

    @classmethod
    def of(cls, info: ManagedLedgerInfo, where: str) -> Self:
        """The mark that a record states; raises Corrupt naming `where`."""
        for pair in info.properties:
            if pair.key == _PROPERTY:
                position, _, rows = pair.value.partition(" ")
                try:
                    return cls(Position.parse(position), int(rows))
                except ValueError as wrong:
                    raise Corrupt(f"{where} states {pair.value!r} as {_PROPERTY}: {wrong}") from wrong
        return cls(*NOTHING_TRIMMED)

    def put(self, info: ManagedLedgerInfo) -> None:
        """State it in a record, instead of what was stated before."""
        for pair in info.properties:
            if pair.key == _PROPERTY:
                pair.value = str(self)
                return
        info.properties.add(key=_PROPERTY, value=str(self))

    def __str__(self) -> str:
        return f"{self.position} {self.rows}"


NOTHING_TRIMMED = TrimMark(Position(-1, 0), 0)
