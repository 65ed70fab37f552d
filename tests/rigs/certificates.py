"""Authorities and certificates for one test run, made by the command `openssl`. Nothing of them is kept."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

_CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


class Authority:
    """Signs certificates, for `localhost` and 127.0.0.1 unless an address is given."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = directory / f"{name}.key"
        self.ca = directory / f"{name}.pem"
        _openssl("req", "-x509", *_CURVE, "-keyout", self._key, "-out", self.ca, "-subj", f"/CN={name}", "-days", "2")

    def sign(self, name: str, *, days: int = 2, address: str = "127.0.0.1") -> tuple[Path, Path]:
        """A certificate and its key; with -1 days, one that has expired."""
        certificate, key, request, extensions = (
            self._directory / f"{name}.{kind}" for kind in ("crt", "key", "csr", "ext")
        )
        _openssl("req", *_CURVE, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        extensions.write_text(f"subjectAltName=DNS:localhost,IP:{address}\n")
        signer = ["-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-extfile", extensions]
        _openssl("x509", "-req", "-in", request, *signer, "-days", str(days), "-out", certificate)
        key.chmod(0o600)
        return certificate, key


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@functools.cache
def certificates() -> dict[str, str]:
    """An authority, certificates of two servers and a client, and a token: made once for a run of tests."""
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
    """Settings of a broker on loopback with TLS; `certificates` fill in the names."""
    files = {
        "bindAddress": "grpc+tls://localhost:0",
        "tlsCertificateFilePath": "{one}",
        "tlsKeyFilePath": "{one_key}",
        "tlsTrustCertsFilePath": "{ca}",
        "authenticationTokens": "{token}",
    }
    return {name: files[name] for name in ("bindAddress", *names)}
