"""Durable cursor of one name in several ledgers: in all partitions of a ledger, in a list, or in all of a pattern.

    worker = store.ledger("rides").cursor("worker")                    # of a partitioned ledger
    worker = store.cursor("worker", ledgers_pattern="rides-.*")        # of all ledgers that match
    for batch in worker.batches(ack="after"):
        work(batch.ledger, batch.table)

Rules
- Each ledger has its own cursor, with its own position. This object keeps nothing.
- A partition or a ledger that is added later gets its cursor at its first row.
- A call that needs one position, or one order of all rows, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol

from pyspark_ledger.ledger.api.cursor import Cursor
from pyspark_ledger.ledger.api.handle import Handle, closed_client
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.consumer.batch import MAX_BYTES, BatchLimits
from pyspark_ledger.ledger.consumer.deliveries import ACK_TIMEOUT
from pyspark_ledger.ledger.consumer.joined_deliveries import (
    joined_batches,
    open_cursors,
    partition_counts,
    selected_ledgers,
    selection_words,
)
from pyspark_ledger.ledger.consumer.turns import named_positions
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.ledger_selection import Addressing
from pyspark_ledger.ledger.names import partition_names, require_cursor_name, short_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.actions import AskEnd
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from pyspark_ledger.ledger.rows.row_type import Row, RowType
from pyspark_ledger.ledger.times import Time

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.consumer.batches import Batches
    from pyspark_ledger.ledger.consumer.deliveries import DeliveredBatch
    from pyspark_ledger.ledger.protocol.cursors import CursorState


@dataclass(frozen=True)
class JoinedState:
    """State of a cursor in several ledgers. `ledgers` has that of each ledger or partition, by its short name.

    state = store.ledger("rides").cursor("worker").state()
    print(state.backlog_rows, state.ledgers["rides-partition-0"].next_position)
    """

    ledgers: dict[str, CursorState]

    @property
    def backlog_entries(self) -> int:
        """The unacknowledged entries of all ledgers."""
        return sum(state.backlog_entries for state in self.ledgers.values())

    @property
    def backlog_rows(self) -> int:
        """The unacknowledged rows of all ledgers."""
        return sum(state.backlog_rows for state in self.ledgers.values())

    @property
    def backlog_bytes(self) -> int:
        """The bytes of the unacknowledged entries of all ledgers."""
        return sum(state.backlog_bytes for state in self.ledgers.values())


class ClientOwner(Protocol):
    """Handle that gave a cursor: a store or a partitioned ledger. After its `close`, the cursor refuses calls."""

    client: Client


class JoinedCursor(Handle, Generic[Row]):
    """Durable cursor of one name in several ledgers. Retention keeps the rows that it has not acknowledged."""

    def __init__(
        self, owner: ClientOwner, selection: Addressing, name: str, row_type: RowType[Row] | None = None
    ) -> None:
        self._row_type = row_type
        self._owner = owner
        self._selection = selection
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {selection_words(self._selection)}>"

    def close(self) -> None:
        """Refuse all later calls of this object. The durable cursors keep their positions."""
        owner = copy(self._owner)
        owner.client = closed_client(f"the cursor {self.name!r} of {selection_words(self._selection)}")
        self._owner = owner

    def cursors(self) -> list[Cursor[Row]]:
        """Return the cursor of each ledger or partition, for calls about one of them.

        A ledger that was added gets its cursor at its first row. Raises NotFound if the cursor was deleted.
        """
        logs, missing = _logs(self._owner.client, self._selection, self.name), list[str]()
        for log in logs:
            try:
                self._owner.client.ask(OpenCursor(log, self.name, EARLIEST, create=False))
            except NotFound:
                if len(missing) == len(logs) - 1:
                    raise
                missing.append(log)
        for log in missing:
            self._owner.client.ask(OpenCursor(log, self.name, EARLIEST))
        return [Cursor(Ledger(self._owner.client, log, self._row_type), self.name, self._row_type) for log in logs]

    def state(self, *, precise: bool = True) -> JoinedState:
        """Return the position of each ledger's cursor, and the backlogs.

        Without `precise` the broker reads no file. It estimates the rows and bytes of the backlogs from averages.
        """
        return JoinedState({_short(cursor): cursor.state(precise=precise) for cursor in self.cursors()})

    def batches(
        self,
        max_rows: int | None = None,
        max_bytes: int = MAX_BYTES,
        wait: float | None = None,
        ack: str = "explicit",
        ack_timeout: float = ACK_TIMEOUT,
        max_redeliveries: int | None = None,
    ) -> Batches[DeliveredBatch[Row]]:
        """Return a loop over the unacknowledged rows of all ledgers, which waits for new rows.

        Each batch has rows of one ledger, `batch.ledger`, and the ledgers take turns. A partition that is added, and
        a ledger that begins to match the pattern, join with their first row. `Cursor.batches` explains the arguments.
        `max_rows` and `max_bytes` are limits of a batch, not of a ledger.

        The loop holds the leases of all cursors. Raises Refused, with the ledger and the holder, if another reader has
        one of them, and then holds none. The iterator raises the error of one ledger, such as DataLoss, LeaseLost or
        NotFound. The next call of `next` goes on with the other ledgers.

            with store.ledger("rides").cursor("worker").batches(ack="after", wait=5) as batches:
                for batch in batches: work(batch.ledger, batch.table)
        """
        limits = BatchLimits(max_rows, max_bytes, wait)
        client, selection = self._owner.client, self._selection
        return joined_batches(client, selection, self.name, limits, ack, ack_timeout, max_redeliveries, self._row_type)

    def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Acknowledge everything before these positions, by names of ledgers or partitions, as `batch.ledger`.

        Raises Refused for a wrong name or position, and then acknowledges nothing.
        """
        if not isinstance(positions, Mapping):
            raise Refused(
                f"positions is {positions!r}, but each ledger of cursor {self.name!r} has its own",
                hint="Pass {batch.ledger: batch.position}, or call batch.acknowledge()",
            )
        self._move("positions", positions, Cursor.acknowledge)

    def reset(self, position: Position | Mapping[str, Position]) -> None:
        """Move the cursor to EARLIEST or LATEST in all ledgers, or to a position in those that a mapping names.

        Raises Refused for a wrong name or position, and then moves no cursor.
        """
        self._move("position", position, Cursor.reset)

    def seek(self, time: Time) -> dict[str, Position]:
        """Move the cursor in each ledger to the first entry that the broker stored at or after a time.

        Return the positions by the short names of the ledgers. `Ledger.position_at` explains the forms of a time.
        """
        positions = {_short(cursor): cursor.ledger.position_at(time) for cursor in self.cursors()}
        self.reset(positions)
        return positions

    def delete(self) -> None:
        """Delete the cursor in all ledgers. After that, retention can delete the rows that it had not acknowledged."""
        for cursor in self.cursors():
            cursor.delete()

    def read(self) -> NoReturn:
        """Raise Refused, because the rows of several ledgers have no common position to acknowledge."""
        self._refuse("read", "Use `batches(wait=0)`, and acknowledge each batch")

    def read_between(self, start: Position, end: Position) -> NoReturn:
        """Raise Refused, because a position belongs to one ledger."""
        self._refuse(f"read_between({start!r}, {end!r})")

    def replay(self, positions: Iterable[Position]) -> NoReturn:
        """Raise Refused, because a position belongs to one ledger."""
        self._refuse(f"replay({positions!r})")

    def acknowledge_rows(self, positions: Iterable[tuple[int, int] | tuple[int, int, int]]) -> NoReturn:
        """Raise Refused, because a position belongs to one ledger."""
        self._refuse(f"acknowledge_rows({positions!r})")

    def skip(self, entries: int) -> NoReturn:
        """Raise Refused, because the entries of several ledgers have no order."""
        self._refuse(f"skip({entries!r})", "Use `reset(LATEST)` for the whole backlog")

    def set_properties(self, values: Mapping[str, str], remove: Iterable[str] = ()) -> NoReturn:
        """Raise Refused, because each ledger's cursor has its own properties."""
        self._refuse(f"set_properties({values!r}, {remove!r})")

    def _move(
        self,
        argument: str,
        given: Position | Mapping[str, Position],
        move: Callable[[Cursor[Row], Position], None],
    ) -> None:
        cursors = {cursor.ledger.name: cursor for cursor in self.cursors()}
        for log, position in _positions(self._owner.client, self.name, argument, given, list(cursors)).items():
            move(cursors[log], position)

    def _refuse(
        self, call: str, hint: str = "Call the method of the cursor of one ledger: `.cursors()` returns them"
    ) -> NoReturn:
        raise Refused(
            f"{call} was called for cursor {self.name!r} of {selection_words(self._selection)}, "
            "which has a position in each ledger",
            hint=hint,
        )


def open_cursor(
    owner: ClientOwner,
    selection: Addressing,
    name: str,
    start: Position | Mapping[str, Position],
    row_type: RowType[Row] | None = None,
) -> JoinedCursor[Row]:
    """Return a cursor. Create those of its ledgers that do not exist, at `start`; a mapping means EARLIEST for others.

    Raises NotFound for a missing ledger, and then creates no cursor.
    """
    client = owner.client
    require_cursor_name(name, selection_words(selection))
    logs = _logs(client, selection, name)
    starts = _positions(client, name, "start", start, logs)
    open_cursors(client, [OpenCursor(log, name, starts.get(log, EARLIEST)) for log in logs])
    return JoinedCursor(owner, selection, name, row_type)


def select(ledgers: Iterable[str] | None, ledgers_pattern: str | None) -> Addressing:
    """Return the selection of a user. Raises Refused unless exactly one argument is given, and for a wrong value."""
    if (ledgers is None) == (ledgers_pattern is None):
        raise Refused(
            f"ledgers is {ledgers!r} and ledgers_pattern is {ledgers_pattern!r}, expected exactly one of them",
            hint="For a cursor of one ledger, call store.ledger(name).cursor(name)",
        )
    if ledgers is None:
        wrong = "" if isinstance(ledgers_pattern, str) and ledgers_pattern else "no text"
        with suppress(TypeError):
            try:
                re.compile(ledgers_pattern or "")
            except re.error as error:
                wrong = str(error)
        if wrong:
            raise Refused(
                f"ledgers_pattern is {ledgers_pattern!r}, expected a regular expression: {wrong}",
                hint="Use a text such as 'orders-.*', which matches the whole name",
            )
        return Addressing(pattern=ledgers_pattern or "")
    names = None if isinstance(ledgers, (str, bytes)) or not isinstance(ledgers, Iterable) else list(ledgers)
    if not names:
        raise Refused(
            f"ledgers is {ledgers!r}, expected a list with at least one name",
            hint="Use a form like ['orders', 'rides'], or ledgers_pattern='orders-.*'",
        )
    return Addressing.of("", dict.fromkeys(names), None)


def _logs(client: Client, selection: Addressing, cursor: str) -> list[str]:
    """Return the full names of the ledgers and partitions that exist now. Raises NotFound for a missing ledger."""
    names = selected_ledgers(client, selection, cursor)
    if not names:
        raise NotFound(
            f"no ledger of the store matches {selection.pattern!r}",
            hint="The pattern must match the whole name, such as 'orders-.*'",
        )
    logs: dict[str, None] = {}
    for name, partitions in partition_counts(client, names).items():
        logs |= dict.fromkeys(partition_names(name, partitions) or [name])
    return list(logs)


def _positions(
    client: Client, cursor: str, argument: str, given: Position | Mapping[str, Position], logs: list[str]
) -> dict[str, Position]:
    """Return positions by full names. Raises Refused for a wrong name, and for a position outside of its log."""
    positions = named_positions(argument, given, logs, f"cursor {cursor!r}")
    for log, position in positions.items():
        if position not in (EARLIEST, LATEST):
            known = client.ask(AskEnd(log))
            if not known.start <= position <= known.end:
                raise Refused(
                    f"{argument}[{short_name(log)!r}] is {position}, the log has [{known.start}, {known.end})",
                    hint="Use the position of a batch of this ledger, EARLIEST or LATEST",
                )
    return positions


def _short(cursor: Cursor[Any]) -> str:
    return short_name(cursor.ledger.name)
