"""Times as users write them: milliseconds since 1970, or ISO 8601 with a zone.

    1763892900123    2026-11-23T10:15:00.123Z    2026-11-23T11:15+01:00    2026-11-23 10:15:00Z

Rules
- A time without a zone is refused. Reason: the processes that plan a read of Spark do not know the session's zone.
- A fraction below a millisecond is refused, because the log stores milliseconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

TIME_FORMS = "milliseconds since 1970, or a time with a zone such as 2026-11-23T10:15:00Z"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_BELOW_MICROSECONDS = re.compile(r"[.,]\d{7}")
_MOST = 2**62


def parse_time_ms(text: str) -> int:
    """Return a time in milliseconds since 1970. Raises ValueError with the accepted forms."""
    text = text.strip()
    try:
        if text.isdecimal() and text.isascii():
            return _within(int(text))
        # datetime would cut off what is below a microsecond
        return to_milliseconds(None if _BELOW_MICROSECONDS.search(text) else datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise ValueError(TIME_FORMS) from None


def to_milliseconds(time: object) -> int:
    """Return a time in milliseconds: of a datetime with a zone, or of a whole number, which is in milliseconds.

    Raises ValueError without a zone, with a fraction below a millisecond, before 1970, and for another type.
    """
    if not isinstance(time, datetime):
        return _within(time)
    if time.tzinfo is None:
        raise ValueError(TIME_FORMS)
    milliseconds, rest = divmod(time - _EPOCH, _MILLISECOND)
    if rest:
        raise ValueError(TIME_FORMS)
    return _within(milliseconds)


def _within(milliseconds: object) -> int:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int) or not 0 <= milliseconds <= _MOST:
        raise ValueError(TIME_FORMS)
    return milliseconds
