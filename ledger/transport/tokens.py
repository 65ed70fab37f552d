"""Bearer tokens named by reference, task tokens made from them, and the reading of TLS files.

    file:/run/secrets/ledger-token     a file; in the broker's file, every line is an accepted token
    env:LEDGER_TOKEN                   an environment variable

    ledger-task.<claims, JSON in base64url>.<HMAC-SHA256 of the claims, by the driver's token, in hex>

Rules of bearer tokens
- Configuration, pickles and query plans contain references only. No token is printed, pickled or shown in an error.
  Text that is no reference is not shown either, because it may be a pasted token.
- A client reads its token at every call. A token can therefore be replaced without a restart: first at the broker,
  which accepts several tokens, then at the clients.
- The time of a comparison does not depend on where tokens differ.

Rules of task tokens
- A holder of a broker token can derive a task token without calling the broker. A broker token cannot be derived from
  a task token.
- A task token states its holder's rights, and is checked at every call. The error of a refused call names the call and
  the rights.
- To read: read the ledgers of a read, and append to the ledger of its dead letters.
- To write: stage parts of runs, and describe or create the ledgers that the sink writes to.
- Only the driver commits, acknowledges and deletes.
- A task token expires. Its time is hours, because a client's clock and the broker's may differ by minutes.
- Removing a token from the broker revokes all task tokens derived from it.
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
# A token for more ledgers names none, because it is sent with every call and must stay short.
LEDGERS_NAMED_MAX = 16
May = Literal["read", "write"]
# A call's name is its action of the protocol, or the kind of its stream.
_APPEND = "AppendCommand"
_ALLOWED: dict[str, frozenset[str]] = {
    "read": frozenset({"hello", "locate", "locate.many", "survey", "DoGet"}),
    "write": frozenset(
        {"hello", "stage.open", "StageCommand", "run.newest", "describe", "schema.get", "schema.register", "create"}
    ),
}


class TaskClaims(msgspec.Struct, frozen=True):
    """Rights of a task token's holder. Without `ledgers` any ledger is allowed, for reads by pattern and writes by row.

    A reader may also append to the ledger `dead_letters`.
    """

    may: May
    ledgers: list[str]
    until_ms: int
    dead_letters: str = ""

    def require_allows(self, call: str, request: object = None) -> None:
        """Raise Unauthenticated unless a task may make the call, and the claims allow all ledgers that it names."""
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
    said = base64.urlsafe_b64encode(msgspec.json.encode(claims))
    return f"{PREFIX}{said.decode()}.{_signature(secret.encode(), said)}"


def read_task_token(secrets: Sequence[bytes], token: bytes) -> TaskClaims | None:
    """Return the claims of a token made from one of `secrets`; None for any other token. Expiry is not checked.

    Every secret is tried, so that the time does not reveal which secret matched.
    """
    said, _, signature = token.removeprefix(PREFIX.encode()).rpartition(b".")
    # Always compares all secrets: see above.
    if not any([hmac.compare_digest(_signature(secret, said).encode(), signature) for secret in secrets]):  # noqa: C419
        return None
    try:
        return _CLAIMS.decode(base64.urlsafe_b64decode(said))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None


def _named(request: object) -> set[str]:
    """Return the ledgers that a task's request names."""
    many = [getattr(part, "name", "") for part in getattr(request, "requests", ())]
    return {name for name in (getattr(request, "name", ""), *getattr(request, "names", ()), *many) if name}


def _signature(secret: bytes, said: bytes) -> str:
    return hmac.new(secret, said, hashlib.sha256).hexdigest()


HEADER = "authorization"
MIDDLEWARE = "bearer-token"
_SCHEME = "Bearer "
_TOKEN_CHARACTERS_MIN = 16
_MAKE = "Make one: python3 -c 'import secrets; print(secrets.token_hex(32))'"
_FORMS = "file:/path/of/token or env:NAME"
_SET = "Set it before the process is started, for Spark before its session, or name a file"


def require_reference(text: str, what: str) -> str:
    """Return the text if it is a token reference. Raises Refused otherwise, without the text: it may be a token."""
    kind, _, name = text.partition(":")
    if kind not in ("file", "env") or not name:
        raise Refused(f"{what} is no reference to a token", hint=f"Give {_FORMS}; what was given is not shown")
    if kind == "file" and not _path(name).is_absolute():
        raise Refused(f"{what} names a file, expected an absolute path", hint=f"Give {_FORMS}; it is not shown")
    if kind == "env" and not name.isidentifier():
        raise Refused(f"{what} names a variable, expected a name of one", hint=f"Give {_FORMS}; it is not shown")
    return text


def read_tokens(reference: str, *, private: bool = False) -> list[str]:
    """Return the tokens behind a reference, at least one. With `private`, a file that other users can read is
    refused.
    """
    kind, _, name = reference.partition(":")
    text = _file_text(_path(name), private=private) if kind == "file" else os.environ.get(name)
    if text is None:
        raise NotFound(f"the environment has no variable {name!r} with the token", hint=_SET)
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    short = [token for token in tokens if len(token) < _TOKEN_CHARACTERS_MIN]
    if not tokens or short:
        raise Refused(
            f"{reference} holds {len(tokens)} tokens, {len(short)} of fewer than {_TOKEN_CHARACTERS_MIN} characters",
            hint=_MAKE,
        )
    if not all(token.isascii() and token.isprintable() for token in tokens):
        raise Refused(f"{reference} holds a token with characters that no header takes", hint=_MAKE)
    return tokens


def token_header(reference: str, token: str = "") -> list[tuple[bytes, bytes]]:
    """Return the headers of a call with the task token or the referenced token; empty without either."""
    if not reference and not token:
        return []
    return [(HEADER.encode(), f"{_SCHEME}{token or read_tokens(reference)[0]}".encode())]


class BearerToken(flight.ServerMiddleware):  # type: ignore[misc]
    """Result of a call's token check: whether the token is valid, None if the call had none. `claims`: of a task
    token.
    """

    def __init__(self, right: bool | None, claims: TaskClaims | None = None) -> None:
        self.right = right
        self.claims = claims


class BearerTokenFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Factory that checks the token of each call, and stores no token."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = [token.encode() for token in tokens]

    def start_call(self, _info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> BearerToken:
        """Check the token without raising, so that the call itself can answer with an error of this project."""
        given = headers.get(HEADER)
        if not given:
            return BearerToken(None)
        words = given[0] if isinstance(given[0], str) else given[0].decode("latin-1")
        token = words.removeprefix(_SCHEME).encode()
        if token.startswith(PREFIX.encode()):
            claims = read_task_token(self._tokens, token)
            return BearerToken(claims is not None, claims)
        # Always compares all tokens, so that the time does not reveal which token matched.
        return BearerToken(any([hmac.compare_digest(token, ours) for ours in self._tokens]))  # noqa: C419


def require_token(context: flight.ServerCallContext) -> None:
    """Raise Unauthenticated if this broker requires a token and the call had none or an invalid one."""
    found = context.get_middleware(MIDDLEWARE)
    if found is None or found.right:
        return
    said = "carried no token" if found.right is None else "carried a token that this broker does not take"
    raise Unauthenticated(f"the call {said}", hint=f"Name the broker's token by reference: {_FORMS}")


def require_allowed(context: flight.ServerCallContext, clock: Clock, call: str, request: object = None) -> None:
    """Raise Unauthenticated if the call's task token has expired or does not allow the call."""
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
    except (OSError, ValueError) as error:  # a path contains no null byte and no lone surrogate
        why = error.strerror if isinstance(error, OSError) else "it is no path"
        raise NotFound(f"the token file {path} cannot be read: {why}", hint="Correct the path") from None


TLS_SCHEME = "grpc+tls://"


def read_pem(path: str) -> bytes:
    """Return the content of a file of certificates or of a key. Raises NotFound naming the file if it cannot be
    read.
    """
    require_path(path, "the path of a TLS file")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise NotFound(f"the TLS file {path} cannot be read: {error.strerror}", hint="Correct the path") from None


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach a host name or IP address."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
