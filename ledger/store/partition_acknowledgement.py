"""Acknowledgement of rows by the name of a partitioned ledger: the division of a call between partitions.

Rules
- Segment ids are store-wide, so the id in a position tells its partition.
- The whole call is compared with the logs before any part of it is applied, and refused as a whole. A broker that dies
  between two partitions has acknowledged the first; a repeated call does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.positions.bitset import Integers
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand
from pyspark_ledger.ledger.protocol.cursors import CursorState, NameCursor
from pyspark_ledger.ledger.store.store import Store

Part = tuple[AcknowledgeCommand, list[pa.RecordBatch]]


def parts_of(store: Store, command: AcknowledgeCommand, batches: list[pa.RecordBatch]) -> list[Part]:
    """Return a command for each log with rows of the call; the call itself for the name of a log."""
    logs = store.logs(command.ledger)
    if logs in ([], [canonical_name(command.ledger)]):
        return [(command, batches)]
    snapshots = {log: store.ledger(log).snapshot for log in logs}
    owners = _owners(batches, snapshots, store)
    parts: list[Part] = []
    for log, snapshot in snapshots.items():
        own = np.array([ledger_id for ledger_id, owner in owners.items() if owner == log], dtype=np.int64)
        mine = [some for batch in batches if len(own) and (some := _of_ledgers(batch, own)).num_rows]
        if mine:
            store.cursors.describe(NameCursor(log, command.cursor, precise=False))
            if command.action == "nack":
                store.deliveries.require_explicit(log, command.cursor)
            store.acknowledgements.require_positions(mine, snapshot)
            parts.append((msgspec.structs.replace(command, ledger=log), mine))
    return parts


def whole_state(store: Store, command: AcknowledgeCommand, states: Sequence[CursorState]) -> CursorState:
    """Return the answer of the call: the state of its log, or the estimated sum of all partitions."""
    logs = store.logs(command.ledger)
    if logs == [canonical_name(command.ledger)]:
        return states[0]
    held = [log for log in logs if store.cursors.exists(log, command.cursor)]
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


def _of_ledgers(batch: pa.RecordBatch, own: Integers) -> pa.RecordBatch:
    return batch.filter(pa.array(np.isin(np.asarray(batch.column(0)), own)))


def _owners(batches: Sequence[pa.RecordBatch], snapshots: Mapping[str, LogSnapshot], store: Store) -> dict[int, str]:
    """Return the log of each segment of a call, also of a trimmed one; an unknown segment gets the first, which refuses
    it.
    """
    asked = {found for batch in batches for found in np.unique(np.asarray(batch.column(0))).tolist()}
    known = {
        ledger_id: log
        for log, snapshot in snapshots.items()
        for ledger_id in asked
        if snapshot.segments.find(ledger_id) is not None
    }
    if not asked <= known.keys():
        trimmed = store.acknowledgements.trimmed_off
        known = {gone.ledger_id: log for log in snapshots for gone in trimmed(log)} | known
    first = next(iter(snapshots))
    return {ledger_id: known.get(ledger_id, first) for ledger_id in asked}
