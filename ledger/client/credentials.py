"""What a client shows a broker of another host, and whom it trusts: files and a token, all by reference.

    Credentials("/etc/ledger/ca.pem", "/etc/ledger/me.pem", "/etc/ledger/me.key", "file:/etc/ledger/token")

Rules
- These are names only: they may be printed and pickled. The one exception is the token of a task: it is pickled with
  the partition that it is for, never printed, allows one thing and runs out.
- Files are read by the process that connects, at every new connection; each process that uses the broker must have them
  at the same paths.
- gRPC says of a failed handshake little more than that it failed. So after a failure at a TLS address the handshake is
  done once more by itself, and what TLS says against it becomes the error, at once: no retry makes a certificate right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.transport.tokens import (
    LEDGERS_NAMED_MAX,
    TASK_TOKEN_MS,
    TLS_SCHEME,
    May,
    TaskClaims,
    is_loopback,
    read_pem,
    read_tokens,
    require_reference,
    task_token,
    token_header,
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the parts are; an empty text is a part that is not used. Without `ca` the system's authorities count.

    A task has `task_token` in the place of `token`, for the one thing that `scope` names; a newer one of the same scope
    counts as the same credentials.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    scope: str = ""
    task_token: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            one, other = ("a certificate", "key") if self.certificate else ("a key", "certificate")
            raise Refused(f"{one} was given without its {other}", hint="Give both files, or neither")
        if self.token:
            require_reference(self.token, "the token of the client")

    @property
    def empty(self) -> bool:
        """Whether nothing is shown and the system's authorities count."""
        return not (self.ca or self.certificate or self.key or self.token or self.task_token)

    def for_task(self, may: May, ledgers: Collection[str], clock: Clock, dead_letters: str = "") -> Credentials:
        """What a task shows instead: a token of its own, for these ledgers. Without a token the parts as they are."""
        if not self.token:
            return self
        named = sorted(ledgers) if len(ledgers) <= LEDGERS_NAMED_MAX else []
        claims = TaskClaims(may, named, clock() + TASK_TOKEN_MS, dead_letters)
        made = task_token(read_tokens(self.token)[0], claims)
        return replace(self, token="", scope=" ".join([may, *named, dead_letters]), task_token=made)

    def with_files(self, find: Callable[[str], str]) -> Credentials:
        """The same, each file where `find` says that it is on this host."""
        found = {part: find(path) for part in ("ca", "certificate", "key") if (path := getattr(self, part))}
        return replace(self, **found) if found else self

    def header(self) -> list[tuple[bytes, bytes]]:
        """What every call carries."""
        return token_header(self.token, self.task_token)

    def require_usable(self, address: str) -> None:
        """Refuse what would not be used, or would send a token in the clear."""
        if address.startswith(TLS_SCHEME):
            return
        if self.ca or self.certificate:
            raise Refused(
                f"certificates were given for {address}, which is not encrypted", hint=f"Connect to {TLS_SCHEME}…"
            )
        host = urlsplit(address).hostname or ""
        if (self.token or self.task_token) and not (address.startswith("grpc+unix://") or is_loopback(host)):
            raise Refused(
                f"a token was given for {address}, where everybody on the way could read it",
                hint=f"Connect to {TLS_SCHEME}…",
            )

    def connection(self, address: str) -> dict[str, Any]:
        """What Flight's client takes to connect to an address. Raises NotFound for a file that cannot be read."""
        if not address.startswith(TLS_SCHEME):
            return {}
        found: dict[str, Any] = {"tls_root_certs": read_pem(self.ca)} if self.ca else {}
        if self.certificate:
            found |= {"cert_chain": read_pem(self.certificate), "private_key": read_pem(self.key)}
        return found

    def failure(self, address: str) -> LedgerError | None:
        """What TLS has against a connection to an address; None when it has nothing, or the host does not answer."""
        if not address.startswith(TLS_SCHEME):
            return None
        from pyspark_ledger.ledger.transport.tls_handshake import handshake_failure  # most clients need no TLS

        return handshake_failure(address, self.ca, self.certificate, self.key)
