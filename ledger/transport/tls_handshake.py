"""Diagnosis of a failed TLS connection to a broker. gRPC reports only that the handshake has failed.

The client repeats the handshake without gRPC, with its own certificate files, to find the reason. If no broker answers,
there is no TLS error to report.
"""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from pyspark_ledger.ledger.errors import LedgerError, Refused, Unauthenticated

_PROBE_SECONDS = 5.0
# Number of attempts before a closed connection counts as a refusal. Reason: a broker that is killed during the
# handshake also closes the connection, but then the next attempt gets no answer.
_PROBES = 3
_X509_EXPIRED = 10
_HINT = "Compare the client's authority, certificate and key with the broker's"


def handshake_failure(address: str, ca: str, certificate: str, key: str, authority: str) -> LedgerError | None:
    """Return the error of a TLS handshake with the broker at `address`, with a client's certificate files.

    `authority` has the authority's certificate as text, instead of the file `ca`.

    Returns None if the handshake succeeds, or if the broker does not answer.
    """
    try:
        context = _context(ca, certificate, key, authority)
    except (OSError, ValueError) as wrong:
        reason = getattr(wrong, "reason", None) or wrong
        return Refused(f"the client cannot use its TLS files: {reason}", hint=_HINT)
    try:
        return _failure(address, context, certificate, key)
    except (OSError, ValueError):
        return None


def _failure(address: str, context: ssl.SSLContext, certificate: str, key: str) -> LedgerError | None:
    for _ in range(_PROBES):
        try:
            if _stays_open(address, context):
                return None
        except ssl.SSLCertVerificationError as wrong:
            return Unauthenticated(
                f"the client does not trust the certificate of the broker at {address}: {wrong.verify_message}",
                hint=_HINT,
            )
        except ssl.SSLError as wrong:
            reason = (wrong.reason or str(wrong)).lower().replace("_", " ")
            return Unauthenticated(f"TLS with the broker at {address} fails: {reason}", hint=_HINT)
    return _refused_certificate(address, certificate, key)


def _refused_certificate(address: str, certificate: str, key: str) -> LedgerError:
    """Return the error for a client certificate that the broker refuses.

    In this case gRPC's server closes the connection without a reason.
    """
    if not certificate:
        return Unauthenticated(f"the broker at {address} requires a client certificate, none was given", hint=_HINT)
    reason = ": it has expired" if _has_expired(certificate, key) else ""
    return Unauthenticated(f"the broker at {address} refuses the certificate {certificate}{reason}", hint=_HINT)


def _context(ca: str, certificate: str, key: str, authority: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca or None, cadata=authority or None)
    context.set_alpn_protocols(["h2"])
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def _stays_open(address: str, context: ssl.SSLContext) -> bool:
    """Return whether the broker keeps the connection open after the handshake.

    Raises ssl.SSLError or OSError.
    """
    where = urlsplit(address)
    plain = socket.create_connection((where.hostname or "", where.port or 0), _PROBE_SECONDS)
    with plain:
        try:
            with context.wrap_socket(plain, server_hostname=where.hostname) as secured:
                return bool(secured.recv(1))
        except (ssl.SSLEOFError, ConnectionResetError):
            return False


def _has_expired(certificate: str, key: str) -> bool:
    """Return whether a certificate has expired.

    Connects a TLS server with this certificate to a TLS client that trusts only this certificate, both in memory. The
    client checks the dates.
    """
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
