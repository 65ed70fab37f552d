"""Bearer tokens, task tokens that a driver derives from its bearer token, and the reading of TLS files.

A *staged part* is a file with the rows of one Spark task, before their commit. A *dead letter* is a row or message that
a query could not process, and that is moved to another ledger.

A *bearer token* is the secret with which a client authenticates its calls. Options and settings contain only a
*reference* to the token:

    file:/run/secrets/ledger-token     a file; in the broker's file, every line is an accepted token
    env:LEDGER_TOKEN                   an environment variable

A *task token* gives a Spark task some of the driver's rights for a limited time:

    ledger-task.<claims, JSON in base64url>.<HMAC-SHA256 of the claims, with the driver's token as key, in hex>

Rules of bearer tokens
- Configuration, pickles and query plans contain references only. No token is printed, pickled or shown in an error. An
  error does not show an invalid reference either, because it may be a pasted token.
- A client reads its token at every call. You can therefore replace a token without a restart: first at the broker,
  which accepts several tokens, then at the clients.
- A comparison of tokens always takes the same time. So its duration does not show at which character they differ.

Rules of task tokens
- A driver derives a task token from its bearer token without a call. Nobody can derive the bearer token from it.
- A task token states the rights of the task. The broker checks them at every call. The error of a refused call names
  the call and the rights.
- With the right to read, a task reads the ledgers of its query, and appends to the ledger of its dead letters.
- With the right to write, a task writes staged parts, and describes or creates the target ledgers.
- Only the driver commits, acknowledges and deletes.
- A task token expires after hours, and not after minutes. Reason: the clocks of client and broker can differ by
  minutes.
- If a bearer token is removed from the broker, all task tokens derived from it are invalid.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from pyarrow import flight

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import NotFound, Refused, Unauthenticated
from pyspark_ledger.ledger.location import require_path

PREFIX = "ledger-task."
TASK_TOKEN_MS = 24 * 3600 * 1000
# A token for more ledgers than this number names none, and allows all ledgers. Reason: every call sends the token, so
# it must be short.
LEDGERS_NAMED_MAX = 16
May = Literal["read", "write"]
# A right is a set of names of calls. A single call has the name of its action, a stream the name of its command type or
# method.
_APPEND = "AppendCommand"
_ALLOWED: dict[str, frozenset[str]] = {
    "read": frozenset({"hello", "locate", "locate.many", "locate.stored", "survey", "DoGet"}),
    "write": frozenset(
        {
            "hello",
            "stage.open",
            "stage.upload",
            "StageCommand",
            "run.newest",
            "describe",
            "schema.get",
            "schema.register",
            "create",
        }
    ),
}


class TaskClaims(msgspec.Struct, frozen=True):
    """Rights of a task. Without `ledgers` the task may use any ledger.

    A query that selects its ledgers by a pattern, or routes each row to a ledger, needs a token without `ledgers`. A
    task with the right to read may also append to the ledger `dead_letters`.
    """

    may: May
    ledgers: list[str]
    until_ms: int
    dead_letters: str = ""

    def require_allows(self, call: str, request: object = None) -> None:
        """Raise Unauthenticated unless the claims allow the call and all ledgers that its request names."""
        if call == _APPEND and self.dead_letters and getattr(request, "ledger", "") == self.dead_letters:
            return
        named = _named(request)
        if call in _ALLOWED[self.may] and (not self.ledgers or named.issubset(self.ledgers)):
            return
        requested = f"{call} of {', '.join(sorted(named))}" if named else call
        raise Unauthenticated(
            f"a task token allows to {self.may} {', '.join(self.ledgers) or 'any ledger'}, the call was {requested}",
            hint="Make this call on the driver, with its own token",
        )


_CLAIMS = msgspec.json.Decoder(TaskClaims)


def task_token(secret: str, claims: TaskClaims) -> str:
    body = base64.urlsafe_b64encode(msgspec.json.encode(claims))
    return f"{PREFIX}{body.decode()}.{_signature(secret.encode(), body)}"


def read_task_token(secrets: Sequence[bytes], token: bytes) -> TaskClaims | None:
    """Return the claims of a token derived from one of `secrets`; None for any other token. Does not check expiry.

    Compares the token with every secret, so that the duration does not reveal which secret matched.
    """
    body, _, signature = token.removeprefix(PREFIX.encode()).rpartition(b".")
    # The list makes `any` compare all secrets: see the docstring.
    if not any([hmac.compare_digest(_signature(secret, body).encode(), signature) for secret in secrets]):  # noqa: C419
        return None
    try:
        return _CLAIMS.decode(base64.urlsafe_b64decode(body))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None


def _named(request: object) -> set[str]:
    """Return the ledgers that a task's request names."""
    many = [getattr(part, "name", "") for part in getattr(request, "requests", ())]
    return {name for name in (getattr(request, "name", ""), *getattr(request, "names", ()), *many) if name}


def _signature(secret: bytes, body: bytes) -> str:
    return hmac.new(secret, body, hashlib.sha256).hexdigest()


HEADER = "authorization"
MIDDLEWARE = "bearer-token"
_SCHEME = "Bearer "
_OTHER_USER = (
    "At grpc://127.0.0.1, programs of the broker's own user need none; for other users its operator sets "
    "authenticationTokens"
)
_TOKEN_CHARACTERS_MIN = 16
_MAKE = "Create a token: python3 -c 'import secrets; print(secrets.token_hex(32))'"
_FORMS = "file:/path/of/token or env:NAME"
_USE_FORMS = f"Use {_FORMS}. The value is not shown because it may be a secret"
_SET = "Set the variable before you start the process (Spark: before the session), or use file:/path"


def require_reference(text: str, what: str) -> str:
    """Return the text if it is a token reference.

    Raises Refused otherwise. The error does not show the text, because it may be a token.
    """
    kind, _, name = text.partition(":")
    if kind not in ("file", "env") or not name:
        raise Refused(f"{what} is no reference to a token", hint=_USE_FORMS)
    if kind == "file" and not _path(name).is_absolute():
        raise Refused(f"{what} has a relative path, expected an absolute path", hint=_USE_FORMS)
    if kind == "env" and not name.isidentifier():
        raise Refused(f"{what} has no valid name of an environment variable", hint=_USE_FORMS)
    return text


def read_tokens(reference: str, *, private: bool = False) -> list[str]:
    """Return the tokens that a reference names, at least one.

    Raises NotFound, or Refused for invalid tokens. With `private`, also raises Refused for a file that other users can
    read.
    """
    kind, _, name = reference.partition(":")
    text = _file_text(_path(name), private=private) if kind == "file" else os.environ.get(name)
    if text is None:
        raise NotFound(f"the environment variable {name!r} with the token is not set", hint=_SET)
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    short = [token for token in tokens if len(token) < _TOKEN_CHARACTERS_MIN]
    if not tokens or short:
        raise Refused(
            f"{reference} has {len(tokens)} tokens, {len(short)} of them with fewer than {_TOKEN_CHARACTERS_MIN} "
            "characters",
            hint=_MAKE,
        )
    if not all(token.isascii() and token.isprintable() for token in tokens):
        raise Refused(f"{reference} has a token with characters that are not printable ASCII", hint=_MAKE)
    return tokens


def token_header(reference: str, token: str = "") -> list[tuple[bytes, bytes]]:
    """Return the headers of a call: with the task token `token`, or with the token that `reference` names.

    Returns an empty list if both are empty.
    """
    if not reference and not token:
        return []
    return [(HEADER.encode(), f"{_SCHEME}{token or read_tokens(reference)[0]}".encode())]


class BearerToken(flight.ServerMiddleware):  # type: ignore[misc]
    """Result of the token check of one call. `right` is true for a valid token, and None if the call had no token.

    `claims` are the rights in a task token.
    """

    def __init__(self, right: bool | None, claims: TaskClaims | None = None) -> None:
        self.right = right
        self.claims = claims


class BearerTokenFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Factory that checks the token of each call, and stores no token."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = [token.encode() for token in tokens]

    def start_call(self, _info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> BearerToken:
        """Check the token, and raise nothing. The call raises later, so that its reply is an `Unauthenticated`."""
        values = headers.get(HEADER)
        if not values:
            return BearerToken(None)
        value = values[0] if isinstance(values[0], str) else values[0].decode("latin-1")
        token = value.removeprefix(_SCHEME).encode()
        if token.startswith(PREFIX.encode()):
            claims = read_task_token(self._tokens, token)
            return BearerToken(claims is not None, claims)
        # The list makes `any` compare all tokens, so that the duration does not reveal which token matched.
        return BearerToken(any([hmac.compare_digest(token, ours) for ours in self._tokens]))  # noqa: C419


def require_token(context: flight.ServerCallContext) -> None:
    """Raise Unauthenticated if this broker requires a token, and the call had no token or an invalid token."""
    check = context.get_middleware(MIDDLEWARE)
    if check is None or check.right:
        return
    fault = "had no token" if check.right is None else "had a token that this broker does not accept"
    raise Unauthenticated(f"the call {fault}", hint=f"Name the broker's token by reference: {_FORMS}. {_OTHER_USER}")


def require_allowed(context: flight.ServerCallContext, clock: Clock, call: str, request: object = None) -> None:
    """Raise Unauthenticated if the call's task token has expired or does not allow the call."""
    check = context.get_middleware(MIDDLEWARE)
    claims = None if check is None else check.claims
    if claims is None:
        return
    now_ms = clock()
    if claims.until_ms < now_ms:
        raise Unauthenticated(
            f"the task token expired {(now_ms - claims.until_ms) // 1000} s ago",
            hint="Load the DataFrame again: its tasks then get new tokens",
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
                    f"the token file {path} has mode {mode:o}, expected 600",
                    hint="Every user of the host can read the token: chmod 600",
                )
            return file.read().decode("latin-1")
    except (OSError, ValueError) as error:  # ValueError: the text has a null byte or a lone surrogate
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise NotFound(f"the token file {path} cannot be read: {reason}", hint="Correct the path") from None


TLS_SCHEME = "grpc+tls://"


def read_pem(path: str) -> bytes:
    """Return the content of a file with certificates or a key. Raises NotFound if the file cannot be read."""
    require_path(path, "the path of a TLS file")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise NotFound(f"the TLS file {path} cannot be read: {error.strerror}", hint="Correct the path") from None


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address is a loopback address, which only this host can reach."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
