"""Credentials of a client for a broker on another host: paths of certificate files, and a reference to a token.

    Credentials("/etc/ledger/ca.pem", "/etc/ledger/me.pem", "/etc/ledger/me.key", "file:/etc/ledger/token")

Rules
- A path or a reference is no secret, so it can be printed and pickled.
- Exception: the token of a Spark task is a secret. It is pickled with the task's partition. It is never printed, it
  has few rights, and it expires.
- A process reads the files at every new connection. Each process that uses the broker must have the files at the same
  paths. Exception: if the client itself has no certificate, its Spark tasks get the content of the file `ca`.
- `bucket` names the access to the bucket of a store, where a client finds the address and the token of its broker. It
  contains no secret, so it can be pickled.
- The file `ca` has the certificate of the authority that signed the broker's certificate. It is public.
- TLS, the encryption of a connection, begins with a *handshake*: both sides check certificates. gRPC gives no reason
  for a failed handshake. So the client repeats the handshake without gRPC, and raises the error of TLS. It does not
  retry the call, because a retry cannot correct a certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.protocol.request import May
from pyspark_ledger.ledger.transport.tokens import (
    LEDGERS_NAMED_MAX,
    TASK_TOKEN_MS,
    TLS_SCHEME,
    TaskClaims,
    is_loopback,
    read_pem,
    read_tokens,
    require_reference,
    task_token,
    token_header,
)

_REFERENCES = ("ca", "certificate", "key", "token")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a client. Each field can be empty. Without `ca` the client trusts the authorities of the system.

    A Spark task has `task_token` instead of `token`. `scope` names the operation and the ledgers that the task token
    allows. A task can have `authority`, the content of the file `ca`, instead of the file. Comparisons ignore
    `task_token`. `bucket` is the access to the bucket of a store.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    scope: str = ""
    task_token: str = field(default="", repr=False, compare=False)
    authority: str = field(default="", repr=False)
    bucket: S3Options = field(default_factory=S3Options)

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            given, missing = ("a certificate", "key") if self.certificate else ("a key", "certificate")
            raise Refused(f"{given} was given without its {missing}", hint="Set both files, or neither")
        if self.token:
            require_reference(self.token, "the token of the client")

    @property
    def empty(self) -> bool:
        """Whether all credentials for a broker are empty."""
        return replace(self, bucket=S3Options()) == Credentials() and not self.task_token

    def references(self) -> dict[str, str]:
        """Return the references that are set, for a message, such as the progress of a query."""
        own = {name: str(getattr(self, name)) for name in _REFERENCES}
        return {**{name: text for name, text in own.items() if text}, **self.bucket.references()}

    @classmethod
    def of_references(cls, references: Mapping[str, str]) -> Credentials:
        """Return the credentials of a message. Raises Refused for a secret or for code, TypeError for other names."""
        own = {name: text for name, text in references.items() if name in _REFERENCES}
        rest = {name: text for name, text in references.items() if name not in _REFERENCES}
        return cls(**own, bucket=S3Options.of_references(rest))

    def for_task(
        self,
        may: May,
        ledgers: Collection[str],
        clock: Clock,
        dead_letters: str = "",
        *,
        store_id: str = "",
        creates: bool = False,
    ) -> Credentials:
        """Return the credentials of a task, with a task token for these ledgers of a store.

        `creates`: the task creates ledgers. Returns these credentials unchanged if they have no token.
        """
        if not self.token:
            return self
        named = sorted(ledgers) if len(ledgers) <= LEDGERS_NAMED_MAX else []
        claims = TaskClaims(may, named, clock() + TASK_TOKEN_MS, dead_letters, creates, store_id)
        derived = task_token(read_tokens(self.token)[0], claims)
        task = replace(self, token="", scope=" ".join([may, *named, dead_letters]), task_token=derived)
        if not self.ca or self.certificate:
            return task
        return replace(task, ca="", authority=read_pem(self.ca).decode("latin-1"))

    def with_files(self, find: Callable[[str], str]) -> Credentials:
        """Return the credentials with the files' paths on this host, which `find` returns."""
        paths: dict[str, Any] = {
            part: find(path) for part in ("ca", "certificate", "key") if (path := getattr(self, part))
        }
        return replace(self, **paths) if paths else self

    def header(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of a call. Reads the token."""
        return token_header(self.token, self.task_token)

    def require_usable(self, address: str) -> None:
        """Raise Refused if the address does not use the certificates, or if a token would be sent unencrypted."""
        if address.startswith(TLS_SCHEME):
            return
        if self.ca or self.certificate or self.authority:
            raise Refused(f"certificates were given for {address}, which has no TLS", hint=f"Connect to {TLS_SCHEME}…")
        host = urlsplit(address).hostname or ""
        if (self.token or self.task_token) and not (address.startswith("grpc+unix://") or is_loopback(host)):
            raise Refused(
                f"a token was given for {address}, which would send it unencrypted to another host",
                hint=f"Connect to {TLS_SCHEME}…",
            )

    def connection(self, address: str) -> dict[str, Any]:
        """Return the arguments of Flight's client for an address. Raises NotFound for an unreadable file."""
        if not address.startswith(TLS_SCHEME):
            return {}
        roots = read_pem(self.ca) if self.ca else self.authority.encode("latin-1")
        arguments: dict[str, Any] = {"tls_root_certs": roots} if roots else {}
        if self.certificate:
            arguments |= {"cert_chain": read_pem(self.certificate), "private_key": read_pem(self.key)}
        return arguments

    def failure(self, address: str) -> LedgerError | None:
        """Return the TLS error of a connection to an address. None if TLS succeeds or the broker does not answer."""
        if not address.startswith(TLS_SCHEME):
            return None
        from pyspark_ledger.ledger.transport.tls_handshake import handshake_failure  # seldom needed, so imported here

        return handshake_failure(address, self.ca, self.certificate, self.key, self.authority)
