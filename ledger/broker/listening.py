"""Listening addresses of a broker, and the credentials that the broker requires at each address.

Rules
- An address that other hosts can reach requires three things: TLS, client certificates of a known authority, and a
  bearer token. If the settings lack any of the three, the broker refuses the address before it opens a socket.
- Exception: the broker of a store in a bucket can make certificates and a token of its own. Clients find them in the
  bucket. Such an address requires TLS and the token, and no certificate of a client.
- The broker refuses a key file or token file that other users of the host can read (`ledger.transport.tokens`).
- If a certificate does not match its key, the broker refuses to start. Otherwise gRPC would refuse every call.
- The broker refuses a TCP address that is in use, because gRPC would share the port with the other process.
- Every loopback port requires a token, because every user of the host can connect to it. If the settings name none, the
  broker makes a token that only its user can read (`ledger.transport.discovery`).
- On a host that forbids Unix sockets, clients that can open the store directory use such a port.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.ownership import own_token
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.transport.certificates import EphemeralCertificates
from pyspark_ledger.ledger.transport.discovery import address_token_path
from pyspark_ledger.ledger.transport.tokens import TLS_SCHEME, is_loopback, read_pem, read_tokens, require_reference

_UNIX = "grpc+unix://"
_TCP = ("grpc://", "grpc+tcp://")
_LOOPBACK = "grpc://127.0.0.1"
_SOCKET_BYTES_MAX = 107  # the system's limit for the path of a Unix socket
_FORMS = "Use grpc+unix:///path, grpc://127.0.0.1:PORT or grpc+tls://HOST:PORT"


@dataclass(frozen=True, slots=True)
class Listening:
    """Listening address with the required credentials. `tls` has the TLS arguments of Flight's server.

    Only the user of the broker can call at a `private` address. It is in a directory of this user, or requires a token
    that the broker has made for this user.

    The text of `repr` contains no secret.
    """

    address: str
    tokens: list[str] = field(default_factory=list, repr=False)
    tls: dict[str, Any] = field(default_factory=dict, repr=False)
    private: bool = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("an address with its tokens is never pickled")

    @property
    def guarded(self) -> bool:
        return bool(self.tokens or self.tls)

    @classmethod
    def of(cls, address: str, settings: Settings) -> Self:
        """Return the address with the credentials that the settings require.

        Raises Refused if the broker must not listen at the address with these settings.
        """
        host = _host(address)
        encrypted = address.startswith(TLS_SCHEME)
        if not is_loopback(host) and not address.startswith(_UNIX):
            _require_guarded(address, settings)
        if not address.startswith(_UNIX):
            require_free(address)
        tokens = []
        if settings.authenticationTokens:
            reference = require_reference(settings.authenticationTokens, "setting 'authenticationTokens'")
            tokens = read_tokens(reference, private=True)
        own = not (tokens or encrypted or address.startswith(_UNIX))
        if own:
            tokens = [_token_for(address)]
        return cls(address, tokens, _tls(address, settings) if encrypted else {}, private=own)

    @classmethod
    def own(cls, address: str, certificates: EphemeralCertificates) -> Self:
        """Return an address with certificates and a token that the broker has made itself."""
        _host(address)
        require_free(address)
        pair = tuple(read_pem(str(certificates.file(name))) for name in ("broker.pem", "broker.key"))
        tokens = read_tokens(f"file:{certificates.file('token')}", private=True)
        return cls(address, tokens, {"tls_certificates": [pair]})

    @classmethod
    def loopback(cls, port: int) -> Self:
        """Return a loopback port with a token of its own: `port`, or a free port if `port` is in use."""
        address = f"{_LOOPBACK}:{port}"
        try:
            require_free(address)
        except Refused:
            address = f"{_LOOPBACK}:0"
        return cls(address, [_token_for(address)], {}, private=True)

    def admits_only_owner(self) -> bool:
        """Return whether no other user can call at this address. An operator can share a Unix socket by its mode."""
        shared_modes = stat.S_IWGRP | stat.S_IWOTH
        return self.private or (
            self.address.startswith(_UNIX) and not Path(self.address.removeprefix(_UNIX)).stat().st_mode & shared_modes
        )

    def with_port(self, port: int) -> str:
        """Return the address for clients, with the actual port instead of 0."""
        return f"{self.address[:-2]}:{port}" if self.address.endswith(":0") else self.address


def _token_for(address: str) -> str:
    """Return the token of the killed broker that used an address, because running tasks have it. Else a new token."""
    return own_token(address_token_path(address)) or secrets.token_hex(32)


def _host(address: str) -> str:
    if address.startswith(_UNIX):
        path = address.removeprefix(_UNIX)
        if not path.startswith("/") or not 1 < len(os.fsencode(path)) <= _SOCKET_BYTES_MAX:
            raise Refused(
                f"the broker cannot listen at {address!r}: a socket needs an absolute path of at most "
                f"{_SOCKET_BYTES_MAX} bytes",
                hint=_FORMS,
            )
        return ""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not address.startswith((*_TCP, TLS_SCHEME)) or not host or port is None or parts.path:
        raise Refused(f"the broker cannot listen at {address!r}: it is no valid address", hint=_FORMS)
    return host


def _require_guarded(address: str, settings: Settings) -> None:
    missing = [
        name
        for name in ("tlsCertificateFilePath", "tlsKeyFilePath", "tlsTrustCertsFilePath", "authenticationTokens")
        if not getattr(settings, name)
    ]
    if not address.startswith(TLS_SCHEME):
        raise Refused(
            f"the broker does not listen at {address}: without TLS it listens at loopback and Unix sockets only",
            hint=_FORMS,
        )
    if missing:
        raise Refused(
            f"the broker does not listen at {address}, where other hosts reach it, without {', '.join(missing)}",
            hint="Set them: an address for other hosts requires a client certificate and a token",
        )


def require_free(address: str) -> None:
    """Raise Refused if another process listens at an address."""
    where = urlsplit(address)
    if not where.port:
        return
    try:
        families = socket.getaddrinfo(where.hostname, where.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, target in families[:1]:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(target)
    except OSError as error:
        raise Refused(f"the broker cannot listen at {address}: {error.strerror}", hint="Choose another port") from None


def _tls(address: str, settings: Settings) -> dict[str, Any]:
    import ssl  # imported here, because most brokers listen only at a Unix socket and start faster without it

    certificate, key = settings.tlsCertificateFilePath, settings.tlsKeyFilePath
    if not certificate or not key:
        raise Refused(
            f"{address} needs TLS, but settings 'tlsCertificateFilePath' and 'tlsKeyFilePath' are {certificate!r} and "
            f"{key!r}",
            hint="Set both to the paths of files",
        )
    pair = (read_pem(certificate), read_pem(key, private=True))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # The empty password keeps OpenSSL from prompting on a terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
        if settings.tlsTrustCertsFilePath:
            context.load_verify_locations(settings.tlsTrustCertsFilePath)
    except (OSError, ValueError) as wrong:
        raise Refused(
            f"{certificate}, {key} and {settings.tlsTrustCertsFilePath or 'no authority'} cannot be used together: "
            f"{getattr(wrong, 'reason', None) or wrong}",
            hint="Use PEM files; the key must have no password and must match the first certificate",
        ) from None
    arguments: dict[str, Any] = {"tls_certificates": [pair]}
    if settings.tlsTrustCertsFilePath:
        arguments |= {"verify_client": True, "root_certificates": read_pem(settings.tlsTrustCertsFilePath)}
    return arguments
