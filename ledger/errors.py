"""Error types, divided by what the caller can do about them.

Rules
- A message names the thing, the two values that disagree and, if a person must act, a hint.
- A code is stable and sent over the wire, so that a client raises the class that the broker raised.
- No message contains an option value that may be a secret.
"""

from __future__ import annotations

from typing import ClassVar


class LedgerError(Exception):
    """Failure in a store, a broker or a client."""

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
    """The name is in use."""

    code = "LEDGER_ALREADY_EXISTS"


class Refused(LedgerError):
    """The request itself is wrong; nothing was changed. Correct it and call again."""

    code = "LEDGER_REFUSED"


class Unauthenticated(LedgerError):
    """A token or certificate is missing, wrong or expired. Nothing was done."""

    code = "LEDGER_UNAUTHENTICATED"


class Corrupt(LedgerError):
    """Stored or received bytes contradict each other. Nothing was cut or repaired."""

    code = "LEDGER_CORRUPT"


class Fenced(LedgerError):
    """Another broker has taken this store over; this one acknowledges nothing more."""

    code = "LEDGER_FENCED"


class Terminated(LedgerError):
    """The managed ledger was terminated: it can be read, and appends are refused."""

    code = "LEDGER_TERMINATED"


class Unavailable(LedgerError):
    """The broker or the disk cannot answer now; the outcome of the request is unknown. Retry."""

    code = "LEDGER_UNAVAILABLE"


class DataLoss(LedgerError):
    """Requested entries do not exist any more."""

    code = "LEDGER_DATA_LOSS"


class Unsupported(LedgerError):
    """The data were written by a newer version, or in a way that this version does not read."""

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
    """Return the error of that code, as it was raised on the other side of a wire or a pickle."""
    return _BY_CODE.get(code, LedgerError)(message, hint=hint)
