"""Builders and parsers of the options that have a position or a time for each ledger. Their values are JSON text.

    {"clicks": "earliest", "orders": "3:17"}        startingPositions, endingPositions
    {"orders": 1700000000000}                       startingTimestamps, endingTimestamps: milliseconds since 1970
    {"orders": "2026-11-22T10:15:00Z"}              or a time with its zone

Rules
- A text that names a ledger twice, for example in two spellings, is refused.
- A position is the position of an entry, not of a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pyspark_ledger.connector.options.option import time
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.times import NotATime, Time

T = TypeVar("T")
_NAMED = {"earliest": EARLIEST, "latest": LATEST}
_MOST = 2**62
_SHOWN = 300  # characters of an unexpected text in an error


def positions_json(positions: Mapping[str, object]) -> str:
    """Return the text for option `startingPositions` or `endingPositions`.

    A position is `earliest`, `latest`, `SEGMENT:ENTRY`, a `Position`, a pair of numbers, or a value of the column
    `__position`. A value of this column means the entry of the row. Raises Refused, which names the ledger and the
    value.
    """
    return _built(positions, lambda value: _text_of(_place(value)))


def timestamps_json(timestamps: Mapping[str, Time]) -> str:
    """Return the text for option `startingTimestamps` or `endingTimestamps`.

    A time is milliseconds since 1970, a datetime with a zone, or ISO 8601 text with a zone. Raises Refused, which names
    the ledger and the value.
    """
    return _built(timestamps, time)


def parse_positions(text: str) -> dict[str, Position]:
    """Return positions by the full name of their ledger. Raises ValueError, which states the expected form."""
    return _parsed(text, 'JSON such as {"orders": "3:17", "clicks": "earliest"}', parse_position)


def parse_timestamps(text: str) -> dict[str, int]:
    """Return milliseconds by the full name of the ledger. Raises ValueError, which states the expected form."""

    def parse(value: object) -> int:
        if not isinstance(value, int | str):
            raise ValueError  # noqa: TRY004 — see parse_position
        return time(value)

    return _parsed(text, 'JSON such as {"orders": 1700000000000, "clicks": "2026-11-22T10:15:00Z"}', parse)


def parse_position(value: object) -> Position:
    """Parse one position. Raises ValueError without a message for an invalid value."""
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004 — callers handle a value of a wrong type like any other invalid value
    if value.strip().lower() in _NAMED:
        return _NAMED[value.strip().lower()]
    position = Position.parse(value.strip())
    if not 0 <= position.ledger_id <= _MOST or not 0 <= position.entry_id <= _MOST:
        raise ValueError
    return position


def _parsed(text: str, expected: str, parse: Callable[[object], T]) -> dict[str, T]:
    try:
        given = json.loads(text)
    except JSON_FAULTS:
        raise ValueError(expected) from None
    if not isinstance(given, dict) or not given:
        raise ValueError(expected)
    found: dict[str, T] = {}
    for name, value in given.items():
        try:
            canonical = canonical_name(name)
            place = parse(value)
        except NotATime as wrong:
            raise ValueError(f"for ledger {name[:_SHOWN]!r} {wrong}") from None
        except (ValueError, Refused):
            raise ValueError(f"{expected}; {name[:_SHOWN]!r}: {repr(value)[:_SHOWN]} is invalid") from None
        if canonical in found:
            raise ValueError(f"{expected}, each ledger once; {name!r} is {canonical}, which is named twice")
        found[canonical] = place
    return found


def _built(given: Mapping[str, T], text_of: Callable[[T], object]) -> str:
    if not given:
        raise Refused("no ledger is named", hint='Such as {"orders": "earliest"}')
    built: dict[str, object] = {}
    for name, value in given.items():
        canonical_name(name)
        try:
            built[name] = text_of(value)
        except NotATime as wrong:
            raise Refused(f"the time of ledger {name!r} is {str(value)[:_SHOWN]!r}, expected {wrong}") from None
        except (ValueError, TypeError, AttributeError, OverflowError):
            raise Refused(f"the value of ledger {name!r} is {value!r}, which is no position and no time") from None
    return json.dumps(built, sort_keys=True)


def _place(value: object) -> Position:
    if isinstance(value, Position):
        return value
    if isinstance(value, str):
        return parse_position(value)
    if isinstance(value, Mapping):
        return Position(int(value["ledgerId"]), int(value["entryId"]))
    if hasattr(value, "ledgerId"):  # a Row of Spark
        return Position(int(value.ledgerId), int(value.entryId))  # type: ignore[attr-defined]
    if isinstance(value, Sequence) and len(value) == 2:
        return Position(int(value[0]), int(value[1]))
    raise ValueError


def _text_of(position: Position) -> str:
    named = {place: text for text, place in _NAMED.items()}
    if position in named:
        return named[position]
    if position.ledger_id < 0 or position.entry_id < 0:
        raise ValueError
    return str(position)
