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
- A task token states the store and the rights of the task. The broker compares them at every call with what the class
  of the request declares (`ledger.protocol.request`). The error of a refused
  call names the call and the rights.
- With the right to read, a task reads the ledgers of its query, and appends to the ledger of its dead letters.
- With the right to write, a task writes staged parts, and describes the target ledgers. With option `createLedgers`
  it also creates them.
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

import msgspec
from pyarrow import flight

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import NotFound, Refused, Unauthenticated
from pyspark_ledger.ledger.location import require_path
from pyspark_ledger.ledger.protocol.actions import AppendCommand, CreateLedger
from pyspark_ledger.ledger.protocol.request import Call, May
from pyspark_ledger.ledger.transport.errors import to_flight

PREFIX = "ledger-task."
TASK_TOKEN_MS = 24 * 3600 * 1000
# A token for more ledgers than this number names none, and allows all ledgers. Reason: every call sends the token, so
# it must be short.
LEDGERS_NAMED_MAX = 16


class TaskClaims(msgspec.Struct, frozen=True):
    """Rights of a task. Without `ledgers` the task may use any ledger.

    A query that selects its ledgers by a pattern, or routes each row to a ledger, needs a token without `ledgers`. A
    task with the right to read may also append to the ledger `dead_letters`. A task with the right to write creates
    ledgers only if `creates` is set, and only ledgers without partitions, properties and limits.

    Without `store_id` the token is valid for each store whose broker knows the bearer token. A token of an earlier
    version has neither `store_id` nor `creates`.
    """

    may: May
    ledgers: list[str]
    until_ms: int
    dead_letters: str = ""
    creates: bool = True
    store_id: str = ""

    def require_valid(self, now_ms: int, store_id: str) -> None:
        """Raise Unauthenticated if the token has expired, or is for another store."""
        hint = "Load the DataFrame again: its tasks then get new tokens"
        if self.until_ms < now_ms:
            raise Unauthenticated(f"the task token expired {(now_ms - self.until_ms) // 1000} s ago", hint=hint)
        if self.store_id not in ("", store_id):
            raise Unauthenticated(
                f"the task token is for store {self.store_id}, this broker serves store {store_id}", hint=hint
            )

    def require_allows(self, request: Call) -> None:
        """Raise Unauthenticated unless the claims allow the call and all ledgers that its request names."""
        if isinstance(request, AppendCommand) and self.dead_letters and request.ledger == self.dead_letters:
            return
        call, named = request.call, request.named_ledgers()
        if (
            self.may in call.right
            and (not self.ledgers or named.issubset(self.ledgers))
            and (not isinstance(request, CreateLedger) or self._may_create(request))
        ):
            return
        requested = f"{call.name} of {', '.join(sorted(named))}" if named else call.name
        raise Unauthenticated(
            f"a task token allows to {self.may} {', '.join(self.ledgers) or 'any ledger'}, the call was {requested}",
            hint="Make this call on the driver, with its own token",
        )

    def _may_create(self, request: CreateLedger) -> bool:
        """Return whether a task may create this ledger: only a ledger as the sink creates it."""
        return self.creates and request == CreateLedger(request.name, exist_ok=True, lists=False)


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


def _signature(secret: bytes, body: bytes) -> str:
    return hmac.new(secret, body, hashlib.sha256).hexdigest()


HEADER = "authorization"
MIDDLEWARE = "bearer-token"
_SCHEME = "Bearer "
_STREAMS = (flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE, flight.FlightMethod.HANDSHAKE)
_OTHER_USER = (
    "At grpc://127.0.0.1, programs of the broker's own user need none; for other users its operator sets "
    "authenticationTokens"
)
_TOKEN_CHARACTERS_MIN = 16
_MAKE = "Create a token: python3 -c 'import secrets; print(secrets.token_hex(32))'"
_FORMS = "file:/path/of/token or env:NAME"
_USE_FORMS = f"Use {_FORMS}. The value is not shown because it may be a secret"
_SET = (
    "Name a file instead, file:/path (Spark: authParams=file:/path), or set the variable before you start the process "
    "(Spark: before the session)"
)


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
    text = (
        _file_content(_path(name), "token", private=private).decode("latin-1")
        if kind == "file"
        else os.environ.get(name)
    )
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


def token_header(reference: str, token: str) -> list[tuple[bytes, bytes]]:
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

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> BearerToken:
        """Check the token. Refuse a stream without a valid token, before its first message is received.

        gRPC receives the request of every other call before this check. So these calls raise later (`require_token`).
        """
        check = self._check(headers)
        if info.method in _STREAMS and not check.right:
            raise to_flight(_unauthenticated(check))
        return check

    def _check(self, headers: dict[str, list[str | bytes]]) -> BearerToken:
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


def require_token(context: flight.ServerCallContext, clock: Clock, store_id: str) -> None:
    """Raise Unauthenticated if this broker requires a token, and the call had none, or one that is not valid here."""
    check = context.get_middleware(MIDDLEWARE)
    if check is None:
        return
    if not check.right:
        raise _unauthenticated(check)
    if check.claims is not None:
        check.claims.require_valid(clock(), store_id)


def _unauthenticated(check: BearerToken) -> Unauthenticated:
    """Return the error of a call that had no token, or a token that this broker does not accept."""
    fault = "had no token" if check.right is None else "had a token that this broker does not accept"
    hint = f"Name the broker's token by reference: {_FORMS}. {_OTHER_USER}"
    return Unauthenticated(f"the call {fault}", hint=hint)


def require_allowed(context: flight.ServerCallContext, request: Call) -> None:
    """Raise Unauthenticated if the call has a task token that does not allow the call."""
    check = context.get_middleware(MIDDLEWARE)
    if check is not None and check.claims is not None:
        check.claims.require_allows(request)


def _path(name: str) -> Path:
    return Path(f"/{name.lstrip('/')}" if name.startswith("//") else name)


def _file_content(path: Path, what: str, *, private: bool) -> bytes:
    """Return the content of a file. With `private`, raise Refused if others than its owner can read it.

    Exception: a group may read a file of root. Reason: so Kubernetes mounts secrets for a broker that is not root.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            others = 0o007 if status.st_uid == 0 != os.geteuid() else 0o077
            if private and status.st_mode & others:
                raise Refused(
                    f"the {what} file {path} has mode {stat.S_IMODE(status.st_mode):o}, expected 600",
                    hint="Other users can read it: chmod 600. A file of root may be readable by its group (mode 440)",
                )
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: the text has a null byte or a lone surrogate
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise NotFound(f"the {what} file {path} cannot be read: {reason}", hint="Correct the path") from None


TLS_SCHEME = "grpc+tls://"


def read_pem(path: str, *, private: bool = False) -> bytes:
    """Return the content of a file with certificates or a key.

    Raises NotFound if the file cannot be read. With `private`, raises Refused for a file that other users can read.
    """
    require_path(path, "the path of a TLS file")
    return _file_content(Path(path), "TLS", private=private)


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address is a loopback address, which only this host can reach."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
