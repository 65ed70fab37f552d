"""Error types. Each type stands for one reaction of the caller.

Rules
- A message names the thing and the two values that disagree. If a person must act, a hint says how.
- A code never changes. The broker sends the code, and the client raises the class of that code.
- A narrower class has the code of its base class, and a `kind`. An earlier client raises the base class.
- No message contains an option value that may be a secret.
"""

from __future__ import annotations

from typing import ClassVar


class LedgerError(Exception):
    """Failure in a store, a broker or a client."""

    code: ClassVar[str] = "LEDGER_ERROR"
    kind: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        return f"{text}. {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, tuple[str, str, str, str]]:
        return error_for, (self.code, self.message, self.hint, self.kind)


class NotFound(LedgerError):
    """The ledger, cursor or object does not exist. Check the name, create the object, or wait until it exists."""

    code = "LEDGER_NOT_FOUND"


class AlreadyExists(LedgerError):
    """The name is in use."""

    code = "LEDGER_ALREADY_EXISTS"


class Refused(LedgerError):
    """The request is wrong, and changed nothing. Correct the request and call again."""

    code = "LEDGER_REFUSED"


class Outdated(Refused):
    """A read was planned before the columns of its ledger changed, and has no place for a value. Plan it again."""


class Unauthenticated(LedgerError):
    """A token or certificate is missing, wrong or expired. The request changed nothing."""

    code = "LEDGER_UNAUTHENTICATED"


class Corrupt(LedgerError):
    """Stored or received bytes are damaged or contradict each other. Nothing was deleted or repaired."""

    code = "LEDGER_CORRUPT"


class Fenced(LedgerError):
    """Another broker has taken over the store. The broker that raised this error acknowledges no further request."""

    code = "LEDGER_FENCED"


class Terminated(LedgerError):
    """The managed ledger was closed for good: reads work, and appends are refused."""

    code = "LEDGER_TERMINATED"


class LeaseLost(LedgerError):
    """Another reader has acquired the lease of the cursor. Unacknowledged rows are redelivered: begin a new loop."""

    code = "LEDGER_LEASE_LOST"


class Unavailable(LedgerError):
    """The broker or the disk cannot serve the request now. The outcome of the request is unknown. Retry."""

    code = "LEDGER_UNAVAILABLE"


class Archived(Unavailable):
    """The object is in an archive tier of S3. A repetition cannot help before a person restores the object."""

    kind = "archived"


class DataLoss(LedgerError):
    """Requested entries do not exist any more."""

    code = "LEDGER_DATA_LOSS"


class Unsupported(LedgerError):
    """A newer version wrote the data, or the data have a format that this version cannot read."""

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
        LeaseLost,
        Unavailable,
        DataLoss,
        Unsupported,
    )
}


def error_for(code: str, message: str, hint: str = "", kind: str = "") -> LedgerError:
    """Return the error of a code that was received from a broker or from a pickle. Unknown codes give a LedgerError."""
    found = Archived if (code, kind) == (Archived.code, Archived.kind) else _BY_CODE.get(code, LedgerError)
    return found(message, hint=hint)


def closed_error(handle: str) -> Refused:
    """Return the error for a call after `close`. `handle` names the closed object."""
    return Refused(f"{handle} is closed", hint="Open it again, with connect(), ledger() or cursor()")
