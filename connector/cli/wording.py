"""Numbers and positions in sentences for people. JSON has the raw values."""

from __future__ import annotations

from pyspark_ledger.ledger.position import Position


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def next_words(position: Position) -> str:
    """Return the next position to read: -1 for a ledger is before every entry."""
    return "before the first entry" if position.ledger_id < 0 else str(position)


def mark_delete_words(mark_delete: Position) -> str:
    """Return the last position of the acknowledged prefix; entry -1: none of its segment is."""
    if mark_delete.ledger_id < 0:
        return "before the first entry"
    if mark_delete.entry_id < 0:
        return f"before the first entry of segment {mark_delete.ledger_id}"
    return str(mark_delete)
