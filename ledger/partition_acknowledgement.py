"""Acknowledging rows of a partitioned ledger by its own name: what of a call is for which partition.

Rules
- Ids of ledgers are store-wide, so that the id of a position says which partition it is of.
- All of a call is compared with the logs before anything of it is taken: it is refused as a whole. A broker that dies
  between two partitions has acknowledged the first; repeating the call does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from ledger.acknowledged_rows import positions_given
from ledger.cursor_calls import CursorState, NameCursor
from ledger.log_snapshot import LogSnapshot
from ledger.names import canonical_name
from ledger.position import EARLIEST, Position
from ledger.protocol import AcknowledgeCommand
from ledger.store import Store

Part = tuple[AcknowledgeCommand, list[pa.RecordBatch]]


def parts_of(store: Store, command: AcknowledgeCommand, batches: list[pa.RecordBatch]) -> list[Part]:
    """A command for each log that has rows of the call; the call itself where the name is that of a log."""
    logs = store.logs(command.ledger)
    if logs in ([], [canonical_name(command.ledger)]):
        return [(command, batches)]
    snapshots = [store.ledger(log).snapshot for log in logs]
    parts: list[Part] = []
    for number, (log, snapshot) in enumerate(zip(logs, snapshots, strict=True)):
        mine = [some for batch in batches if (some := _of_log(batch, number, snapshots)).num_rows]
        if mine:
            store.cursors.describe(NameCursor(log, command.cursor, precise=False))
            positions_given(mine, snapshot)
            parts.append((msgspec.structs.replace(command, ledger=log), mine))
    return parts


def whole_state(store: Store, command: AcknowledgeCommand, states: Sequence[CursorState]) -> CursorState:
    """What the call answers: the state of its log, or of all partitions together, estimated."""
    logs = store.logs(command.ledger)
    if logs == [canonical_name(command.ledger)]:
        return states[0]
    held = [log for log in logs if command.cursor in store.cursors.names(log)]
    known = [store.cursors.describe(NameCursor(log, command.cursor, precise=False)) for log in held]
    return CursorState(
        canonical_name(command.ledger),
        command.cursor,
        EARLIEST,
        created=False,
        backlog_entries=sum(state.backlog_entries for state in known),
        backlog_rows=sum(state.backlog_rows for state in known),
        backlog_bytes=sum(state.backlog_bytes for state in known),
        acknowledged_ranges=sum(state.acknowledged_ranges for state in known),
        acknowledged_entries=sum(state.acknowledged_entries for state in known),
        partial_entries=sum(state.partial_entries for state in known),
    )


def _of_log(batch: pa.RecordBatch, number: int, snapshots: Sequence[LogSnapshot]) -> pa.RecordBatch:
    """The lines of a batch that are of one log."""
    ids = np.asarray(batch.column(0))
    mine = [ledger_id for ledger_id in np.unique(ids).tolist() if _owner(ledger_id, snapshots) == number]
    return batch.filter(pa.array(np.isin(ids, mine)))


def _owner(ledger_id: int, snapshots: Iterable[LogSnapshot]) -> int:
    """Which log a ledger is of, or was before it was trimmed; of none: the first, which says so."""
    owners = list(enumerate(snapshots))
    for number, snapshot in owners:
        if any(segment.ledger_id == ledger_id for segment in snapshot.segments):
            return number
    at = Position(ledger_id, 0)
    behind = (number for number, snapshot in owners if ledger_id >= 0 and at < min(snapshot.start, snapshot.end))
    return next(behind, 0)
