"""Texts of numbers, times and positions for people, and hints for wrong commands. JSON output has the raw values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from typer.core import TyperGroup

from pyspark_ledger.ledger.display.amounts import age_words as age_words  # noqa: PLC0414 — exported
from pyspark_ledger.ledger.display.amounts import counted as counted  # noqa: PLC0414 — exported
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.times import iso_text

_LEFT_OUT = frozenset({"__topic", "__messageId"})
# Words of other programs for the commands of this one.
_OTHER_WORDS = {
    **dict.fromkeys(("ledgers", "topics", "ls"), "list"),
    **dict.fromkeys(("cat", "show", "select", "dump"), "read"),
    **dict.fromkeys(("consume", "tail"), "follow"),
    **dict.fromkeys(("write", "produce", "put", "insert"), "append"),
    **dict.fromkeys(("info", "status", "stats", "inspect"), "describe"),
    **dict.fromkeys(("rm", "drop", "remove"), "delete"),
    **dict.fromkeys(("start", "run", "broker"), "serve"),
    **dict.fromkeys(("subscription", "subscriptions"), "cursor"),
    **dict.fromkeys(("config", "configure"), "settings"),
    **dict.fromkeys(("retention", "policies"), "policy"),
}


class CommandGroup(TyperGroup):
    """Commands whose near misses are answered with the right command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command. Fails with a hint for a word of another program."""
        word = _OTHER_WORDS.get(args[0].lower()) if args else None
        if word is not None and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {word!r}?")
        return super().resolve_command(ctx, args)


def next_words(position: Position) -> str:
    """Return the text of the next position to read. A segment id of -1 means the position before every entry."""
    return "before the first entry" if position.ledger_id < 0 else str(position)


def mark_delete_words(mark_delete: Position) -> str:
    """Return the text of the mark-delete position, the entry up to which every entry is acknowledged.

    Entry number -1 means that no entry of the segment is acknowledged.
    """
    if mark_delete.ledger_id < 0:
        return "before the first entry"
    if mark_delete.entry_id < 0:
        return f"before the first entry of segment {mark_delete.ledger_id}"
    return str(mark_delete)


def row_words(row: Mapping[str, Any]) -> str:
    """Return the text of a row in one line, without empty metadata columns and without `__topic` and `__messageId`."""
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
