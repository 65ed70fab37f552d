"""Conversion of times that a person writes to milliseconds since 1970, and back to text. Pure functions.

    1763806500123                    milliseconds since 1970, as the log stores a time
    2026-11-22T10:15:00Z             ISO 8601 in UTC; a space may replace the T
    2026-11-22T10:15:00.123+01:00    ISO 8601 with milliseconds and an offset from UTC
    2026-11-22 10:15                 without a zone: a time in the caller's zone
    2026-11-22                       the start of a day in the caller's zone, as text or as a `date`

Rules
- The year is 1970 to 9998, because Python cannot convert the last day of 9999 to every zone. A number of milliseconds
  may be any integer of 64 bits.
- A fraction of a millisecond is refused, because the log stores milliseconds.
- A time without a zone is refused if the caller has no zone. It is also refused if a change of daylight saving time
  skips or repeats it.
- `fromisoformat` is called for these forms only. Newer Pythons also accept 24:00, and truncate long fractions.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, tzinfo
from operator import index
from typing import TypeAlias

from pyspark_ledger.ledger.errors import Refused

Time: TypeAlias = int | str | datetime | date

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_CHARS_MAX = 40
_SHOWN = 300  # characters of a value in an error
_ISO = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ](?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.(?P<decimals>[0-9]{1,9}))?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_ZONED = "milliseconds since 1970, or a time such as 2026-11-22T10:15:00Z, 2026-11-22T10:15:00.123+01:00"
_BOUNDS = "a time from 1970-01-01T00:00:00Z to the end of 9998"
_YEARS = range(1970, 9999)
_FINEST = "whole milliseconds, because the log stores milliseconds: at most three decimals of a second"


class NotATime(ValueError):
    """Invalid time. The message states the expected form."""


def milliseconds_of(time: Time, zone: tzinfo | None) -> int:
    """Return milliseconds since 1970. A time without a zone is in `zone`. Raises NotATime."""
    if isinstance(time, str):
        return _of_text(time.strip(), zone)
    if isinstance(time, datetime):
        return _of_datetime(time, zone)
    if isinstance(time, date):
        return _of_text(time.isoformat(), zone)
    if isinstance(time, bool):
        raise NotATime(_forms(zone))
    try:
        return _of_number(index(time))  # accepts an integer of NumPy, too
    except TypeError:
        raise NotATime(_forms(zone)) from None


def require_time(what: str, time: Time, zone: tzinfo | None) -> int:
    """Return milliseconds since 1970. Raises Refused that names `what`, the value and the accepted forms."""
    try:
        return milliseconds_of(time, zone)
    except NotATime as expected:
        shown = repr(time) if isinstance(time, str) else str(time)
        raise Refused(f"{what} is {shown[:_SHOWN]}, expected {expected}") from None


def iso_text(milliseconds: int) -> str:
    """Return a time in UTC, such as `2026-11-22T10:15:00.123Z`.

    Returns the number as text outside the years 1 to 9999.
    """
    try:
        at = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    return f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _forms(zone: tzinfo | None) -> str:
    return f"{_ZONED} or 2026-11-22T10:15Z" if zone is None else f"{_ZONED}, 2026-11-22 10:15:00 or 2026-11-22"


def _of_text(text: str, zone: tzinfo | None) -> int:
    if len(text) > _CHARS_MAX:
        raise NotATime(_forms(zone))
    number = None
    with suppress(ValueError):
        number = int(text)
    if number is not None:
        return _of_number(number)
    written = _ISO.fullmatch(text)
    if written is None:
        raise NotATime(_forms(zone))
    if (written["decimals"] or "")[3:].strip("0"):
        raise NotATime(_FINEST)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as wrong:
        raise NotATime(f"{_forms(zone)} ({wrong})") from None
    return _of_datetime(at, zone)


def _of_number(milliseconds: int) -> int:
    if not -(2**63) <= milliseconds < 2**63:
        raise NotATime("a number of milliseconds of 64 bits")
    return milliseconds


def _of_datetime(at: datetime, zone: tzinfo | None) -> int:
    if at.microsecond % 1000:
        raise NotATime(_FINEST)
    if at.year not in _YEARS:
        raise NotATime(_BOUNDS)
    aware = _placed(at, zone) if at.utcoffset() is None else at
    milliseconds = (aware - _EPOCH) // _MILLISECOND
    if milliseconds < 0:
        raise NotATime(_BOUNDS)
    return milliseconds


def _placed(local: datetime, zone: tzinfo | None) -> datetime:
    """Return a local time with its zone. Raises NotATime with both possible times if the zone repeats or skips it."""
    text = _local_text(local)
    if zone is None:
        raise NotATime(f"a time with its zone, {text}Z in UTC or {text}+01:00 with an offset")
    first, second = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    before, after = first.utcoffset(), second.utcoffset()
    if before == after or before is None or after is None:
        return first
    why = "occurs twice" if before > after else "is skipped"
    raise NotATime(f"{_local_text(first)} or {_local_text(second)}, because {text} {why} in {zone}")


def _local_text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds")
