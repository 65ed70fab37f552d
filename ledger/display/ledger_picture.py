"""Pictures and texts of stores, ledgers and cursors. Pure.

orders  1,200 rows in 40 entries
▇▇▇▇▇▇▇▇ ▇▇▇▇▇▇ ▇▇▇▇ ▇▇▇ ▇▇        segments by place
    ▲             ▲                cursors
billing at 3:17
━━━━━━━━━━▏   ▪  ▪                 acknowledged entries
"""

from __future__ import annotations

from pyspark_ledger.ledger.display.amounts import counted, size_words
from pyspark_ledger.ledger.display.markup import (
    COLOURS,
    SOFT,
    WIDTH,
    Element,
    bar,
    card,
    element,
    shown,
    soft_line,
    svg,
    written,
)
from pyspark_ledger.ledger.display.strip import Strip
from pyspark_ledger.ledger.display.views import CursorView, LedgerView, StoreView
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.protocol.actions import LedgerDescription

_STRIP, _TRACK, _CARET = 16, 7, 6


def ledger_html(view: LedgerView) -> str:
    """Return the picture of a ledger, with its partitions and cursors."""
    return written(card(short_name(view.name), _soft(view), *_ledger(view), problem=view.problem))


def cursor_html(view: LedgerView, cursor: str) -> str:
    """Return the picture of a cursor on the strip of its ledger. Without a broker's reply, show only the problem."""
    soft = f"cursor of {short_name(view.name)}"
    return written(card(cursor, soft, *_ledger(view), problem=view.problem))


def store_html(view: StoreView) -> str:
    """Return the picture of a store: a strip for each ledger."""
    parts: list[Element] = []
    for ledger in view.ledgers:
        title = element("div", element("b", short_name(ledger.name)), element("span", f" {_soft(ledger)}", style=SOFT))
        title.set("style", "margin-top:6px")
        parts += [title, *_ledger(ledger)]
    parts += map(soft_line, _more(0 if view.problem else view.ledger_count - len(view.ledgers), "ledger"))
    soft = f"{view.location} · {counted(view.ledger_count, 'ledger')}"
    return written(card("Store", view.location if view.problem else soft, *parts, problem=view.problem))


def ledger_text(kind: str, view: LedgerView) -> str:
    """Return the facts of the picture as lines. The first line begins with the class and the name."""
    return "\n".join(_lines(f"{kind}({shown(view.name)})", view))


def cursor_text(view: LedgerView, cursor: str) -> str:
    """Return the facts of a cursor as one line, and the strip of its ledger as a second line."""
    head = f"Cursor({shown(view.name)}, {shown(cursor)})"
    if view.described is None or not view.cursors:
        return f"{head}: {shown(view.problem)}"
    strip = Strip(view.described)
    below = f"\n  {strip.text()} {strip.legend_text()}" if strip.parts else ""
    return f"{head}: {_cursor_words(view.cursors[0])}{below}"


def store_text(view: StoreView) -> str:
    """Return the facts of the store as lines."""
    head = f"LedgerStore({shown(view.location)})"
    if view.problem:
        return f"{head}: {shown(view.problem)}"
    lines = [f"{head}: {counted(view.ledger_count, 'ledger')}"]
    for ledger in view.ledgers:
        lines += [f"  {line}" for line in _lines(shown(short_name(ledger.name)), ledger)]
    lines += [f"  {text}" for text in _more(view.ledger_count - len(view.ledgers), "ledger")]
    return "\n".join(lines)


def _lines(head: str, view: LedgerView) -> list[str]:
    if view.described is None:
        return [f"{head}: {shown(view.problem)}"]
    lines, strip = [f"{head}: {facts(view.described)}"], Strip(view.described)
    if strip.parts:
        lines.append(f"  {strip.text()} {strip.legend_text()}")
    lines += [f"  cursor {shown(cursor.state.cursor)}: {_cursor_words(cursor)}" for cursor in view.cursors]
    for partition in view.partitions:
        lines += [f"  {line}" for line in _lines(shown(short_name(partition.name)), partition)]
    lines += [f"  {text}" for text in _rest(view)]
    if view.problem:
        lines.append(f"  {shown(view.problem)}")
    return lines


def facts(described: LedgerDescription) -> str:
    """Return the size, the end and the state of a ledger in words."""
    words = [
        f"{counted(described.rows, 'row')} in {counted(described.entries, 'entry', 'entries')}",
        size_words(described.size_bytes),
    ]
    if described.partitions:
        words.append(counted(len(described.partitions), "partition"))
    else:
        words.append(counted(described.segment_count, "segment"))
        words.append("empty" if described.end.ledger_id < 0 else f"end {described.end}")
    if described.terminated is not None:
        words.append("terminated")
    return ", ".join(words)


def _soft(view: LedgerView) -> str:
    folder = view.name.split("/persistent/", maxsplit=1)[0]
    return folder if view.described is None else f"{folder} · {facts(view.described)}"


def _ledger(view: LedgerView) -> list[Element]:
    """Return the strip of a ledger, its legend, cursors and partitions; nothing without a description."""
    if view.described is None:
        return []
    if view.described.partitions:
        parts: list[Element] = []
        for partition in view.partitions:
            words = "" if partition.described is None else f": {facts(partition.described)}"
            problem = partition.problem and f" ⚠ {partition.problem}"
            parts += [soft_line(f"{short_name(partition.name)}{words}{problem}"), *_ledger(partition)]
        return [*parts, *map(soft_line, _rest(view))]
    strip = Strip(view.described)
    carets = [_caret(strip.x(cursor.state.next_position), cursor.state.cursor) for cursor in view.cursors]
    label = f"segments of {short_name(view.name)}: {strip.legend_text() or 'not listed'}"
    drawing = svg(_STRIP + (_CARET + 2 if carets else 0), label, *strip.drawn(0, _STRIP), *carets)
    tracks = [
        drawn
        for cursor in view.cursors
        for drawn in (soft_line(f"{cursor.state.cursor} {_cursor_words(cursor)}"), _track(strip, cursor))
    ]
    return [drawing, strip.legend(), *tracks, *map(soft_line, _rest(view))]


def _rest(view: LedgerView) -> list[str]:
    """Return lines such as "and 3 more cursors".

    There is no such line if the view has no cursors (or partitions) at all.
    """
    described = view.described
    if described is None or view.problem:
        return []
    partitions = len(described.partitions) - len(view.partitions) if view.partitions else 0
    cursors = len(described.cursors) - len(view.cursors) if view.cursors else 0
    return _more(partitions, "partition") + _more(cursors, "cursor")


def _more(number: int, noun: str) -> list[str]:
    return [f"and {counted(number, f'more {noun}')}"] if number > 0 else []


def _caret(x: float, cursor: str) -> Element:
    points = f"{x:.1f},{_STRIP + 1} {x - 5:.1f},{_STRIP + _CARET + 2} {x + 5:.1f},{_STRIP + _CARET + 2}"
    return element("polygon", element("title", f"cursor {cursor}"), points=points, fill="currentColor")


def _track(strip: Strip, cursor: CursorView) -> Element:
    at = strip.x(cursor.state.next_position)
    marks = [
        bar(start, 0, end - start, _TRACK, fill=COLOURS["hole"]) for start, end in strip.covered(cursor.acknowledged)
    ]
    return svg(
        _TRACK,
        f"acknowledged by {cursor.state.cursor}: {_cursor_words(cursor)}",
        bar(0, 0, WIDTH, _TRACK, rx=2, fill="currentColor", fill_opacity=".14"),
        bar(0, 0, at, _TRACK, rx=2, fill="currentColor", fill_opacity=".45"),
        *marks,
        bar(min(at, WIDTH - 2), 0, 2, _TRACK, fill="currentColor"),
    )


def _cursor_words(cursor: CursorView) -> str:
    state = cursor.state
    place = "before the first entry" if state.next_position.ledger_id < 0 else f"at {state.next_position}"
    words = [f"{place}: {counted(state.backlog_rows, 'row')} behind" if state.backlog_entries else f"{place}: read up"]
    if state.acknowledged_ranges:
        words.append(f"{counted(state.acknowledged_ranges, 'range')} acknowledged out of order")
    if state.partial_entries:
        words.append(f"{counted(state.partial_entries, 'entry', 'entries')} acknowledged in part")
    if cursor.leased:
        words.append("a reader is connected")
    return ", ".join(words)
