"""Position of an entry: `(ledger_id, entry_id)`, in the order of the log. `ledger_id` is the id of a segment.

A segment is one file of a managed ledger. Pulsar calls a segment a ledger, hence the name of the field.

Invariants
- Segment ids rise along a managed ledger, and a store never reuses one. Entry ids count from 0 in each segment.
- A range is half-open, `[start, end)`. A reader's offset is the position *after* its last entry, `last.next()`. The
  end of an empty log is `Position(-1, 0)`.

A message id is printed as Pulsar's clients print it: `ledger:entry:partition[:batch index]`. A batch index of -1 stands
for a message that is an entry of its own. A partition of -1 stands for a ledger without partitions.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

_MAX = 2**63 - 1
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=_MAX)]


class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Position of an entry. Positions compare by segment id, then by entry id."""

    ledger_id: _Int64
    entry_id: _Int64

    def next(self) -> Position:
        """Return the next position in the same segment. The segment may end before it."""
        return Position(self.ledger_id, self.entry_id + 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    def _repr_html_(self) -> str:
        """Return the picture of the position for a notebook: its segment and its entry."""
        if self == LATEST:
            return _boxes("after the last entry")
        if self.ledger_id < 0:
            return _boxes("before the first entry")
        return _boxes(f"segment {self.ledger_id}", f"entry {self.entry_id}" if self.entry_id >= 0 else "its start")

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text that `str` returns. Raises ValueError with any other text."""
        ledger, separator, entry = text.partition(":")
        if not separator:
            raise ValueError(f"position {text!r} is not of the form SEGMENT:ENTRY")
        return cls(int(ledger), int(entry))


EARLIEST = Position(-1, -1)
"""Position before every entry."""
LATEST = Position(_MAX, _MAX)
"""Position after every entry."""


def _boxes(*texts: str) -> str:
    """Return HTML with a box for each text. The colours are those of the page around it."""
    box = '<span style="border:1px solid currentColor;border-radius:4px;padding:1px 7px;margin-right:3px">'
    return f"<span>{''.join(f'{box}{text}</span>' for text in texts)}</span>"


class PositionRange(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Entries from `start` up to, and not including, `end`."""

    start: Position
    end: Position

    def __bool__(self) -> bool:
        return self.start < self.end

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


class MessageId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Position of one message. Ids of one partition compare in the order of its log."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    partition: int = -1

    @property
    def position(self) -> Position:
        """Position of the entry that has the message."""
        return Position(self.ledger_id, self.entry_id)

    @property
    def is_duplicate(self) -> bool:
        """Whether de-duplication dropped the message, because the log has it already. Then its position is unknown."""
        return self.ledger_id < 0

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"
