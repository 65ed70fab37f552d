"""Address of the HTTP service, and the credentials that it requires.

    http://127.0.0.1:PORT     loopback only; a token if the broker requires tokens
    https://HOST:PORT         any address; the broker's certificate and a token are required

Rules
- An address that other hosts can reach requires TLS and tokens. Without either it is refused before a socket is opened.
- A token is sent as `Authorization: Bearer TOKEN`, or as the password of `Basic`, which browsers ask for. Any user name
  is accepted.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ssl
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.transport.tokens import is_loopback, read_pem, read_tokens, require_reference

_FORMS = "Use http://127.0.0.1:PORT, or https://HOST:PORT with a certificate and tokens"


@dataclass(frozen=True, slots=True)
class WebAddress:
    """Address to listen at. If `tokens` is not empty, each request must have one of these tokens."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    tokens: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, address: str, settings: Settings) -> Self:
        """Return the address with its credentials. Raises Refused if the broker must not listen there."""
        host, port, encrypted = _parts(address)
        if not encrypted and not is_loopback(host):
            raise Refused(f"the status page is not served at {address}, where other hosts reach it", hint=_FORMS)
        if encrypted and not (settings.tlsCertificateFilePath and settings.tlsKeyFilePath):
            raise Refused(
                f"{address} requires settings 'tlsCertificateFilePath' and 'tlsKeyFilePath', they are "
                f"{settings.tlsCertificateFilePath!r} and {settings.tlsKeyFilePath!r}",
                hint="Name both files",
            )
        if encrypted and not settings.authenticationTokens:
            raise Refused(f"{address} requires setting 'authenticationTokens', it is empty", hint=_FORMS)
        if settings.webAdmin and not settings.authenticationTokens:
            raise Refused(
                f"{address} with setting 'webAdmin' requires setting 'authenticationTokens', it is empty",
                hint="Name a file with tokens, or set webAdmin to 0",
            )
        tokens: tuple[bytes, ...] = ()
        if settings.authenticationTokens:
            reference = require_reference(settings.authenticationTokens, "setting 'authenticationTokens'")
            tokens = tuple(token.encode() for token in read_tokens(reference, private=True))
        return cls(host, port, _tls(address, settings) if encrypted else None, tokens)

    def url(self, port: int) -> str:
        """Return the URL of the service at its actual port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls is None else 'https'}://{host}:{port}/"

    def allows_host(self, header: str) -> bool:
        """Return whether the header `Host` of a request names this broker. Protects against DNS rebinding.

        A page of another site can make a browser send requests to loopback, but only with that site's name as host.
        """
        if self.tls is not None:
            return True
        host = urlsplit(f"//{header}").hostname or ""
        return is_loopback(host) or host == self.host

    def allows(self, authorization: str) -> bool:
        """Return whether the header `Authorization` has one of the tokens.

        Every token is compared, so that the time does not reveal which token matched.
        """
        given = _token_of(authorization)
        return not self.tokens or any([hmac.compare_digest(given, token) for token in self.tokens])  # noqa: C419


def _parts(address: str) -> tuple[str, int, bool]:
    if "@" in address:
        raise Refused(
            "the address of the status page contains a user or a password, which is not shown here",
            hint=f"{_FORMS}. Clients send a token of authenticationTokens",
        )
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username) if host else False
    if not plain or not host or port is None or parts.scheme not in ("http", "https"):
        raise Refused(f"{address!r} is not an address for the status page", hint=_FORMS)
    return host, port, parts.scheme == "https"


def _token_of(authorization: str) -> bytes:
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1", "replace")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _tls(address: str, settings: Settings) -> ssl.SSLContext:
    certificate, key = settings.tlsCertificateFilePath, settings.tlsKeyFilePath
    for path in (certificate, key):
        read_pem(path, private=path == key)  # names the file if it is missing or others can read it
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # The empty password keeps OpenSSL from prompting on a terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as wrong:
        raise Refused(
            f"{certificate} and {key} cannot be used together at {address}: {getattr(wrong, 'reason', None) or wrong}",
            hint="Give PEM files; the key, without a password, must be that of the first certificate",
        ) from None
    return context
