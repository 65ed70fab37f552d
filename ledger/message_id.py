"""Where a message is, as Pulsar's clients print it: `ledger:entry:partition[:batch index]`.

A batch index of -1 is a message that is an entry of its own; a partition of -1 a ledger that has none.
"""

from __future__ import annotations

import msgspec

from pyspark_ledger.ledger.position import Position


class MessageId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The place of one message. Compares as the log of one partition is ordered."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    partition: int = -1

    @property
    def position(self) -> Position:
        """The entry that holds it."""
        return Position(self.ledger_id, self.entry_id)

    @property
    def is_duplicate(self) -> bool:
        """Whether the message was in the log already and was not written: its place is not known."""
        return self.ledger_id < 0

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"
