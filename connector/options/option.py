"""Declarations of options, and parsers of their texts.

    class ReadOptions:
        wait_timeout_ms: int = option(number(1, DAY_MS), READS, "How long …", default="300000")

Rules
- An option is declared once, as a field of the class of its area. `table.OPTIONS` and docs/options.md are built from
  these fields.
- A parser returns the value, or raises ValueError with the expected form. The caller of the parser adds the option's
  name and value to the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.times import NotATime, Time, milliseconds_of

Use = Literal["batch read", "stream read", "batch write", "stream write"]
READS: tuple[Use, ...] = ("batch read", "stream read")
WRITES: tuple[Use, ...] = ("batch write", "stream write")
EVERYWHERE: tuple[Use, ...] = READS + WRITES

MIB = 1024 * 1024
DAY_MS = 24 * 3600 * 1000
LONG_CHARS_MAX = 4 * MIB  # characters of a list, or of JSON
_DIGITS_MAX = 32
_TIME_MOST = 2**62
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """Option of the data source.

    `parse` gets a text of at most `chars_max` characters. If the text is invalid, `parse` raises ValueError with the
    expected form. `shown` is False if an error must not quote the value, because the value may be a secret.
    """

    name: str
    default: str
    uses: tuple[Use, ...]
    meaning: str
    parse: Callable[[str], object]
    shown: bool = True
    chars_max: int = 4096

    @property
    def key(self) -> str:
        """Name of the field of `LedgerOptions` that has the option's value."""
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in self.name)


def option(
    parse: Callable[[str], T],
    uses: tuple[Use, ...],
    meaning: str,
    *,
    default: str = "",
    otherwise: str = "",
    absent: Any = None,
    name: str = "",
    shown: bool = True,
    chars_max: int = 4096,
) -> T:
    """Declare an option as a field of a dataclass. The option's name is `name`, or is derived from the field's name.

    `default` is the text of the default value, which is parsed like a user's text. If there is no such text, `absent`
    is the default value, and the documentation shows the text `otherwise` as the default.
    """
    declaration = {"": Option(name, default or otherwise, uses, meaning, parse, shown, chars_max)}
    made: Any = {"default_factory": dict} if absent == {} else {"default": parse(default) if default else absent}
    declared: T = field(**made, metadata=declaration)
    return declared


def options_of(area: type[Any]) -> list[Option]:
    """Return the options that a class declares, in order, without the options of its base classes."""
    declared = [found for found in fields(area) if found.name in vars(area)["__annotations__"] and found.metadata]
    return [replace(found.metadata[""], name=found.metadata[""].name or option_name(found.name)) for found in declared]


def option_name(key: str) -> str:
    """Return the name of the option that a field declares."""
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def ledger(value: str) -> str:
    """Parse the name of one ledger, and return its full name."""
    try:
        return canonical_name(value)
    except Refused as wrong:
        raise ValueError(f"the name of a ledger ({wrong.message})") from None


def text(value: str) -> str:
    """Parse any non-empty text."""
    if not value.strip():
        raise ValueError("text that is not empty")
    return value.strip()


def flag(value: str) -> bool:
    """Parse true or false."""
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        raise ValueError("true or false")
    return known[value.strip().lower()]


def columns(value: str) -> tuple[str, ...]:
    """Parse names of columns."""
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ValueError("names of columns, each once, with commas between them")
    return names


def number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of a whole number within limits."""

    def parse(value: str) -> int:
        expected = f"a whole number from {least} to {most}"
        try:
            found = int(_measured(value))
        except ValueError:
            raise ValueError(expected) from None
        if not least <= found <= most:
            raise ValueError(expected)
        return found

    return parse


def size(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of a number of bytes within limits."""
    units = {"": 1, "b": 1, "k": 1024, "kb": 1024, "m": MIB, "mb": MIB, "g": 1024 * MIB, "gb": 1024 * MIB}

    def parse(value: str) -> int:
        expected = f"a size from {least} to {most} bytes, such as 1048576, 64m or 1g"
        trimmed = _measured(value).lower()
        digits = trimmed.rstrip("bkmg")
        unit = trimmed[len(digits) :]
        if not digits.isdecimal() or unit not in units or not least <= int(digits) * units[unit] <= most:
            raise ValueError(expected)
        return int(digits) * units[unit]

    return parse


def duration(value: str) -> int:
    """Parse a duration with an optional unit into milliseconds."""
    expected = "a time from 0 to 24 hours, such as 30000, 30s, 5m or 1h"
    units = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    trimmed = _measured(value).lower()
    digits = trimmed.rstrip("smh")
    unit = trimmed[len(digits) :]
    if not digits.isdecimal() or unit not in units or int(digits) * units[unit] > DAY_MS:
        raise ValueError(expected)
    return int(digits) * units[unit]


def time(value: Time) -> int:
    """Parse a time to milliseconds since 1970. Raises NotATime for a time without a zone.

    Reason: Spark creates sources in processes that do not know its setting `spark.sql.session.timeZone`.
    """
    found = milliseconds_of(value, None)
    if not 0 <= found <= _TIME_MOST:
        raise NotATime(f"a time from 0 to {_TIME_MOST} milliseconds since 1970")
    return found


def _measured(value: str) -> str:
    """Return the text without blanks at its ends. If it is too long, return "", which all parsers refuse."""
    trimmed = value.strip()
    return trimmed if len(trimmed) <= _DIGITS_MAX else ""


def one_of(*known: str) -> Callable[[str], str]:
    """Return a parser that accepts the given words, in any case."""

    def parse(value: str) -> str:
        if value.strip().lower() not in known:
            raise ValueError(" or ".join(known))
        return value.strip().lower()

    return parse


def reference(value: str) -> str:
    """Parse the reference to a secret."""
    if not value.strip().startswith(("file:", "env:")):
        raise ValueError("file:/path/of/token or env:NAME")
    return value.strip()


def position(value: str) -> Position:
    """Parse `earliest`, `latest` or a position."""
    named = {"earliest": EARLIEST, "latest": LATEST}
    if value.strip().lower() in named:
        return named[value.strip().lower()]
    try:
        found = Position.parse(value.strip())
    except ValueError:
        found = EARLIEST
    if found.ledger_id < 0 or found.entry_id < 0:
        raise ValueError("earliest, latest or SEGMENT:ENTRY, such as 3:17")
    return found


def names(value: str) -> tuple[str, ...]:
    """Parse names of ledgers, each once. Return them in their original spelling."""
    given = tuple(name.strip() for name in value.split(","))
    expected = "ledgers, each once, with commas between them, such as orders,clicks"
    try:
        canonical = {canonical_name(name) for name in given}
    except Refused as refused:
        raise ValueError(f"{expected}: {refused.message}") from None
    if len(canonical) != len(given):
        raise ValueError(expected)
    return given


def pattern(value: str) -> str:
    """Parse a regular expression."""
    try:
        re.compile(value)
    except re.error as wrong:
        raise ValueError(f"a regular expression: {wrong}") from None
    return text(value)
