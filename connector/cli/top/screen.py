"""Drawing of the live view of `ledger top` with the library `rich`: title lines, one table, a line about the cache."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyspark_ledger.connector.cli.top.view import Choice, Rates, View, chosen_cursors, chosen_ledgers
from pyspark_ledger.connector.cli.wording import age_words, counted
from pyspark_ledger.ledger.display.amounts import size_words
from pyspark_ledger.ledger.hidden_characters import visible
from pyspark_ledger.ledger.names import short_name

KEYS = (
    "q quit · tab ledgers or cursors · s order · r reverse · / filter · esc clear · j k or arrows select · "
    "+ - interval · ? keys"
)
_HEAD_LINES = 8
_NARROW = 120
PLAIN_WIDTH = 160
"""Width of a view that is printed without a terminal."""


def drawn(
    view: View, choice: Choice, note: str = "", *, lines: int | None = None, width: int = PLAIN_WIDTH
) -> RenderableType:
    """Return the drawing for a terminal of `lines` lines and `width` characters. Without `lines`, draw all rows."""
    shown = None if lines is None else max(lines - _HEAD_LINES, 3)
    table = (
        _ledgers(view, choice, shown, narrow=width < _NARROW)
        if choice.table == "ledgers"
        else _cursors(view, choice, shown)
    )
    parts: list[RenderableType] = [*_head(view), table, *_foot(view)]
    if note:
        parts.append(Text(note, style="bold"))
    return Group(*parts)


def _head(view: View) -> list[Text]:
    broker = view.broker
    up = age_words(broker.now_ms - broker.started_ms)
    p50, p99 = (_seconds(view.syncs.quantile(part)) for part in (0.5, 0.99))
    failing = len(broker.given_up) + len(broker.unreadable)
    lines = [
        Text(f"{visible(broker.store_path)}  broker {broker.version}, epoch {broker.epoch}, up {up}", style="bold"),
        Text(
            f"{counted(broker.ledger_count, 'ledger')}, {broker.open_ledgers:,} open · "
            f"{counted(broker.connections, 'connection')} · in {_rate_words(view.rates)} · sync p50 {p50}, p99 {p99} · "
            f"{counted(sum(broker.errors.values()), 'error')} answered"
        ),
    ]
    if failing:
        names = ", ".join(visible(short_name(name)) for name in (*broker.given_up, *broker.unreadable))
        lines.append(Text(f"{counted(failing, 'ledger')} refuse appends or reads: {names}", style="red"))
    return lines


def _seconds(seconds: float) -> str:
    return "> 10 s" if seconds == float("inf") else f"{seconds * 1000:g} ms"


def _rate_words(rates: Rates | None) -> str:
    if rates is None:
        return "…"
    return f"{rates.in_rows:,.0f} rows/s, {size_words(rates.in_bytes)}/s, out {size_words(rates.out_bytes)}/s"


def _window(count: int, choice: Choice, shown: int | None) -> tuple[int, int, int]:
    """Return the first drawn row, the end of the drawn rows, and the selected row (-1: none)."""
    selected = min(choice.selected, max(count - 1, 0))
    if shown is None:
        return 0, count, -1
    first = max(min(selected - shown // 2, count - shown), 0)
    return first, min(first + shown, count), selected


def _title(choice: Choice, count: int, noun: str) -> str:
    direction = ", reversed" if choice.reverse else ""
    text = f", filter {choice.text!r}" if choice.text else ""
    return f"{counted(count, noun)} by {choice.order_name}{direction}{text}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold", expand=True)
    for at, name in enumerate(columns):
        table.add_column(
            name,
            justify="left" if at == 0 else "right",
            no_wrap=True,
            ratio=3 if at == 0 else None,
            min_width=12 if at == 0 else None,
        )
    return table


def _ledgers(view: View, choice: Choice, shown: int | None, *, narrow: bool) -> Table:
    lines = chosen_ledgers(view, choice)
    wide = () if narrow else ("in bytes/s", "out bytes/s", "segments", "cursors")
    table = _table(
        _title(choice, len(lines), "ledger"), "ledger", "rows", "size", "in rows/s", "backlog", "oldest", *wide
    )
    first, end, selected = _window(len(lines), choice, shown)
    for at, line in enumerate(lines[first:end], first):
        rates = ("…",) * 3
        if line.rates is not None:
            inward, outward = line.rates.in_bytes, line.rates.out_bytes
            rates = f"{line.rates.in_rows:,.0f}", size_words(inward), size_words(outward)
        offloaded = f" ({line.offloaded_segments:,} offloaded)" if line.offloaded_segments else ""
        cells = [*rates[1:], f"{line.segments:,}{offloaded}", f"{line.cursors:,}"]
        table.add_row(
            Text(visible(short_name(line.name))),
            f"{line.rows:,}",
            size_words(line.size_bytes),
            rates[0],
            f"{line.backlog_rows:,}",
            age_words(line.oldest_ms) if line.oldest_ms else "-",
            *([] if narrow else cells),
            style="reverse" if at == selected else "",
        )
    return table


def _cursors(view: View, choice: Choice, shown: int | None) -> Table:
    lines = chosen_cursors(view, choice)
    table = _table(
        _title(choice, len(lines), "cursor"),
        "ledger / cursor", "backlog rows", "bytes", "oldest", "holes", "redelivered", "dead letters", "reader",
    )  # fmt: skip
    first, end, selected = _window(len(lines), choice, shown)
    for at, line in enumerate(lines[first:end], first):
        cursor = line.cursor
        table.add_row(
            Text(f"{visible(short_name(line.ledger))} / {visible(cursor.name)}"),
            f"{cursor.backlog_rows:,}",
            size_words(cursor.backlog_bytes),
            age_words(line.oldest_ms) if line.oldest_ms else "-",
            f"{cursor.holes:,}",
            f"{cursor.redelivered_rows:,}",
            f"{cursor.dead_letter_rows:,}",
            "connected" if cursor.leased else "-",
            style="reverse" if at == selected else "",
        )
    return table


def _foot(view: View) -> list[Text]:
    cache, offload = view.broker.cache, view.broker.offload
    read = cache.hits + cache.misses
    hits = f"{cache.hits / read:.0%} of {read:,} entries" if read else "nothing read"
    running = "no offload runs"
    if offload.running:
        done, total = size_words(offload.running_bytes), size_words(offload.running_bytes_total)
        running = f"offloading {visible(short_name(offload.running))}, {done} of {total}"
    return [
        Text(
            f"cache {size_words(cache.size_bytes)} of {size_words(cache.limit_bytes)}, hits {hits} · {running}, "
            f"{offload.waiting:,} waiting, {counted(offload.failures, 'failure')}"
        )
    ]
