"""Certificates and a token that are made for one broker and its clients.

A new certificate authority signs two certificates. Then the authority's key is forgotten.

    ca.pem               certificate of the authority, which broker and clients trust
    broker.pem  .key     certificate and key of the broker, for its names and addresses
    client.pem  .key     certificate and key of the executors
    token                token of the driver; the driver derives the tokens of tasks from it

Rules
- The files are in a directory that only the user can read. Keys and token have mode 0600 from their creation.
- The authority's key stays in memory, and no file contains it.
- Each file name has a part `mark`. Files that Spark distributes to executors have a random mark, because Spark
  distinguishes these files only by their names.
- The package `cryptography` is imported when the first authority is made.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName, KeyUsage, Name, ObjectIdentifier

_DAYS = 365
Purpose = Literal["server", "client", "both"]


@dataclass(frozen=True, slots=True)
class EphemeralCertificates:
    """Paths of the certificates, keys and token of one broker."""

    directory: Path
    mark: str

    def file(self, name: str) -> Path:
        return self.directory / f"ledger-{self.mark}-{name}"

    @classmethod
    def make(cls, directory: Path, host: str, mark: str = "") -> EphemeralCertificates:
        """Create all files for a broker named `host` and `localhost`, the token last. The default mark is random.

        Raises Refused without package cryptography.
        """
        made = cls(directory, mark or secrets.token_hex(4))
        authority = Authority("ledger", system_clock_ms())
        made.file("ca.pem").write_bytes(authority.certificate)
        for who in ("broker", "client"):
            purpose: Purpose = "server" if who == "broker" else "client"
            certificate, key = authority.sign(who, (host, "localhost", "127.0.0.1"), purpose=purpose)
            made.file(f"{who}.pem").write_bytes(certificate)
            _write_private(made.file(f"{who}.key"), key)
        _write_private(made.file("token"), secrets.token_hex(32).encode())
        return made


class Authority:
    """Certificate authority with a P-256 key in memory. Its certificates are in PEM and valid from `now_ms`."""

    def __init__(self, name: str, now_ms: int, days: int = _DAYS) -> None:
        """Make the key and the authority's own certificate. Raises Refused without package cryptography."""
        try:
            from cryptography import x509
        except ImportError as missing:
            raise Refused(
                "certificates are made by the package cryptography, which is not installed here",
                hint="pip install 'pyspark-ledger[crypto]' where the broker is started. Or run `ledger serve` with "
                "certificates of yours, and use its address as the store",
            ) from missing
        self._start = datetime.fromtimestamp(now_ms // 1000, UTC)
        self._key, self._name = _new_key(), _common_name(name)
        built = self._builder(self._name, self._key.public_key(), days)
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        built = built.add_extension(_use(signs_certificates=True), critical=True)
        self.certificate = _pem(self._signed(built))

    def sign(
        self, name: str, hosts: Sequence[str], days: int = _DAYS, *, purpose: Purpose = "both"
    ) -> tuple[bytes, bytes]:
        """Return a certificate for the names and addresses of `hosts`, and its key without a password.

        With `purpose` "client", no client accepts the certificate as a broker's. So the holder of a client's key, such
        as an executor, cannot answer in place of the broker. With a negative number of `days` the certificate has
        already expired.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        alternatives = [_alternative(host) for host in dict.fromkeys(hosts)]
        key = _new_key()
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        built = self._builder(_common_name(name), key.public_key(), days).add_extension(issuer, critical=False)
        built = built.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        built = built.add_extension(_use(signs_certificates=False), critical=True)
        built = built.add_extension(x509.ExtendedKeyUsage(_purposes(purpose)), critical=False)
        return _pem(self._signed(built)), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def _builder(self, name: Name, key: EllipticCurvePublicKey, days: int) -> CertificateBuilder:
        from cryptography import x509

        end = self._start + timedelta(days=days)
        built = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key)
        built = built.serial_number(x509.random_serial_number())
        built = built.not_valid_before(min(self._start, end - timedelta(days=1))).not_valid_after(end)
        return built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)

    def _signed(self, built: CertificateBuilder) -> Certificate:
        from cryptography.hazmat.primitives.hashes import SHA256

        return built.sign(self._key, SHA256())


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _common_name(name: str) -> Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _use(*, signs_certificates: bool) -> KeyUsage:
    """Return the permitted use of a key: to sign certificates and their revocations, or TLS."""
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _purposes(purpose: Purpose) -> list[ObjectIdentifier]:
    from cryptography.x509.oid import ExtendedKeyUsageOID

    ids = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}
    return list(ids.values()) if purpose == "both" else [ids[purpose]]


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _alternative(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    plain = host.replace("-", "a").replace(".", "a")
    if not plain.isascii() or not plain.isalnum() or "" in host.split("."):
        raise Refused(
            f"{host!r} is no host name and no IP address",
            hint="Set `host` to the name by which executors reach this host",
        )
    return x509.DNSName(host)


def _write_private(path: Path, data: bytes) -> None:
    """Write a new file. Only the user can read the file, from its creation on."""
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(data)
