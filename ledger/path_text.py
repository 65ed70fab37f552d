"""Paths as users write them: measured and checked before a call of the system sees the text."""

from __future__ import annotations

from ledger.errors import Refused
from ledger.hidden_characters import require_encodable

_CHARS_MAX = 4096  # PATH_MAX of Linux
_SHOWN = 40


def require_path(text: str, what: str) -> None:
    """Refuse text that no path can be."""
    if len(text) > _CHARS_MAX:
        raise Refused(
            f"{what} has {len(text)} characters, at most {_CHARS_MAX} are allowed; the first are {text[:_SHOWN]!r}",
            hint="Correct the path",
        )
    require_encodable(text, what)
    if "\0" in text:
        raise Refused(f"{what} {text!r} has the character U+0000, which no path can have", hint="Correct the path")
