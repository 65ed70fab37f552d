"""Hidden characters: invisible characters, and characters that change how their neighbours look. No new name has one.

Hidden characters are control characters, format characters, line and paragraph separators, and lone surrogates. A
format character has no width, or changes the direction of text. A lone surrogate is one half of a character in UTF-16;
UTF-8 cannot encode it. An error shows a hidden character as its code point.
"""

from __future__ import annotations

import unicodedata

from pyspark_ledger.ledger.errors import Refused

_KINDS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def hidden_in(text: str) -> str:
    """Return the first hidden character, such as `U+202E RIGHT-TO-LEFT OVERRIDE`, or an empty text."""
    if text.isascii() and text.isprintable():
        return ""
    return next((code_point(char) for char in text if unicodedata.category(char) in _KINDS), "")


def visible(text: str) -> str:
    """Return the text with each hidden character as the escape that Python prints."""
    if not hidden_in(text):
        return text
    return "".join(repr(char)[1:-1] if unicodedata.category(char) in _KINDS else char for char in text)


def require_encodable(text: str, what: str) -> None:
    """Raise Refused if UTF-8 cannot encode the text, because of a lone surrogate. `what` names the text."""
    try:
        text.encode()
    except UnicodeEncodeError as wrong:
        raise Refused(unencodable(wrong, what), hint="Use a text of valid Unicode characters") from None


def unencodable(wrong: UnicodeEncodeError, what: str) -> str:
    """Describe text that UTF-8 cannot encode: the code point, and the text before it."""
    before = wrong.object[max(wrong.start - 40, 0) : wrong.start]
    return f"{what} is not valid Unicode: {code_point(wrong.object[wrong.start])} after {before!r}"


def code_point(char: str) -> str:
    """Return the code point of a character, with its Unicode name if there is one."""
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()
