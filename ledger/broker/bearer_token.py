"""The bearer token that a broker wants of its callers: named by reference, read when it is needed, compared blindly.

    file:/run/secrets/ledger-token     a file; in a broker's, every line is a token that it takes
    env:LEDGER_TOKEN                   a variable of the environment

Rules
- Only references are configuration: they are printed, pickled and planned. A token itself never is, nor stands it in an
  error: what is no reference may be a token that somebody pasted, so it is not repeated either.
- A client reads its token at every call, so that it can be replaced without a restart: first at the broker, which takes
  several, then at the clients.
- Tokens are compared in a time that does not depend on where they differ.
- Tasks show tokens that were made of one of these (`ledger.broker.task_token`): what each allows is looked at call by
  call.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from pyarrow import flight

from ledger.broker.task_token import PREFIX, TaskClaims, read_task_token
from ledger.clock import Clock
from ledger.errors import NotFound, Refused, Unauthenticated

HEADER = "authorization"
MIDDLEWARE = "bearer-token"
_SCHEME = "Bearer "
_TOKEN_CHARACTERS_MIN = 16
_FORMS = "file:/path/of/token or env:NAME"
_SET = "Set it before the process is started, for Spark before its session, or name a file"


def require_reference(text: str, what: str) -> str:
    """The reference, if it is one. Refused otherwise, without a word of it: it may be the token."""
    kind, _, name = text.partition(":")
    if kind not in ("file", "env") or not name:
        raise Refused(f"{what} is no reference to a token", hint=f"Give {_FORMS}; what was given is not shown")
    if kind == "file" and not _path(name).is_absolute():
        raise Refused(f"{what} names a file, expected an absolute path", hint=f"Give {_FORMS}; it is not shown")
    if kind == "env" and not name.isidentifier():
        raise Refused(f"{what} names a variable, expected a name of one", hint=f"Give {_FORMS}; it is not shown")
    return text


def read_tokens(reference: str, *, private: bool = False) -> list[str]:
    """The tokens behind a reference, at least one. With `private`, a file that others can read is refused."""
    kind, _, name = reference.partition(":")
    text = _file_text(_path(name), private=private) if kind == "file" else os.environ.get(name)
    if text is None:
        raise NotFound(f"the environment has no variable {name!r} with the token", hint=_SET)
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    short = [token for token in tokens if len(token) < _TOKEN_CHARACTERS_MIN]
    if not tokens or short:
        raise Refused(
            f"{reference} holds {len(tokens)} tokens, {len(short)} of fewer than {_TOKEN_CHARACTERS_MIN} characters",
            hint="Make one: openssl rand -hex 32",
        )
    if not all(token.isascii() and token.isprintable() for token in tokens):
        raise Refused(f"{reference} holds a token with characters that no header takes", hint="openssl rand -hex 32")
    return tokens


def token_header(reference: str, token: str = "") -> list[tuple[bytes, bytes]]:
    """What a call carries: the token itself, if it is a task's, or what the reference names; nothing without either."""
    if not reference and not token:
        return []
    return [(HEADER.encode(), f"{_SCHEME}{token or read_tokens(reference)[0]}".encode())]


class BearerToken(flight.ServerMiddleware):  # type: ignore[misc]
    """Whether one call carried a token that this broker takes; None when it carried none. `claims`: a task's."""

    def __init__(self, right: bool | None, claims: TaskClaims | None = None) -> None:
        self.right = right
        self.claims = claims


class BearerTokenFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Looks at the header of each call; keeps nothing of it."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = [token.encode() for token in tokens]

    def start_call(self, _info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> BearerToken:
        """Only compares: what refuses it must be able to answer an error of ours."""
        given = headers.get(HEADER)
        if not given:
            return BearerToken(None)
        words = given[0] if isinstance(given[0], str) else given[0].decode("latin-1")
        token = words.removeprefix(_SCHEME).encode()
        if token.startswith(PREFIX.encode()):
            claims = read_task_token(self._tokens, token)
            return BearerToken(claims is not None, claims)
        # All of them, always: which one it was does not show in the time.
        return BearerToken(any([hmac.compare_digest(token, ours) for ours in self._tokens]))  # noqa: C419


def require_token(context: flight.ServerCallContext) -> None:
    """Raises Unauthenticated when this broker wants a token and the call had none, or another."""
    found = context.get_middleware(MIDDLEWARE)
    if found is None or found.right:
        return
    said = "carried no token" if found.right is None else "carried a token that this broker does not take"
    raise Unauthenticated(f"the call {said}", hint=f"Name the broker's token by reference: {_FORMS}")


def require_allowed(context: flight.ServerCallContext, clock: Clock, call: str, request: object = None) -> None:
    """Raises Unauthenticated when the call carried a task's token that has run out, or does not allow it."""
    found = context.get_middleware(MIDDLEWARE)
    claims = None if found is None else found.claims
    if claims is None:
        return
    now_ms = clock()
    if claims.until_ms < now_ms:
        raise Unauthenticated(
            f"the token of a task ran out {(now_ms - claims.until_ms) // 1000} s ago",
            hint="Load the DataFrame again: its partitions are planned, and given tokens, once",
        )
    claims.require_allows(call, request)


def _path(name: str) -> Path:
    return Path(f"/{name.lstrip('/')}" if name.startswith("//") else name)


def _file_text(path: Path, *, private: bool) -> str:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if private and mode & 0o007:
                raise Refused(
                    f"the token file {path} has mode {mode:o}, expected 600", hint="Everybody can use it: chmod 600"
                )
            return file.read().decode("latin-1")
    except (OSError, ValueError) as error:  # a null or a lone surrogate is no part of any path
        why = error.strerror if isinstance(error, OSError) else "it is no path"
        raise NotFound(f"the token file {path} cannot be read: {why}", hint="Correct the path") from None
