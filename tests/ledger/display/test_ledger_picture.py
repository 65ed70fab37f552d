"""Goal: pictures and texts show the same facts, name each cursor, and are of bounded size. Method: views made by hand,
pictures parsed as XML. `tests/ledger/api/test_views.py` has those of a real broker.
"""

from __future__ import annotations

from pyspark_ledger.ledger.display.ledger_picture import (
    cursor_html,
    cursor_text,
    ledger_html,
    ledger_text,
    store_html,
    store_text,
)
from pyspark_ledger.ledger.display.markup import COLOURS, WIDTH
from pyspark_ledger.ledger.display.views import CursorView, LedgerView, StoreView
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.cursors import CursorState
from tests.ledger.display.test_strip import described, runs, segment
from tests.rigs.pictures import bars, drawings, texts

NAME = "public/default/persistent/orders"
LOG = described(segment(1, offloaded=True), segment(2), segment(3, is_open=True))


AT = Position(2, 0)


def cursor(name: str = "billing", at: Position = AT, backlog: int = 20, ranges: int = 0) -> CursorState:
    return CursorState(NAME, name, at, False, backlog, backlog * 5, backlog * 100, acknowledged_ranges=ranges)


VIEW = LedgerView(NAME, LOG, (CursorView(cursor(ranges=1), (runs(3, (2, 5)),), leased=True),))


def test_a_picture_shows_segments_cursors_and_acknowledged_ranges() -> None:
    picture = ledger_html(VIEW)
    strip, track = drawings(picture)
    assert [fill for _, _, fill in bars(strip)] == [COLOURS["both"], COLOURS["local"], COLOURS["open"]]
    (_, behind, _), (start, end, _) = bars(track)[1:3]
    assert round(behind) == WIDTH / 3 + 1, "a third of the entries is before the cursor"
    assert bars(track)[2][2] == COLOURS["hole"]
    assert (round(start), round(end)) == (529, 601), "entries 2 to 5 of the last third"
    for word in ("orders", "150 rows in 30 entries", "1 open", "billing at 2:0: 100 rows behind"):
        assert word in texts(picture)
    assert "1 range acknowledged out of order, a reader is connected" in texts(picture)


def test_the_text_has_the_facts_of_the_picture() -> None:
    lines = ledger_text("Ledger", VIEW).splitlines()
    assert lines[0].startswith(f"Ledger({NAME}): 150 rows in 30 entries, 2.9 KiB, 3 segments, end 3:10")
    assert lines[1] == "  [blo] b in the bucket and local 1, l local 1, o open 1"
    words = "at 2:0: 100 rows behind, 1 range acknowledged out of order, a reader is connected"
    assert lines[2] == f"  cursor billing: {words}"
    assert cursor_text(VIEW, "billing").startswith(f"Cursor({NAME}, billing): {words}\n  [blo]")
    assert "cursor of orders" in texts(cursor_html(VIEW, "billing"))


def test_a_cursor_without_a_backlog_is_read_up() -> None:
    view = LedgerView(NAME, LOG, (CursorView(cursor(at=Position(3, 10), backlog=0)),))
    assert "billing: at 3:10: read up" in ledger_text("Ledger", view)
    assert max(end for _, end, _ in bars(drawings(ledger_html(view))[1])) == WIDTH


def test_a_problem_is_a_part_of_the_picture() -> None:
    away = LedgerView(NAME, problem="no <broker> answers")
    assert "⚠ no <broker> answers" in texts(ledger_html(away))
    assert ledger_text("Ledger", away) == f"Ledger({NAME}): no <broker> answers"
    assert cursor_text(away, "billing") == f"Cursor({NAME}, billing): no <broker> answers"
    assert "⚠ no <broker> answers" in texts(cursor_html(away, "billing"))
    assert store_text(StoreView("/s", problem="gone")) == "LedgerStore(/s): gone"
    assert "⚠ gone" in texts(store_html(StoreView("/s", problem="gone")))
    damaged = LedgerView(NAME, LOG, problem="cursor billing is damaged")
    assert "⚠ cursor billing is damaged" in texts(ledger_html(damaged))
    assert "cursor billing is damaged" in ledger_text("Ledger", damaged)


def test_names_are_escaped_everywhere() -> None:
    odd = "<b>\u202e&\"'\x1b</b>"
    log = described(segment(1))
    view = LedgerView(odd, log, (CursorView(cursor(odd)),))
    for picture in (ledger_html(view), cursor_html(view, odd), store_html(StoreView(odd, (view,), 1))):
        assert "<b>\\u202e&\"'\\x1b</b>" in texts(picture)
        assert "&lt;b&gt;" in picture
    for text in (ledger_text("Ledger", view), cursor_text(view, odd), store_text(StoreView(odd, (view,), 1))):
        assert "\u202e" not in text
        assert "\x1b" not in text


def test_ten_thousand_segments_make_a_small_picture() -> None:
    log = described(*[segment(number, offloaded=number % 3 == 0) for number in range(10_000)])
    picture = ledger_html(LedgerView(NAME, log, (CursorView(cursor()),)))
    assert len(picture) < 20_000
    assert "10,000 segments" in ledger_text("Ledger", LedgerView(NAME, log))
    assert len(ledger_text("Ledger", LedgerView(NAME, log))) < 400


def test_a_store_names_the_ledgers_that_it_leaves_out() -> None:
    view = StoreView("/data/store", (LedgerView(NAME, LOG),), 21)
    assert "/data/store · 21 ledgers" in texts(store_html(view))
    assert "and 20 more ledgers" in texts(store_html(view))
    assert store_text(view).splitlines()[0] == "LedgerStore(/data/store): 21 ledgers"
    assert store_text(view).splitlines()[-1] == "  and 20 more ledgers"
