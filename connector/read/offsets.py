"""What a stream remembers of where it is: a small JSON value that Spark keeps in its checkpoint.

    {"ledgers": {"public/default/persistent/orders": {"entry": 18, "id": "<incarnation>", "ledger": 3}}, "v": 1}

Rules
- The position is the one after the last entry read. `id` is the ledger's incarnation: a ledger deleted and made again
  is not the one that was read. Partitions are ledgers of their own.
- Spark compares offsets as JSON text, so keys always stand in the same order, and an offset that did not move is
  handed back as it came.
- A batch that is more than a range, because rows in it are acknowledged already or come back, ends in an offset with
  `"delivery": n`: the broker's record n says what it delivers.
- Spark's log holds only the ends of batches. So what does not simply begin at the start offset says so in the end of
  its batch, `"from": {name: [ledger, entry]}`, which goes before the start: where the whole query began (an initial
  offset says `"initial": true`; a new process computes it anew, and `latest` is somewhere else by then), where a ledger
  begins that was found while the query ran, and where one goes on that has lost entries.
- A ledger that is in the start and not in the end was deleted.
- A batch of which a part is in a published table names the table and its version, and how far each ledger is in it:
  `"history": {"id": …, "upTo": {name: ledger}, "version": …}`. Its rows up to there come from the table, those after it
  from the log. Where a row is changes nothing of its position. A batch that is from the log alone names the table that
  its query knows, only. Such offsets are of version 2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange

OFFSET_VERSION = 1
HISTORY_VERSION = 2


@dataclass(frozen=True, slots=True)
class LedgerOffset:
    """How far one ledger has been read. `delivery`: the record of what the batch that ends here delivered (0: none)."""

    position: Position
    incarnation: str
    delivery: int = 0


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Entries of one ledger, of the incarnation that was planned."""

    ledger: str
    incarnation: str
    range: PositionRange


@dataclass(frozen=True, slots=True)
class HistoryPin:
    """A version of a published table, and up to which ledger id each log is in it; -1: nothing is read of it."""

    table_id: str
    version: int = -1
    up_to: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        if self.version < 0:
            return {"id": self.table_id}
        return {"id": self.table_id, "upTo": dict(sorted(self.up_to.items())), "version": self.version}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HistoryPin:
        up_to = {str(name): int(ledger) for name, ledger in value.get("upTo", {}).items()}
        return cls(str(value["id"]), int(value.get("version", -1)), up_to)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream has been read: a map by canonical ledger name.

    `began` says where the batch that ends here began, where its start does not; `before` after which record, if any.
    `history` is the table that a part of that batch is read from.
    """

    ledgers: Mapping[str, LedgerOffset]
    initial: bool = False
    start_positions: Mapping[str, Position] = field(default_factory=dict)
    start_deliveries: Mapping[str, int] = field(default_factory=dict)
    history: HistoryPin | None = None

    def to_json(self) -> dict[str, Any]:
        """The canonical value: keys sorted at every level."""
        value: dict[str, Any] = {}
        if self.start_positions:
            value["from"] = {
                name: [
                    at.ledger_id,
                    at.entry_id,
                    *([self.start_deliveries[name]] if name in self.start_deliveries else []),
                ]
                for name, at in sorted(self.start_positions.items())
            }
        if self.history is not None:
            value["history"] = self.history.to_json()
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
        value["v"] = OFFSET_VERSION if self.history is None else HISTORY_VERSION
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Read an offset from a checkpoint; one of another version or shape is refused."""
        version = value.get("v")
        if version != (HISTORY_VERSION if "history" in value else OFFSET_VERSION):
            raise Unsupported(
                f"the checkpoint's offset has version {version!r}, this release reads versions {OFFSET_VERSION} and "
                f"{HISTORY_VERSION}",
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
                {str(name): int(at[2]) for name, at in value.get("from", {}).items() if len(at) > 2},
                HistoryPin.from_json(value["history"]) if "history" in value else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as wrong:
            raise Corrupt(f"the checkpoint's offset {dict(value)} cannot be read: {wrong!r}") from wrong

    def advanced(
        self,
        moved: Mapping[str, LedgerOffset],
        start_positions: Mapping[str, Position] | None = None,
        deleted: Collection[str] = (),
    ) -> StreamOffset:
        """The end of a batch that begins at this offset and reads to `moved`.

        `began` says where ledgers begin that this offset does not have, or has elsewhere; `gone` are no more.
        """
        ledgers = {name: at for name, at in {**self.ledgers, **moved}.items() if name not in deleted}
        first = {name: at.position for name, at in self.ledgers.items()} if self.initial else {}
        told = {name: at for name, at in {**first, **(start_positions or {})}.items() if name in ledgers}
        before = {
            name: at.delivery
            for name, at in self.ledgers.items()
            # Records of a ledger that was made again are counted anew.
            if name in told and at.delivery and at.incarnation == ledgers[name].incarnation
        }
        return StreamOffset(ledgers, False, told, before)


def delivered(start: StreamOffset, end: StreamOffset) -> dict[str, LedgerOffset]:
    """The ledgers of which the batch from `start` to `end` delivers what a record says, not a range."""
    if end.initial or start == end:
        return {}
    found = {}
    for name, last in end.ledgers.items():
        first = start.ledgers.get(name)
        before = (
            end.start_deliveries.get(name, 0) if name in end.start_positions else 0 if first is None else first.delivery
        )
        if last.delivery and last.delivery != before:
            found[name] = last
    return found


def batch_range(name: str, start: StreamOffset, end: StreamOffset) -> PositionRange:
    """The entries of one ledger, which is in `end`, in the batch from `start` to `end`."""
    if end.initial or start == end:
        return PositionRange(end.ledgers[name].position, end.ledgers[name].position)
    return _range(name, start, end).range


def batch_ranges(start: StreamOffset, end: StreamOffset) -> list[LedgerRange]:
    """The entries of the batch from `start` to `end`, by ledger; a range that runs backwards is refused.

    Those of ledgers that are `delivered` by a record are not among them.
    """
    if end.initial or start == end:
        # A batch that ended where the stream began holds nothing, wherever a later process would begin.
        return []
    ranges = [_range(name, start, end) for name, last in sorted(end.ledgers.items()) if not last.delivery]
    return [one for one in ranges if one.range]


def _range(name: str, start: StreamOffset, end: StreamOffset) -> LedgerRange:
    last = end.ledgers[name]
    first = start.ledgers.get(name)
    if name in end.start_positions:
        began = end.start_positions[name]
    elif first is None:
        began = EARLIEST
    elif first.incarnation != last.incarnation:
        raise Corrupt(
            f"the batch begins in {name} incarnation {first.incarnation} and ends in incarnation {last.incarnation}",
            hint="The checkpoint was changed by hand, or mixes two queries",
        )
    else:
        began = first.position
    if began > last.position:
        raise Corrupt(
            f"the batch of {name} begins at {began} and ends before it, at {last.position}",
            hint="The checkpoint is older than the subscription, or mixes two queries; nothing was read",
        )
    return LedgerRange(name, last.incarnation, PositionRange(began, last.position))


def require_addressed(offset: StreamOffset, names: Collection[str], what: str) -> None:
    """Refuse a checkpoint of other ledgers than those that the query reads; `names` are those of it that it does."""
    others = sorted(set(offset.ledgers) - set(names))
    if others:
        raise Refused(
            f"the checkpoint is of ledger {', '.join(others[:5])}, the query reads {what}",
            hint="Use a checkpoint of its own for each query",
        )


def require_no_table(end: StreamOffset) -> None:
    """Refuse a batch of which a part was planned from a table, where no table is read."""
    if end.history is not None and end.history.version >= 0:
        raise Refused(
            f"the batch that is run again reads version {end.history.version} of table {end.history.table_id}, and the "
            "query names no table",
            hint="Give option 'history' as before, at least until this batch is done",
        )


def require_subscription(found: Mapping[str, LedgerOffset], name: str | None) -> None:
    """Refuse a batch whose rows a subscription's records say, where there is no subscription; it is `delivered`."""
    if found and name is None:
        raise Refused(
            f"the batch that is run again was decided for a subscription of {min(found)}, and the query names none",
            hint="Give options 'subscription' and 'ackMode' as before, at least until this batch is done",
        )
