"""Credentials of a client for a broker on another host, and the authorities that the client trusts, all by reference.

    Credentials("/etc/ledger/ca.pem", "/etc/ledger/me.pem", "/etc/ledger/me.key", "file:/etc/ledger/token")

Rules
- These are names only, so they may be printed and pickled. The exception is the token of a task: it is pickled with its
  partition, never printed, allows one operation and expires.
- The connecting process reads the files at every new connection. Each process that uses the broker must have them at
  the same paths.
- gRPC gives no reason for a failed handshake. So after a failure at a TLS address the client repeats the handshake
  alone, and raises the fault that TLS names. It raises at once, because a retry cannot mend a certificate.
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
    """References to the parts; an empty text means none. Without `ca` the system's authorities are used.

    A task has `task_token` instead of `token`, for the operation of `scope`. A newer token of the same scope counts as
    equal credentials.
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
        """Whether there is no credential, and the system's authorities are used."""
        return not (self.ca or self.certificate or self.key or self.token or self.task_token)

    def for_task(self, may: May, ledgers: Collection[str], clock: Clock, dead_letters: str = "") -> Credentials:
        """Return the credentials of a task: a token of its own, for these ledgers. Without a token, the unchanged
        parts.
        """
        if not self.token:
            return self
        named = sorted(ledgers) if len(ledgers) <= LEDGERS_NAMED_MAX else []
        claims = TaskClaims(may, named, clock() + TASK_TOKEN_MS, dead_letters)
        made = task_token(read_tokens(self.token)[0], claims)
        return replace(self, token="", scope=" ".join([may, *named, dead_letters]), task_token=made)

    def with_files(self, find: Callable[[str], str]) -> Credentials:
        """Return the credentials with each file at its path on this host, by `find`."""
        found = {part: find(path) for part in ("ca", "certificate", "key") if (path := getattr(self, part))}
        return replace(self, **found) if found else self

    def header(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of every call."""
        return token_header(self.token, self.task_token)

    def require_usable(self, address: str) -> None:
        """Refuse credentials that would be unused, or would send a token in the clear."""
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
        """Return the arguments of Flight's client for an address. Raises NotFound for an unreadable file."""
        if not address.startswith(TLS_SCHEME):
            return {}
        found: dict[str, Any] = {"tls_root_certs": read_pem(self.ca)} if self.ca else {}
        if self.certificate:
            found |= {"cert_chain": read_pem(self.certificate), "private_key": read_pem(self.key)}
        return found

    def failure(self, address: str) -> LedgerError | None:
        """Return the TLS fault of a connection to an address; None without one, or if the host does not answer."""
        if not address.startswith(TLS_SCHEME):
            return None
        from pyspark_ledger.ledger.transport.tls_handshake import handshake_failure  # most clients need no TLS

        return handshake_failure(address, self.ca, self.certificate, self.key)
