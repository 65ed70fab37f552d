"""Rows of the status page. Each row shows one ledger.

A *strip*, a horizontal bar, shows where the ledger's segments are: in a Delta table, in the bucket, or local. Marks on
the strip show the positions of cursors.

    strip    ▇▇▇ table │ ▆▆ bucket │ ▅ bucket and local │ ▃ local │ ░ open      shares of the ledger's entries
    cursor            ▲ 0.62 of the entries are before the cursor, ▪ acknowledged ranges after it

Rules
- Consecutive segments in the same place are one part of the strip. So the row of a ledger with 10,000 segments is
  short.
- This module reads no segment file.
- For a ledger without metrics of its own, the page shows only the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Literal

import msgspec

from pyspark_ledger.ledger.broker.web.history import Sample
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.ledgers import published_everywhere
from pyspark_ledger.ledger.protocol.metrics import CursorMetrics, LedgerMetrics
from pyspark_ledger.ledger.store.store import Store

SHOWN = 50
_MARKS = 40
Place = Literal["table", "bucket", "both", "local", "open"]
SORTS = ("name", "rate", "backlog", "size", "age")


class StripPart(msgspec.Struct, frozen=True):
    """Consecutive segments in one place: their number, entries and bytes."""

    place: Place
    segments: int
    entries: int
    size_bytes: int


class CursorRow(msgspec.Struct, frozen=True):
    """Cursor of a ledger. `at` and `marks` are shares of the ledger's entries, from 0 to 1."""

    metrics: CursorMetrics
    at: float
    marks: list[tuple[float, float]]


class LedgerRow(msgspec.Struct, frozen=True):
    """Ledger of the page. `open` is false for a ledger without metrics, whose numbers are 0."""

    name: str
    open: bool
    rows: int = 0
    entries: int = 0
    size_bytes: int = 0
    cached_bytes: int = 0
    unpublished_rows: int | None = None
    last_publish_ms: int = 0
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    strip: list[StripPart] = []
    cursors: list[CursorRow] = []


class LedgerPage(msgspec.Struct, frozen=True):
    """Rows of one page of the list. It also has the number of all matching ledgers, and the page's number, from 0."""

    rows: list[LedgerRow]
    matching: int
    page: int


def ledger_page(
    store: Store, sample: Sample, rates: dict[str, tuple[float, float, float]], text: str, sort: str, page: int
) -> LedgerPage:
    """Return the ledgers whose names contain a text, sorted, `SHOWN` on a page. A page beyond the end is the last."""
    listed = {ledger.name: ledger for ledger in sample.metrics.ledgers}
    names = [name for name in store.log_names() if text.lower() in name.lower()]
    names.sort(key=lambda name: _order(name, listed.get(name), rates, sort))
    page = max(min(page, (len(names) - 1) // SHOWN), 0)
    shown = names[page * SHOWN : (page + 1) * SHOWN]
    rows = [_row(store, name, listed.get(name), rates.get(name, (0.0, 0.0, 0.0))) for name in shown]
    return LedgerPage(rows, len(names), page)


def _order(
    name: str, ledger: LedgerMetrics | None, rates: dict[str, tuple[float, float, float]], sort: str
) -> tuple[float, str]:
    """Return the sort key of a ledger: the largest number first, then by name."""
    if sort == "name":
        return 0, name
    if ledger is None:
        return 1, name
    numbers = {
        "rate": rates.get(name, (0.0,))[0],
        "backlog": max((cursor.backlog_rows for cursor in ledger.cursors), default=0),
        "size": ledger.size_bytes,
        "age": -min((cursor.oldest_ms for cursor in ledger.cursors if cursor.oldest_ms), default=10**15) + 10**15,
    }
    return -numbers[sort], name


def _row(store: Store, name: str, metrics: LedgerMetrics | None, rates: tuple[float, float, float]) -> LedgerRow:
    ledger = store.opened_ledger(name)
    if metrics is None or ledger is None:
        return LedgerRow(name, open=False)
    try:
        return _open_row(store, ledger, metrics, rates)
    except (LedgerError, OSError):
        return LedgerRow(name, open=False)  # deleted meanwhile, or damaged: then `unreadable` has the reason


def _open_row(
    store: Store, ledger: ManagedLedger, metrics: LedgerMetrics, rates: tuple[float, float, float]
) -> LedgerRow:
    snapshot = ledger.snapshot
    return LedgerRow(
        ledger.name,
        True,
        metrics.rows,
        metrics.entries,
        metrics.size_bytes,
        metrics.cached_bytes,
        metrics.unpublished_rows,
        metrics.last_publish_ms,
        rates,
        strip_of(snapshot.segments, published_everywhere(ledger.properties)),
        [_cursor_row(store, ledger, snapshot, cursor) for cursor in metrics.cursors],
    )


def strip_of(segments: Iterable[LogSegment], published: int) -> list[StripPart]:
    """Return the strip of segments. Segments up to the id `published` are in every Delta table of the log."""
    parts = []
    for place, group in groupby(segments, lambda segment: _place(segment, published)):
        listed = list(group)
        entries, size = sum(segment.entries for segment in listed), sum(segment.size_bytes for segment in listed)
        parts.append(StripPart(place, len(listed), entries, size))
    return parts


def _place(segment: LogSegment, published: int) -> Place:
    if not segment.close_ms:
        return "open"
    if segment.ledger_id <= published:
        return "table"
    if segment.offloaded is None:
        return "local"
    return "bucket" if segment.offloaded.attempt.local_deleted else "both"


def _cursor_row(store: Store, ledger: ManagedLedger, snapshot: LogSnapshot, metrics: CursorMetrics) -> CursorRow:
    total = max(snapshot.segments.entries(0, len(snapshot.segments)), 1)

    def share(position: Position) -> float:
        return round(min(snapshot.entries_before(position) / total, 1.0), 4)

    at = store.cursors.next_position(ledger.name, metrics.name)
    acknowledged = store.cursors.acknowledged(ledger.name, metrics.name, at) if metrics.holes else None
    marks = [] if acknowledged is None else list(islice(_ranges(acknowledged), _MARKS))
    return CursorRow(metrics, share(at), [(share(start), share(end)) for start, end in marks])


def _ranges(acknowledged: PositionSet) -> Iterator[tuple[Position, Position]]:
    """Yield the start and the end of each range of whole entries."""
    for runs in acknowledged.runs():
        for start, end in zip(runs.starts.tolist(), runs.ends.tolist(), strict=True):
            yield Position(runs.ledger_id, start), Position(runs.ledger_id, end)
