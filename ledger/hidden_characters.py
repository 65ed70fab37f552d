"""Characters that a new name must not have: invisible ones, or ones that change the look of their neighbours.

Refused are control and format characters (bidirectional controls, zero-width ones), line and paragraph separators, and
lone surrogates, which UTF-8 cannot encode. An error shows such a character as its code point.
"""

from __future__ import annotations

import unicodedata

from pyspark_ledger.ledger.errors import Refused

_KINDS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def hidden_in(text: str) -> str:
    """Return the first hidden character, such as `U+202E RIGHT-TO-LEFT OVERRIDE`; an empty text if there is none."""
    if text.isascii() and text.isprintable():
        return ""
    return next((code_point(char) for char in text if unicodedata.category(char) in _KINDS), "")


def visible(text: str) -> str:
    """Return text with each hidden character as Python's escape, so that a terminal shows the real text."""
    if not hidden_in(text):
        return text
    return "".join(repr(char)[1:-1] if unicodedata.category(char) in _KINDS else char for char in text)


def require_encodable(text: str, what: str) -> None:
    """Refuse text with a lone surrogate before anything encodes the text."""
    try:
        text.encode()
    except UnicodeEncodeError as wrong:
        raise Refused(unencodable(wrong, what), hint="Name it in valid Unicode") from None


def unencodable(wrong: UnicodeEncodeError, what: str) -> str:
    """Describe text that UTF-8 cannot encode: the code point, and the text before it."""
    before = wrong.object[max(wrong.start - 40, 0) : wrong.start]
    return f"{what} is not valid Unicode: {code_point(wrong.object[wrong.start])} after {before!r}"


def code_point(char: str) -> str:
    """Return the code point of a character, with its Unicode name if there is one."""
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()
