"""What is told of a log as a whole, from one snapshot of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ledger.log_snapshot import LogSnapshot
from ledger.position import Position, PositionRange
from ledger.protocol import LedgerDescription, LedgerEnd, LedgerSegment


def log_end(snapshot: LogSnapshot, incarnation: str, since: Position | None) -> LedgerEnd:
    """Where it ends, and how much lies after `since`."""
    entries = rows = size = first_ms = 0
    if since is not None and since < snapshot.end:
        left = PositionRange(since, snapshot.end)
        entries, rows, size = snapshot.measure(left)
        first_ms = snapshot.first_timestamp_ms(left)
    return LedgerEnd(
        name=snapshot.name,
        incarnation=incarnation,
        start=snapshot.start,
        end=snapshot.end,
        rows_since=rows,
        bytes_since=size,
        entries_since=entries,
        last_publish_ms=snapshot.last_timestamp_ms(),
        terminated=snapshot.terminated,
        first_publish_ms=first_ms,
    )


def log_description(
    snapshot: LogSnapshot, incarnation: str, properties: Mapping[str, str], terminated: Position | None
) -> LedgerDescription:
    """The whole of it, segment by segment; its cursors and schema are the store's to add."""
    return LedgerDescription(
        name=snapshot.name,
        incarnation=incarnation,
        start=snapshot.start,
        end=snapshot.end,
        entries=sum(segment.entries for segment in snapshot.segments),
        size_bytes=sum(segment.size_bytes for segment in snapshot.segments),
        rows=snapshot.rows,
        last_publish_ms=snapshot.last_timestamp_ms(),
        schema_version=-1,
        segments=[
            LedgerSegment(part.ledger_id, part.entries, part.size_bytes, part.rows, part.close_ms)
            for part in snapshot.segments
        ],
        segment_count=len(snapshot.segments),
        cursors=[],
        properties=dict(properties),
        terminated=terminated,
    )
