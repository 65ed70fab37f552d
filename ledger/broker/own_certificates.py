"""Certificates, token and address of a broker of a store in a bucket, if its settings name none.

    <directory>/tls/ledger-<host>-…     certificates, key and token; mode 0600
    <directory>/tls/port                the port, if the address has port 0, so that the system chose the port

Rules
- If no address is configured, the broker makes certificates and listens at loopback.
- For an address `grpc+tls://`, the broker makes certificates if the settings name no certificates and tokens.
- The next broker of the same directory uses the same files and the same port, because running tasks know them. After
  half a year, a broker makes new files.
- Without the package `cryptography` a broker without an address listens at its private socket only.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.broker.listening import Listening
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.transport.bucket_discovery import OWN_CERTIFICATES, BrokerSecret
from pyspark_ledger.ledger.transport.certificates import EphemeralCertificates
from pyspark_ledger.ledger.transport.tokens import TLS_SCHEME

_LOOPBACK = f"{TLS_SCHEME}127.0.0.1:0"
_UNSPECIFIED = ("0.0.0.0", "::")  # noqa: S104 — for comparisons only
_USED_MS = 183 * 24 * 3600 * 1000
_GIVEN = ("tlsCertificateFilePath", "tlsKeyFilePath", "tlsTrustCertsFilePath", "authenticationTokens")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OwnCertificates:
    """Certificates of one broker. `host` is the name in its address for clients."""

    listening: Listening
    host: str
    is_default: bool
    """Whether no address was given, so that the broker listens at loopback."""
    _files: EphemeralCertificates

    @classmethod
    def of(cls, address: str, settings: Settings, directory: Path, clock: Clock) -> OwnCertificates | None:
        """Return the certificates for a configured address. None if the settings have certificates.

        Raises Refused for an unusable address, and without the package cryptography if an address is given.
        """
        given = any(getattr(settings, name) for name in _GIVEN)
        if address and (given or not address.startswith(TLS_SCHEME)):
            return None
        wanted = address or _LOOPBACK
        host = _host(wanted)
        try:
            files = _files(directory / OWN_CERTIFICATES, host, clock)
        except Refused as error:
            if address:
                raise
            _log.info("the broker listens at its private socket only: %s", error)
            return None
        return cls(Listening.own(_with_former_port(wanted, files), files), host, not address, files)

    def address(self, port: int) -> str:
        """Return the address for clients. Keeps the port for the next broker of the directory."""
        (self._files.directory / "port").write_text(str(port), encoding="ascii")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{TLS_SCHEME}{host}:{port}"

    def secret(self) -> BrokerSecret:
        """Return the secret object, from which clients get the token and the certificate authority."""
        token, authority = self._files.file("token"), self._files.file("ca.pem")
        return BrokerSecret(token.read_text(encoding="ascii"), authority.read_text(encoding="ascii"))


def _host(address: str) -> str:
    """Return the name under which clients reach the broker: the host of its address, or the name of this host."""
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:
        host = ""
    return socket.getfqdn() if host in _UNSPECIFIED else host


def _files(folder: Path, host: str, clock: Clock) -> EphemeralCertificates:
    """Return the files of an earlier broker, or new files.

    The token is written last. So if its file exists, all files exist.
    """
    disk.make_directory(folder)
    files = EphemeralCertificates(folder, host)
    token = files.file("token")
    if token.exists() and clock() - token.stat().st_mtime_ns // 1_000_000 < _USED_MS:
        return files
    for path in folder.iterdir():
        path.unlink()
    return EphemeralCertificates.make(folder, host, host)


def _with_former_port(address: str, files: EphemeralCertificates) -> str:
    """If the address has port 0, return it with the port of an earlier broker, unless this port is in use."""
    port = files.directory / "port"
    if not address.endswith(":0") or not port.exists():
        return address
    former = f"{address[:-2]}:{port.read_text(encoding='ascii')}"
    try:
        Listening.own(former, files)
    except Refused:
        return address
    return former
