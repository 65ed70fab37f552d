"""What a stream remembers of where it is: a small JSON value that Spark keeps in its checkpoint.

    {"ledgers": {"public/default/persistent/orders": {"entry": 18, "id": "<incarnation>", "ledger": 3}}, "v": 1}

Rules
- The position is the one after the last entry read. `id` is the ledger's incarnation: a ledger deleted and made again
  is not the one that was read.
- Spark compares offsets as JSON text, so keys always stand in the same order, and an offset that did not move is
  handed back as it came.
- A batch that is more than a range, because rows in it are acknowledged already or come back, ends in an offset with
  `"delivery": n`: the broker's record n says what it delivers.
- Spark's log holds only the ends of batches, and asks for the initial offset again when batch 0 is repeated by a new
  process; by then `latest` is somewhere else. So an initial offset says `"initial": true`, and the end of a batch that
  began there carries where it began, `"from": {name: [ledger, entry]}`, which goes before the recomputed start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ledger.errors import Corrupt, Refused, Unsupported
from ledger.position import Position, PositionRange

OFFSET_VERSION = 1


@dataclass(frozen=True, slots=True)
class LedgerOffset:
    """How far one ledger has been read. `delivery`: the record of what the batch that ends here delivered (0: none)."""

    position: Position
    incarnation: str
    delivery: int = 0


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream has been read: a map by canonical ledger name."""

    ledgers: Mapping[str, LedgerOffset]
    initial: bool = False
    began: Mapping[str, Position] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The canonical value: keys sorted at every level."""
        value: dict[str, Any] = {}
        if self.began:
            value["from"] = {name: [at.ledger_id, at.entry_id] for name, at in sorted(self.began.items())}
        if self.initial:
            value["initial"] = True
        value["ledgers"] = {
            name: ({"delivery": offset.delivery} if offset.delivery else {})
            | {
                "entry": offset.position.entry_id,
                "id": offset.incarnation,
                "ledger": offset.position.ledger_id,
            }
            for name, offset in sorted(self.ledgers.items())
        }
        value["v"] = OFFSET_VERSION
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Read an offset from a checkpoint; one of another version or shape is refused."""
        version = value.get("v")
        if version != OFFSET_VERSION:
            raise Unsupported(
                f"the checkpoint's offset has version {version!r}, this release reads version {OFFSET_VERSION}",
                hint="Run the release that wrote the checkpoint, or a newer one",
            )
        try:
            return cls(
                {
                    str(name): LedgerOffset(
                        Position(int(at["ledger"]), int(at["entry"])), str(at["id"]), int(at.get("delivery", 0))
                    )
                    for name, at in value["ledgers"].items()
                },
                bool(value.get("initial", False)),
                {str(name): Position(int(at[0]), int(at[1])) for name, at in value.get("from", {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as wrong:
            raise Corrupt(f"the checkpoint's offset {dict(value)} cannot be read: {wrong!r}") from wrong

    def of(self, name: str) -> LedgerOffset:
        """The offset of one ledger; a checkpoint of other ledgers is refused naming both."""
        if name not in self.ledgers:
            raise Refused(
                f"the checkpoint is of ledger {', '.join(sorted(self.ledgers))}, the query reads {name}",
                hint="Use a checkpoint of its own for each query",
            )
        return self.ledgers[name]

    def moved_to(self, name: str, position: Position, delivery: int = 0) -> StreamOffset:
        """The end of a batch that begins at this offset and reads `name` up to `position`."""
        here = self.of(name)
        began = {ledger: offset.position for ledger, offset in self.ledgers.items()} if self.initial else {}
        return StreamOffset({**self.ledgers, name: LedgerOffset(position, here.incarnation, delivery)}, False, began)


def batch_range(name: str, start: StreamOffset, end: StreamOffset) -> PositionRange:
    """The entries of one ledger in the batch from `start` to `end`; a range that runs backwards is refused."""
    first, last = start.of(name), end.of(name)
    if end.initial:
        # A batch that ended where the stream began holds nothing, wherever a later process would begin.
        return PositionRange(last.position, last.position)
    began = end.began.get(name, first.position) if start.initial else first.position
    if not (start.initial and name in end.began) and first.incarnation != last.incarnation:
        raise Corrupt(
            f"the batch begins in {name} incarnation {first.incarnation} and ends in incarnation {last.incarnation}",
            hint="The checkpoint was changed by hand, or mixes two queries",
        )
    if began > last.position:
        raise Corrupt(
            f"the batch of {name} begins at {began} and ends before it, at {last.position}",
            hint="The checkpoint is older than the subscription, or mixes two queries; nothing was read",
        )
    return PositionRange(began, last.position)
