"""Acknowledgement of rows of a partitioned ledger: one request for the ledger becomes one command for each partition.

A position consists of the id of a segment (a file of a ledger) and a number in the segment.

Rules
- Segment ids are unique in a store. So the segment id of a position determines its partition.
- All positions are checked before the first partition acknowledges any. If one position is invalid, the whole request
  is refused.
- If the broker dies between two partitions, a repetition of the request acknowledges the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.positions.bitset import Integers
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand
from pyspark_ledger.ledger.protocol.cursors import CursorState, DescribeCursor
from pyspark_ledger.ledger.store.store import Store

Part = tuple[AcknowledgeCommand, Iterable[pa.RecordBatch]]


def parts_of(store: Store, command: AcknowledgeCommand, sent: Iterable[pa.RecordBatch], bytes_max: int) -> list[Part]:
    """Return one command for each partition that has positions of the request.

    A ledger without partitions gets the whole request, one batch at a time. For other ledgers the batches are
    collected. Raises Refused if they exceed `bytes_max`.
    """
    logs = store.logs(command.ledger)
    if logs in ([], [canonical_name(command.ledger)]):
        return [(command, sent)]
    batches = _collected(sent, bytes_max, command.ledger)
    snapshots = {log: store.ledger(log).snapshot for log in logs}
    owners = _owners(batches, snapshots, store)
    parts: list[Part] = []
    for log, snapshot in snapshots.items():
        own = np.array([ledger_id for ledger_id, owner in owners.items() if owner == log], dtype=np.int64)
        chosen = [lines for batch in batches if len(own) and (lines := _of_segments(batch, own)).num_rows]
        if chosen:
            store.cursors.describe(DescribeCursor(log, command.cursor, precise=False))
            if command.action == "nack":
                store.deliveries.require_explicit(log, command.cursor)
            store.acknowledgements.require_positions(chosen, snapshot)
            parts.append((msgspec.structs.replace(command, ledger=log), chosen))
    return parts


def _collected(sent: Iterable[pa.RecordBatch], bytes_max: int, ledger: str) -> list[pa.RecordBatch]:
    batches, size = list[pa.RecordBatch](), 0
    for batch in sent:
        size += batch.nbytes
        if size > bytes_max:
            raise Refused(
                f"an acknowledgement of the partitioned ledger {ledger!r} has {size} bytes or more of positions, "
                f"setting 'maxMessageSize' allows {bytes_max}",
                hint="Acknowledge the rows in several calls",
            )
        batches.append(batch)
    return batches


def whole_state(store: Store, command: AcknowledgeCommand, states: Sequence[CursorState]) -> CursorState:
    """Return the cursor's state after the request. For a partitioned ledger, its counts are estimated sums."""
    logs = store.logs(command.ledger)
    if logs == [canonical_name(command.ledger)]:
        return states[0]
    partitions = [log for log in logs if store.cursors.exists(log, command.cursor)]
    described = [store.cursors.describe(DescribeCursor(log, command.cursor, precise=False)) for log in partitions]
    return CursorState(
        canonical_name(command.ledger),
        command.cursor,
        EARLIEST,
        created=False,
        backlog_entries=sum(state.backlog_entries for state in described),
        backlog_rows=sum(state.backlog_rows for state in described),
        backlog_bytes=sum(state.backlog_bytes for state in described),
        acknowledged_ranges=sum(state.acknowledged_ranges for state in described),
        acknowledged_entries=sum(state.acknowledged_entries for state in described),
        partial_entries=sum(state.partial_entries for state in described),
    )


def _of_segments(batch: pa.RecordBatch, own: Integers) -> pa.RecordBatch:
    return batch.filter(pa.array(np.isin(np.asarray(batch.column(0)), own)))


def _owners(batches: Sequence[pa.RecordBatch], snapshots: Mapping[str, LogSnapshot], store: Store) -> dict[int, str]:
    """Return the log (partition) of each segment of a request, also of segments that retention has deleted.

    For an unknown segment, return the first log, which then refuses the positions.
    """
    segments = {found for batch in batches for found in np.unique(np.asarray(batch.column(0))).tolist()}
    owners = {
        ledger_id: log
        for log, snapshot in snapshots.items()
        for ledger_id in segments
        if snapshot.segments.find(ledger_id) is not None
    }
    if not segments <= owners.keys():
        trimmed = store.acknowledgements.trimmed_off
        owners = {gone.ledger_id: log for log in snapshots for gone in trimmed(log)} | owners
    first = next(iter(snapshots))
    return {ledger_id: owners.get(ledger_id, first) for ledger_id in segments}
