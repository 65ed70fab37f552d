"""Certificates and a token for one broker and its clients. The authority signs two certificates and is deleted.

    ca.pem               the authority that both sides trust
    broker.pem  .key     the broker's, for its names and addresses
    client.pem  .key     the executors'
    token                the driver's; tasks get derived tokens

Rules
- The files are in a directory that only the user can read.
- The authority's key is deleted as soon as it has signed.
- Each file name has a unique mark, because Spark ships files by their names alone.
"""

from __future__ import annotations

import ipaddress
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pyspark_ledger.ledger.errors import Refused

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_DAYS = "365"


@dataclass(frozen=True, slots=True)
class EphemeralCertificates:
    """Paths of the files."""

    directory: Path
    mark: str

    def file(self, name: str) -> Path:
        return self.directory / f"ledger-{self.mark}-{name}"

    @classmethod
    def make(cls, directory: Path, host: str) -> EphemeralCertificates:
        """Create all files for a broker named `host` and `localhost`. Raises Refused without openssl."""
        if shutil.which("openssl") is None:
            raise Refused(
                "there is no command openssl to make certificates with",
                hint="Install it, or run `ledger serve` with certificates of yours and name its address as the store",
            )
        made = cls(directory, secrets.token_hex(4))
        names = made.directory / "names"
        names.write_text(f"subjectAltName={_alternative(host)},DNS:localhost,IP:127.0.0.1\n", encoding="ascii")
        ca, key = made.file("ca.pem"), made.directory / "ca.key"
        made._openssl("req", "-x509", *_CURVE, "-keyout", key, "-out", ca, "-subj", "/CN=ledger", "-days", _DAYS)
        for who in ("broker", "client"):
            request = made.directory / f"{who}.csr"
            own_key = made.file(f"{who}.key")
            made._openssl("req", *_CURVE, "-keyout", own_key, "-out", request, "-subj", f"/CN={who}")
            signed = made.file(f"{who}.pem")
            signer = ("-CA", ca, "-CAkey", key, "-CAcreateserial", "-extfile", names, "-days", _DAYS)
            made._openssl("x509", "-req", "-in", request, *signer, "-out", signed)
            own_key.chmod(0o600)
            request.unlink()
        for scratch in (key, names, *directory.glob("*.srl")):
            scratch.unlink()
        token = made.file("token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="ascii")
        return made

    def _openssl(self, *words: str | Path) -> None:
        done = subprocess.run(  # noqa: S603  # words of our own, and a host's name that was checked
            ["openssl", *map(str, words)],  # noqa: S607  # the user's own
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise Refused(f"openssl {words[0]} ended with status {done.returncode}: {said}", hint="Is it a usual one?")


def _alternative(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        pass
    if not host or not all(part.isalnum() for part in host.replace("-", "a").split(".")):
        raise Refused(f"{host!r} is no host's name or number", hint="Give `host`: how executors call this host")
    return f"DNS:{host}"
