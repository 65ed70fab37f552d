"""The error types, divided by what the caller can do about them.

Rules: a message names the thing, the two values that disagree and, where a person must act, a hint. A code is
stable and crosses the wire, so that a client raises the class that the broker raised. No message ever carries an
option value that may be a secret.
"""

from __future__ import annotations

from typing import ClassVar


class LedgerError(Exception):
    """Anything that went wrong in a store, a broker or a client of one."""

    code: ClassVar[str] = "LEDGER_ERROR"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        return f"{text}. {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, tuple[str, str, str]]:
        return error_for, (self.code, self.message, self.hint)


class NotFound(LedgerError):
    """The ledger, cursor or object does not exist: check the name, create it, or wait for it."""

    code = "LEDGER_NOT_FOUND"


class AlreadyExists(LedgerError):
    """Something of that name exists already."""

    code = "LEDGER_ALREADY_EXISTS"


class Refused(LedgerError):
    """The request itself is wrong; nothing was changed. Correct it and call again."""

    code = "LEDGER_REFUSED"


class Unauthenticated(LedgerError):
    """The two ends do not trust each other: a token or certificate is missing, wrong or expired. Nothing was done."""

    code = "LEDGER_UNAUTHENTICATED"


class Corrupt(LedgerError):
    """Stored or received bytes disagree with themselves. Nothing was cut or repaired."""

    code = "LEDGER_CORRUPT"


class Fenced(LedgerError):
    """Another broker has taken this store over; this one acknowledges nothing more."""

    code = "LEDGER_FENCED"


class Terminated(LedgerError):
    """The managed ledger was terminated: it can be read, and nothing is appended to it any more."""

    code = "LEDGER_TERMINATED"


class Unavailable(LedgerError):
    """The broker or the disk cannot answer now; the outcome of the request is unknown. Retrying is sensible."""

    code = "LEDGER_UNAVAILABLE"


class DataLoss(LedgerError):
    """Entries that were asked for are no longer there."""

    code = "LEDGER_DATA_LOSS"


class Unsupported(LedgerError):
    """Written by a newer version, or in a way that this version does not read."""

    code = "LEDGER_UNSUPPORTED"


_BY_CODE: dict[str, type[LedgerError]] = {
    kind.code: kind
    for kind in (
        LedgerError,
        NotFound,
        AlreadyExists,
        Refused,
        Unauthenticated,
        Corrupt,
        Fenced,
        Terminated,
        Unavailable,
        DataLoss,
        Unsupported,
    )
}


def error_for(code: str, message: str, hint: str = "") -> LedgerError:
    """The error of that code, as it was raised on the other side of a wire or a pickle."""
    return _BY_CODE.get(code, LedgerError)(message, hint=hint)
