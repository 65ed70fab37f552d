"""Metrics of one ledger with its cursors, and the sum of ledgers that are not listed.

A *listed* ledger or cursor has metrics of its own. A setting limits the number of listed cursors. The metrics of all
other cursors are summed. The *lag* of a cursor is the rows and bytes from its first unacknowledged position to the
ledger's end. Its *backlog* counts only the unacknowledged rows of this range.

Rules
- Nothing here reads a segment file of an open ledger. Backlogs and lags are computed from the records of the segments,
  which have the numbers of rows and bytes.
- A listed cursor stays listed until it is deleted.
- A cursor with the name `others` is never listed, because the sum has that name.
- In a sum, counts are added and times are the maximum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from pyspark_ledger.ledger.cache.ledger_cache import LedgerCache
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.cache import ReadSources
from pyspark_ledger.ledger.protocol.cursors import CursorState, DescribeCursor
from pyspark_ledger.ledger.protocol.ledgers import is_published, published_everywhere
from pyspark_ledger.ledger.protocol.metrics import (
    OTHERS,
    AppendCounts,
    CursorMetrics,
    LatencyHistogram,
    LedgerMetrics,
    PublishCounts,
    Unpublished,
)
from pyspark_ledger.ledger.store.store import Store

T = TypeVar("T", bound=msgspec.Struct)


def ledger_metrics(
    store: Store, ledger: ManagedLedger, cached: LedgerCache | None, listed: dict[str, None], most: int, now_ms: int
) -> LedgerMetrics:
    """Return the metrics of a ledger with at most `most` cursors. `listed` has the cursors listed so far."""
    names = store.cursors.names(ledger.name)
    for gone in listed.keys() - set(names):
        del listed[gone]
    for name in names:
        if len(listed) >= most:
            break
        if name != OTHERS:
            listed.setdefault(name)
    shown = set(list(listed)[:most])
    cursors = {name: found for name in names if (found := _cursor_metrics(store, ledger, name)) is not None}
    others = [cursor for name, cursor in cursors.items() if name not in shown]
    return msgspec.structs.replace(
        log_metrics(ledger, cached, now_ms),
        cursors=[cursor for name, cursor in cursors.items() if name in shown],
        other_cursors=_sum_cursors(others) if others else None,
    )


def log_metrics(ledger: ManagedLedger, cached: LedgerCache | None, now_ms: int) -> LedgerMetrics:
    """Return the metrics of a ledger without its cursors."""
    snapshot = ledger.snapshot
    segments = snapshot.segments
    offloaded = [segment for segment in segments if segment.offloaded is not None]
    trimmed_segments, trimmed_bytes = ledger.trimmed
    unpublished = _unpublished(ledger, snapshot, now_ms)
    return LedgerMetrics(
        name=ledger.name,
        segments=len(segments),
        offloaded_segments=len(offloaded),
        offloaded_bytes=sum(segment.size_bytes for segment in offloaded),
        entries=segments.entries(0, len(segments)),
        rows=snapshot.rows,
        size_bytes=segments.size_bytes(0, len(segments)),
        last_publish_ms=snapshot.last_timestamp_ms(),
        appended=ledger.appended,
        reads=ReadSources() if cached is None else _reads(cached),
        cached_bytes=0 if cached is None else cached.cache.size,
        trimmed_segments=trimmed_segments,
        trimmed_bytes=trimmed_bytes,
        unpublished_rows=None if unpublished is None else unpublished.rows,
        unpublished=unpublished,
        published=ledger.published.state(),
        append_latency=_if_any(ledger.append_latency),
        sync_latency=_if_any(ledger.sync_latency),
    )


def other_ledgers(
    store: Store,
    ledgers: Iterable[tuple[ManagedLedger, LedgerCache | None]],
    listed: Iterable[LedgerMetrics],
    now_ms: int,
) -> LedgerMetrics:
    """Return the sums of the open ledgers that are not listed. All their cursors are one sum.

    Latencies are the latencies of the whole store, minus the latencies of the listed ledgers. So they include deleted
    ledgers.
    """
    parts, cursors = [], []
    for ledger, cached in ledgers:
        parts.append(log_metrics(ledger, cached, now_ms))
        names = store.cursors.names(ledger.name)
        cursors += [cursor for name in names if (cursor := _cursor_metrics(store, ledger, name)) is not None]
    latencies = [(part.append_latency, part.sync_latency) for part in listed]
    appends, syncs = store.append_latencies.state(), store.sync_latencies.state()
    for append, sync in latencies:
        appends = appends if append is None else appends.since(append)
        syncs = syncs if sync is None else syncs.since(sync)
    counts = ("segments", "offloaded_segments", "offloaded_bytes", "entries", "rows", "size_bytes", "cached_bytes",
              "trimmed_segments", "trimmed_bytes")  # fmt: skip
    return LedgerMetrics(
        name="",
        **{name: sum(getattr(part, name) for part in parts) for name in counts},
        last_publish_ms=max((part.last_publish_ms for part in parts), default=0),
        appended=_sum(AppendCounts, [part.appended for part in parts]),
        reads=_sum(ReadSources, [part.reads for part in parts]),
        published=_sum(PublishCounts, [part.published for part in parts]),
        append_latency=_if_any(appends),
        sync_latency=_if_any(syncs),
        other_cursors=_sum_cursors(cursors) if cursors else None,
    )


def _cursor_metrics(store: Store, ledger: ManagedLedger, name: str) -> CursorMetrics | None:
    """Return the metrics of a cursor, None if it was deleted meanwhile."""
    snapshot = ledger.snapshot
    try:
        state = store.cursors.describe(DescribeCursor(ledger.name, name, precise=False))
    except NotFound:
        return None
    left = PositionRange(max(state.next_position, snapshot.start), snapshot.end)
    oldest_ms = snapshot.first_timestamp_ms(left) if left and state.backlog_rows else 0
    redelivered, dead = store.deliveries.counts(state.ledger, state.cursor)
    leased = store.leases.is_held(state.ledger, state.cursor)
    lag_rows, lag_bytes = _lag(state, snapshot, left)
    return CursorMetrics(
        state.cursor,
        state.backlog_entries,
        state.backlog_rows,
        state.backlog_bytes,
        oldest_ms,
        state.acknowledged_ranges,
        leased,
        redelivered,
        dead,
        lag_rows,
        lag_bytes,
        max(snapshot.last_timestamp_ms() - oldest_ms, 0) if oldest_ms else 0,
        int(leased),
    )


def _lag(state: CursorState, snapshot: LogSnapshot, left: PositionRange) -> tuple[int, int]:
    """Return the rows and bytes of `left`, the range from the first unacknowledged position to the end.

    If no later position is acknowledged, these numbers are equal to the backlog.
    """
    if not state.acknowledged_ranges or not left:
        return state.backlog_rows, state.backlog_bytes
    _, rows, size_bytes = snapshot.measure(left)
    return rows, size_bytes


def _sum_cursors(cursors: list[CursorMetrics]) -> CursorMetrics:
    """Return the sum of cursors. Its `oldest_ms` is the time of the oldest unread entry of all cursors."""
    other = ("name", "leased", "oldest_ms", "lag_ms")
    fields = [name for name in CursorMetrics.__struct_fields__ if name not in other]
    return CursorMetrics(
        OTHERS,
        **{name: sum(getattr(cursor, name) for cursor in cursors) for name in fields},
        oldest_ms=min((cursor.oldest_ms for cursor in cursors if cursor.oldest_ms), default=0),
        lag_ms=max(cursor.lag_ms for cursor in cursors),
        leased=any(cursor.leased for cursor in cursors),
    )


def _sum(kind: type[T], parts: list[T]) -> T:
    """Return the sum of counters, field by field."""
    return kind(**{name: sum(getattr(part, name) for part in parts) for name in kind.__struct_fields__})


def _reads(cached: LedgerCache) -> ReadSources:
    return ReadSources(**{name: getattr(cached.counts, name) for name in ReadSources.__struct_fields__})


def _unpublished(ledger: ManagedLedger, snapshot: LogSnapshot, now_ms: int) -> Unpublished | None:
    """Return the rows, bytes and segments that are not published to all Delta tables of the ledger yet.

    Return None for a ledger without a table.
    """
    properties = ledger.properties
    if not is_published(properties):
        return None
    start = Position(published_everywhere(properties) + 1, 0)
    segments = snapshot.segments
    first = segments.at(start.ledger_id)
    sealed = len(segments) - first - (first < len(segments) and not segments[-1].close_ms)
    return Unpublished(
        snapshot.rows - snapshot.rows_before(start),
        segments.size_bytes(first, len(segments)),
        sealed,
        max(now_ms - segments[first].close_ms, 0) if sealed else 0,
    )


def _if_any(latency: LatencyHistogram) -> LatencyHistogram | None:
    return latency if latency.count else None
