"""Numbers, times and positions in sentences for people. JSON has the raw values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from pyspark_ledger.ledger.display.amounts import age_words as age_words  # noqa: PLC0414 — exported
from pyspark_ledger.ledger.display.amounts import counted as counted  # noqa: PLC0414 — exported
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.times import iso_text

_LEFT_OUT = frozenset({"__topic", "__messageId"})


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


def row_words(row: Mapping[str, Any]) -> str:
    """Return a row in one line. Of a message's metadata columns, empty ones, topic and id are left out."""
    metadata = {name: value for name, value in row.items() if name.startswith("__")}
    shown = {name: value for name, value in row.items() if name not in metadata}
    for name, value in metadata.items():
        if name not in _LEFT_OUT and value not in (None, []):
            shown[name] = _metadata_words(name, value)
    return str(shown)


def _metadata_words(name: str, value: Any) -> Any:
    if name == "__position":
        index = "" if value["batchIndex"] < 0 else f":{value['batchIndex']}"
        return f"{value['ledgerId']}:{value['entryId']}{index}"
    if name == "__messageProperties":
        return dict(value)
    return f"{value.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z" if isinstance(value, datetime) else value


def time_words(epoch_ms: bool) -> Callable[[int], str]:
    """Return the function that prints a time: as milliseconds since 1970, or as ISO 8601 in UTC."""
    return str if epoch_ms else iso_text
