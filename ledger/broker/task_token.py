"""The token that a task shows: made of the driver's token, good for one thing, and only for a while.

    ledger-task.<claims, JSON in base64url>.<HMAC-SHA256 of the claims, by the driver's token, in hex>

Rules
- Whoever has a token of the broker can make one without asking it; nobody can make a token of the broker out of it.
- It says what its holder may do: read the ledgers of a read, and append to the one of its dead letters; or stage parts
  of runs, and look at the ledgers that they are for, which a sink that was told so makes. Committing, acknowledging and
  deleting are the driver's. A call that it does not allow is refused, naming both.
- It runs out. A client's clock and the broker's may differ by minutes, its time is hours.
- A broker that forgets a token forgets all that were made of it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Literal

import msgspec

from ledger.errors import Unauthenticated

PREFIX = "ledger-task."
TASK_TOKEN_MS = 24 * 3600 * 1000
# Of a read of more ledgers its token names none: it travels with every call.
LEDGERS_NAMED_MAX = 16
May = Literal["read", "write"]
# What a call is named here: an action of the protocol, or the kind of a stream.
_APPEND = "AppendCommand"
_ALLOWED: dict[str, frozenset[str]] = {
    "read": frozenset({"hello", "locate", "locate.many", "survey", "DoGet"}),
    "write": frozenset(
        {"hello", "stage.open", "StageCommand", "run.newest", "describe", "schema.get", "schema.register", "create"}
    ),
}


class TaskClaims(msgspec.Struct, frozen=True):
    """What the holder may do. Without `ledgers` it is to any: rows may name theirs, and a pattern finds many.

    To the ledger of `dead_letters` a reader may append.
    """

    may: May
    ledgers: list[str]
    until_ms: int
    dead_letters: str = ""

    def require_allows(self, call: str, request: object = None) -> None:
        """Raises Unauthenticated unless the call is one of a task's, and of these ledgers alone."""
        if call == _APPEND and self.dead_letters and getattr(request, "ledger", "") == self.dead_letters:
            return
        named = _named(request)
        if call in _ALLOWED[self.may] and (not self.ledgers or named.issubset(self.ledgers)):
            return
        asked = f"{call} of {', '.join(sorted(named))}" if named else call
        raise Unauthenticated(
            f"the token of a task may {self.may} {', '.join(self.ledgers) or 'any ledger'}, it was shown for {asked}",
            hint="Only the driver's token allows more",
        )


_CLAIMS = msgspec.json.Decoder(TaskClaims)


def task_token(secret: str, claims: TaskClaims) -> str:
    """The token that a task shows."""
    said = base64.urlsafe_b64encode(msgspec.json.encode(claims))
    return f"{PREFIX}{said.decode()}.{_signature(secret.encode(), said)}"


def read_task_token(secrets: Sequence[bytes], token: bytes) -> TaskClaims | None:
    """The claims of a token that was made of one of these; None for any other. Whether it has run out is not looked at.

    Every secret is tried: which one it was does not show in the time.
    """
    said, _, signature = token.removeprefix(PREFIX.encode()).rpartition(b".")
    # All of them, always: see above.
    if not any([hmac.compare_digest(_signature(secret, said).encode(), signature) for secret in secrets]):  # noqa: C419
        return None
    try:
        return _CLAIMS.decode(base64.urlsafe_b64decode(said))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None


def _named(request: object) -> set[str]:
    """The ledgers that a request of a task's names."""
    many = [getattr(part, "name", "") for part in getattr(request, "requests", ())]
    return {name for name in (getattr(request, "name", ""), *getattr(request, "names", ()), *many) if name}


def _signature(secret: bytes, said: bytes) -> str:
    return hmac.new(secret, said, hashlib.sha256).hexdigest()
