"""The reason for which TLS refuses a connection to a broker: gRPC says little more than that the handshake failed.

Rules: the handshake is done once more by itself, with the client's files. A broker that does not answer is no reason.
"""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from pyspark_ledger.ledger.errors import LedgerError, Refused, Unauthenticated

_PROBE_SECONDS = 5.0
# A broker that is killed in that moment hangs up, too: it is asked again, and does not answer any more.
_PROBES = 3
_X509_EXPIRED = 10
_HINT = "Compare the client's authority, certificate and key with the broker's"


def handshake_failure(address: str, ca: str, certificate: str, key: str) -> LedgerError | None:
    """Return the error that TLS has for an address and a client's files; None without one, or without an answer."""
    try:
        context = _context(ca, certificate, key)
    except (OSError, ValueError) as wrong:
        said = getattr(wrong, "reason", None) or wrong
        return Refused(f"the TLS files of the client cannot be used: {said}", hint=_HINT)
    try:
        return _failure(address, context, certificate, key)
    except (OSError, ValueError):
        return None


def _failure(address: str, context: ssl.SSLContext, certificate: str, key: str) -> LedgerError | None:
    for _ in range(_PROBES):
        try:
            if _kept_open(address, context):
                return None
        except ssl.SSLCertVerificationError as wrong:
            return Unauthenticated(
                f"the broker at {address} shows a certificate that is not trusted: {wrong.verify_message}", hint=_HINT
            )
        except ssl.SSLError as wrong:
            said = (wrong.reason or str(wrong)).lower().replace("_", " ")
            return Unauthenticated(f"TLS with the broker at {address} fails: {said}", hint=_HINT)
    return _not_taken(address, certificate, key)


def _not_taken(address: str, certificate: str, key: str) -> LedgerError:
    """A server of gRPC hangs up without a word when it does not like the client's certificate."""
    if not certificate:
        return Unauthenticated(f"the broker at {address} asks for a certificate, none was given", hint=_HINT)
    why = ": it has expired" if _expired(certificate, key) else ""
    return Unauthenticated(f"the broker at {address} does not take the certificate {certificate}{why}", hint=_HINT)


def _context(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca or None)
    context.set_alpn_protocols(["h2"])
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def _kept_open(address: str, context: ssl.SSLContext) -> bool:
    """Whether a broker still listens after the handshake; raises what TLS or the network has against it."""
    where = urlsplit(address)
    plain = socket.create_connection((where.hostname or "", where.port or 0), _PROBE_SECONDS)
    with plain:
        try:
            with context.wrap_socket(plain, server_hostname=where.hostname) as secured:
                return bool(secured.recv(1))
        except (ssl.SSLEOFError, ConnectionResetError):
            return False


def _expired(certificate: str, key: str) -> bool:
    """Whether a certificate is out of date: it is shown to a client in memory that trusts it and nothing else."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(certificate)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as wrong:
            return wrong.verify_code == _X509_EXPIRED
    return False
