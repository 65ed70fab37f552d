"""Offset of a stream: the JSON value that Spark stores in its checkpoint.

The page docs/concepts.md explains the words delivery record, incarnation and segment.

    {"ledgers": {"public/default/persistent/orders": {"entry": 18, "id": "<incarnation>", "ledger": 3}}, "v": 1}

Rules
- `ledger` and `entry` are the position after the last entry read. `id` is the ledger's incarnation, which changes if
  the ledger is deleted and created again. Each partition is a ledger in the map.
- Spark compares offsets as JSON text. So keys are sorted, and an unchanged offset is returned unchanged.
- If a batch skips acknowledged rows or redelivers rows, its end offset has `"delivery": n`. The broker's delivery
  record n lists the rows of the batch.
- Spark's checkpoint has only the ends of batches. If a ledger of a batch does not start at the start offset, the end
  offset has the real start: `"from": {name: [ledger, entry]}`. `from` takes precedence over the start offset. There are
  three such cases:
  - the first batch of a query, whose initial offset has `"initial": true`. Reason: if this batch is repeated, a new
    process computes the initial offset again. A start at `latest` may then be a later position.
  - a ledger that is found while the query runs
  - a ledger that has lost entries
- A ledger that is in the start offset and not in the end offset was deleted.
- If a batch reads a published table, the end offset has the table's id and version, and the last segment of each
  ledger: `"history": {"id": …, "upTo": {name: ledger}, "version": …}`. Rows up to that segment are read from the table,
  later rows from the log. The position of a row is the same in both. If a batch reads only the log, `history` has only
  the table's id. Offsets with `history` have `"v": 2`.
- `"store": {"at": <place>, "id": <store's id>}` is the store of the ledgers. A checkpoint of another store is refused
  (`require_store`). Offsets of earlier versions have no `store`, and earlier versions ignore it. So `v` is the same.
- Spark 4.0 and 4.1 do not ask a source for a progress report (`progress.py`). So the end offset of a batch contains the
  report: `"report": {…}`. The rows of a batch do not depend on the report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange

OFFSET_VERSION = 1
HISTORY_VERSION = 2
REPORT_KEY = "report"


@dataclass(frozen=True, slots=True)
class LedgerOffset:
    """Offset of one ledger. `delivery` is the number of the delivery record of the batch that ends here, or 0."""

    position: Position
    incarnation: str
    delivery: int = 0


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Range of entries of one incarnation of a ledger."""

    ledger: str
    incarnation: str
    range: PositionRange


@dataclass(frozen=True, slots=True)
class HistoryPin:
    """Version of a published table that a batch reads, and the last segment of each ledger in this version.

    Version -1 means that the batch does not read the table.
    """

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
class OffsetStore:
    """Store of an offset: its id, and the place at which the query reached it."""

    store_id: str
    place: str

    def to_json(self) -> dict[str, Any]:
        return {"at": self.place, "id": self.store_id}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OffsetStore:
        return cls(str(value["id"]), str(value["at"]))


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Offset of a stream, by the full name of the ledger.

    `start_positions` are the ledgers' starts in the batch that ends here, if they are not in the start offset.
    `start_deliveries` has the number of the delivery record before each of these starts. `history` is the table that
    the batch reads. `store` is None in an offset of an earlier version, and in a stream of a bucket.
    """

    ledgers: Mapping[str, LedgerOffset]
    initial: bool = False
    start_positions: Mapping[str, Position] = field(default_factory=dict)
    start_deliveries: Mapping[str, int] = field(default_factory=dict)
    history: HistoryPin | None = None
    store: OffsetStore | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value. Keys are sorted at every level."""
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
        if self.store is not None:
            value["store"] = self.store.to_json()
        value["v"] = OFFSET_VERSION if self.history is None else HISTORY_VERSION
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Return the offset of a checkpoint. Raises Unsupported for another version and Corrupt for another shape."""
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
                OffsetStore.from_json(value["store"]) if "store" in value else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as wrong:
            raise Corrupt(f"the checkpoint's offset {dict(value)} cannot be read: {wrong!r}") from wrong

    def advanced(
        self,
        ends: Mapping[str, LedgerOffset],
        start_positions: Mapping[str, Position] | None = None,
        deleted: Collection[str] = (),
    ) -> StreamOffset:
        """Return the end of a batch that starts at this offset and reads to the offsets in `ends`.

        `start_positions` are the starts of ledgers that are not in this offset, or that start at another position.
        `deleted` are ledgers to remove.
        """
        ledgers = {name: at for name, at in {**self.ledgers, **ends}.items() if name not in deleted}
        first = {name: at.position for name, at in self.ledgers.items()} if self.initial else {}
        starts = {name: at for name, at in {**first, **(start_positions or {})}.items() if name in ledgers}
        deliveries = {
            name: at.delivery
            for name, at in self.ledgers.items()
            # In a new incarnation of a ledger, the numbers of delivery records restart at 1.
            if name in starts and at.delivery and at.incarnation == ledgers[name].incarnation
        }
        return StreamOffset(ledgers, False, starts, deliveries, store=self.store)


def delivered(start: StreamOffset, end: StreamOffset) -> dict[str, LedgerOffset]:
    """Return the ledgers for which a delivery record lists the rows of the batch from `start` to `end`."""
    if end.initial or start == end:
        return {}
    recorded = {}
    for name, last in end.ledgers.items():
        first = start.ledgers.get(name)
        before = (
            end.start_deliveries.get(name, 0) if name in end.start_positions else 0 if first is None else first.delivery
        )
        if last.delivery and last.delivery != before:
            recorded[name] = last
    return recorded


def batch_range(name: str, start: StreamOffset, end: StreamOffset) -> PositionRange:
    """Return the range of one ledger in the batch from `start` to `end`. The ledger must be in `end`."""
    if end.initial or start == end:
        return PositionRange(end.ledgers[name].position, end.ledgers[name].position)
    return _range(name, start, end).range


def batch_ranges(start: StreamOffset, end: StreamOffset) -> list[LedgerRange]:
    """Return the ranges of the batch from `start` to `end`, without the ledgers that `delivered` returns.

    Raises Corrupt if a range ends before its start.
    """
    if end.initial or start == end:
        # A batch that ends at the initial offset is empty, even if a later process computes another initial offset.
        return []
    ranges = [_range(name, start, end) for name, last in sorted(end.ledgers.items()) if not last.delivery]
    return [planned for planned in ranges if planned.range]


def _range(name: str, start: StreamOffset, end: StreamOffset) -> LedgerRange:
    last = end.ledgers[name]
    first = start.ledgers.get(name)
    if name in end.start_positions:
        position = end.start_positions[name]
    elif first is None:
        position = EARLIEST
    elif first.incarnation != last.incarnation:
        raise Corrupt(
            f"the batch begins in {name} incarnation {first.incarnation} and ends in incarnation {last.incarnation}",
            hint="The checkpoint was changed by hand, or mixes two queries",
        )
    else:
        position = first.position
    if position > last.position:
        raise Corrupt(
            f"the batch of {name} begins at {position} and ends before it, at {last.position}",
            hint="The checkpoint is older than the subscription, or mixes two queries; nothing was read",
        )
    return LedgerRange(name, last.incarnation, PositionRange(position, last.position))


def require_addressed(offset: StreamOffset, names: Collection[str], reads: str) -> None:
    """Raise Refused if the offset has a ledger that is not in `names`, because the checkpoint is then of another query.

    `reads` names the ledgers of the query, for the error.
    """
    others = sorted(set(offset.ledgers) - set(names))
    if others:
        raise Refused(
            f"the checkpoint is of ledger {', '.join(others[:5])}, the query reads {reads}",
            hint="Use a separate checkpoint for each query",
        )


def require_store(found: OffsetStore | None, store: OffsetStore, former: Callable[[], Collection[str]]) -> None:
    """Raise Refused if a checkpoint is of another store than the query. `failOnDataLoss` does not matter.

    `former` returns the earlier ids of a copy. A copy continues a checkpoint of its original, because it has the same
    ledgers. The copy's next batch makes the checkpoint its own, and the original then refuses it.
    """
    if found is None or found.store_id == store.store_id or found.store_id in former():
        return
    back = f"Set option 'store' to {found.place!r}. Or start with a new checkpoint"
    raise Refused(
        f"the checkpoint is of store {found.store_id} at {found.place}, the query reads store {store.store_id} at "
        f"{store.place}",
        hint=back if found.place != store.place else "Restore the former store here. Or start with a new checkpoint",
    )


def require_no_table(end: StreamOffset) -> None:
    """Raise Refused if the batch reads a published table. Called by queries without option `history`."""
    if end.history is not None and end.history.version >= 0:
        raise Refused(
            f"the repeated batch reads version {end.history.version} of table {end.history.table_id}, and the query "
            "names no table",
            hint="Set option 'history' as before, at least until this batch is done",
        )


def require_subscription(recorded: Mapping[str, LedgerOffset], name: str | None) -> None:
    """Raise Refused if a batch has delivery records (the result of `delivered`), but the query has no subscription."""
    if recorded and name is None:
        raise Refused(
            f"the repeated batch was planned for a subscription of {min(recorded)}, and the query names none",
            hint="Set options 'subscription' and 'ackMode' as before, at least until this batch is done",
        )


class NewestOffsets(NamedTuple):
    """Newest batch of a checkpoint: whether Spark has committed it, and its offsets by the number of the source."""

    number: int
    committed: bool
    offsets: dict[int, StreamOffset]


def newest_batch(checkpoint: Path) -> NewestOffsets:
    """Read the newest batch of a checkpoint in a local directory. Sources of other formats are left out.

    Spark's file of a batch has a line with the version, a line of metadata, and then a line for each source.
    """
    numbers = [int(file.name) for file in (checkpoint / "offsets").glob("*") if file.name.isdecimal()]
    if not numbers:
        raise NotFound(
            f"{checkpoint} is no checkpoint with a batch: it has no file offsets/NUMBER",
            hint="Name the folder of option 'checkpointLocation'. Copy a checkpoint in a bucket to this host first",
        )
    file = checkpoint / "offsets" / str(max(numbers))
    offsets = {}
    for source, line in enumerate(file.read_text(encoding="utf-8").splitlines()[2:]):
        try:
            value = json.loads(line)
        except JSON_FAULTS:
            continue
        if isinstance(value, dict) and "ledgers" in value:
            offsets[source] = StreamOffset.from_json(value)
    if not offsets:
        raise NotFound(f"{file} has no offset of a ledger", hint="Name the checkpoint of a query that reads a ledger")
    return NewestOffsets(max(numbers), (checkpoint / "commits" / file.name).exists(), offsets)
