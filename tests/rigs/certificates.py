"""Certificate authorities and certificates for one test run, made by this project's code, and deleted afterwards."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.transport import certificates as product

_DAYS = 2


class Authority:
    """Authority that signs certificates, by default for `localhost` and 127.0.0.1."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._signer = product.Authority(name, system_clock_ms(), _DAYS)
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(self._signer.certificate)

    def sign(self, name: str, *, days: int = _DAYS, address: str = "127.0.0.1") -> tuple[Path, Path]:
        """Return a certificate and its key. With -1 days, the certificate has expired."""
        certificate, key = (self._directory / f"{name}.{kind}" for kind in ("crt", "key"))
        signed, private = self._signer.sign(name, ("localhost", address), days)
        certificate.write_bytes(signed)
        key.write_bytes(private)
        key.chmod(0o600)
        return certificate, key


@functools.cache
def certificates() -> dict[str, str]:
    """Return an authority, certificates of two servers and a client, and a token, made once for a run of tests."""
    folder = Path(tempfile.mkdtemp(prefix="ledger-tls-"))
    atexit.register(shutil.rmtree, folder)
    authority, found = Authority(folder, "authority"), dict[str, str]()
    for name in ("one", "two", "client"):
        certificate, key = authority.sign(name)
        found |= {name: str(certificate), f"{name}_key": str(key)}
    (folder / "token").write_text("a-token-of-sixteen-characters\n")
    for path in folder.iterdir():
        path.chmod(0o600)
    return {**found, "ca": str(authority.ca), "token": f"file:{folder / 'token'}"}


def tls(*names: str) -> dict[str, str | int]:
    """Return settings of a broker on loopback with TLS. Names in braces stand for the results of `certificates`."""
    files = {
        "bindAddress": "grpc+tls://localhost:0",
        "tlsCertificateFilePath": "{one}",
        "tlsKeyFilePath": "{one_key}",
        "tlsTrustCertsFilePath": "{ca}",
        "authenticationTokens": "{token}",
    }
    return {name: files[name] for name in ("bindAddress", *names)}
