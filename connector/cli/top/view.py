"""Content of the live view of `ledger top`, computed from two samples of a broker's metrics. Pure functions.

Rules
- A rate is the difference of a counter between two samples, divided by the time between them. If a counter became
  lower, the broker was restarted, and the rate is unknown.
- Lines are sorted by a number, the largest first, or by name. Lines with equal numbers are sorted by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import msgspec

from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.protocol.metrics import BrokerMetrics, CursorMetrics, LatencyHistogram, LedgerMetrics


class Rates(msgspec.Struct, frozen=True):
    """Appended rows, appended bytes and read bytes, each per second."""

    in_rows: float
    in_bytes: float
    out_bytes: float


class LedgerLine(msgspec.Struct, frozen=True):
    """Line of a ledger. `rates` is None if unknown. `oldest_ms` is the age of the oldest unread row of its cursors."""

    name: str
    rows: int
    size_bytes: int
    segments: int
    offloaded_segments: int
    rates: Rates | None
    cursors: int
    backlog_rows: int
    oldest_ms: int


class CursorLine(msgspec.Struct, frozen=True):
    """Line of a cursor. `oldest_ms` is the age of its oldest unread row, 0 without a backlog."""

    ledger: str
    cursor: CursorMetrics
    oldest_ms: int


class View(msgspec.Struct, frozen=True):
    """Content of the live view. `syncs` has the durations of the broker's fsyncs between the samples."""

    broker: BrokerMetrics
    rates: Rates | None
    syncs: LatencyHistogram
    ledgers: list[LedgerLine]
    cursors: list[CursorLine]


Table = Literal["ledgers", "cursors"]
LEDGER_ORDERS: dict[str, Callable[[LedgerLine], float]] = {
    "rows/s": lambda line: line.rates.in_rows if line.rates else 0,
    "backlog": lambda line: line.backlog_rows,
    "age": lambda line: line.oldest_ms,
    "size": lambda line: line.size_bytes,
    "name": lambda _: 0,
}
CURSOR_ORDERS: dict[str, Callable[[CursorLine], float]] = {
    "backlog": lambda line: line.cursor.backlog_rows,
    "age": lambda line: line.oldest_ms,
    "holes": lambda line: line.cursor.holes,
    "name": lambda _: 0,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice of the user: the shown table, its order, filter and selected line."""

    table: Table = "ledgers"
    order: int = 0
    reverse: bool = False
    text: str = ""
    selected: int = 0

    @property
    def order_name(self) -> str:
        """Key of `LEDGER_ORDERS` or `CURSOR_ORDERS` by which the lines are sorted."""
        names = list(LEDGER_ORDERS if self.table == "ledgers" else CURSOR_ORDERS)
        return names[self.order % len(names)]

    def pressed(self, key: str) -> Choice:
        """Return the choice after the user has pressed a key. An unknown key changes nothing."""
        other: Table = "cursors" if self.table == "ledgers" else "ledgers"
        changes = {
            "\t": lambda: Choice(table=other, text=self.text),
            "s": lambda: replace(self, order=self.order + 1, selected=0),
            "r": lambda: replace(self, reverse=not self.reverse, selected=0),
            "j": lambda: replace(self, selected=self.selected + 1),
            "down": lambda: replace(self, selected=self.selected + 1),
            "k": lambda: replace(self, selected=max(self.selected - 1, 0)),
            "up": lambda: replace(self, selected=max(self.selected - 1, 0)),
        }
        return changes[key]() if key in changes else self


def view_of(before: BrokerMetrics | None, now: BrokerMetrics) -> View:
    """Return the view of two samples. Without an earlier sample of the same broker, rates are unknown."""
    if before is not None and before.started_ms != now.started_ms:
        before = None
    seconds = max(now.now_ms - before.now_ms, 1) / 1000 if before else 0
    earlier = {ledger.name: ledger for ledger in before.ledgers} if before else {}
    total = None
    if before is not None:
        total = _rates([*before.ledgers, before.others], [*now.ledgers, now.others], seconds)
    return View(
        msgspec.structs.replace(now, ledgers=[]),
        total,
        _syncs(before, now),
        [_ledger_line(earlier.get(ledger.name), ledger, now.now_ms, seconds) for ledger in now.ledgers],
        [
            CursorLine(ledger.name, cursor, _age(cursor, now.now_ms))
            for ledger in now.ledgers
            for cursor in ledger.cursors
        ],
    )


def chosen_ledgers(view: View, choice: Choice) -> list[LedgerLine]:
    """Return the ledgers that match the filter, in the chosen order."""
    lines = [line for line in view.ledgers if choice.text.lower() in line.name.lower()]
    return _ordered(lines, LEDGER_ORDERS[choice.order_name], lambda line: short_name(line.name), choice)


def chosen_cursors(view: View, choice: Choice) -> list[CursorLine]:
    """Return the cursors whose ledger or name matches the filter, in the chosen order."""
    lines = [line for line in view.cursors if choice.text.lower() in f"{line.ledger} {line.cursor.name}".lower()]
    return _ordered(lines, CURSOR_ORDERS[choice.order_name], lambda line: line.ledger + line.cursor.name, choice)


T = TypeVar("T")


def _ordered(lines: list[T], number: Callable[[T], float], name: Callable[[T], str], choice: Choice) -> list[T]:
    lines = sorted(sorted(lines, key=name), key=number, reverse=True)
    return lines[::-1] if choice.reverse else lines


def _ledger_line(before: LedgerMetrics | None, now: LedgerMetrics, now_ms: int, seconds: float) -> LedgerLine:
    return LedgerLine(
        now.name,
        now.rows,
        now.size_bytes,
        now.segments,
        now.offloaded_segments,
        None if before is None else _rates([before], [now], seconds),
        len(now.cursors),
        max((cursor.backlog_rows for cursor in now.cursors), default=0),
        max((_age(cursor, now_ms) for cursor in now.cursors), default=0),
    )


def _age(cursor: CursorMetrics, now_ms: int) -> int:
    return max(now_ms - cursor.oldest_ms, 0) if cursor.oldest_ms else 0


def _rates(before: Iterable[LedgerMetrics], now: Iterable[LedgerMetrics], seconds: float) -> Rates | None:
    differences = [after - earlier for earlier, after in zip(_counters(before), _counters(now), strict=True)]
    if min(differences) < 0:
        return None
    return Rates(*(difference / seconds for difference in differences))


def _counters(ledgers: Iterable[LedgerMetrics]) -> tuple[int, int, int]:
    rows = in_bytes = out_bytes = 0
    for ledger in ledgers:
        reads = ledger.reads
        rows, in_bytes = rows + ledger.appended.rows, in_bytes + ledger.appended.size_bytes
        out_bytes += reads.memory_hit_bytes + reads.page_cache_hit_bytes
        out_bytes += reads.object_miss_bytes + reads.file_miss_bytes
    return rows, in_bytes, out_bytes


def _syncs(before: BrokerMetrics | None, now: BrokerMetrics) -> LatencyHistogram:
    if before is None:
        return now.sync_latency
    earlier, latest = before.sync_latency, now.sync_latency
    counts = [after - count for count, after in zip(earlier.counts, latest.counts, strict=True)]
    return LatencyHistogram(latest.bounds, counts, latest.total - earlier.total)
