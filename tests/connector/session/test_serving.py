"""Goal: a broker for executors is started in the place of a private one, with certificates that fit, and says when its
disk will go. Method: a real broker and real handshakes, without Spark; the whole is in test_cluster.py and
docs/clusters.md.
"""

from __future__ import annotations

import ssl
import stat
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pyspark_ledger import DefaultSource
from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.session.cluster import (
    ServedStore,
    _free_port,
    _start,
    serve_session,
    warn_of_short_life,
)
from pyspark_ledger.connector.session.ephemeral_disk import dies_with_its_machine
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.transport.certificates import EphemeralCertificates

MOUNTS = """
/dev/nvme0n1p1 / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
/dev/nvme1n1 /mnt/ledgers ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/mnt/ledgers/store", ""),
        ("/home/me/store", ""),
        ("/run/store", "memory"),
        ("/local_disk0/store", "a disk of this Databricks cluster"),
        ("/mnt1/store", "the instance store of this EMR node"),
        ("/mnt10/store", ""),
    ],
)
def test_a_disk_that_goes_with_the_cluster_is_known(path: str, what: str) -> None:
    assert dies_with_its_machine(Path(path), MOUNTS) == what


def test_the_root_of_a_container_is_its_layer() -> None:
    assert dies_with_its_machine(Path("/store"), "overlay / overlay rw 0 0\n") == "the layer of a container"
    assert dies_with_its_machine(Path("/data/x"), "overlay / overlay rw 0 0\n/dev/b /data xfs rw 0 0\n") == ""
    assert dies_with_its_machine(Path("/store"), "") == ""


def test_a_disk_that_goes_with_the_cluster_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        warn_of_short_life(Path("/local_disk0/said-once"))
    said = capfd.readouterr().err
    assert said.count("the store /local_disk0/said-once is on a disk of this Databricks cluster") == 1
    assert "docs/clusters.md" in said


@pytest.mark.thorough
def test_served_in_the_place_of_a_private_broker(store: Path, tmp_path: Path) -> None:
    before = connect(store).ledger("orders")
    before.append([{"n": 1}])
    directory = tmp_path / "tls"
    directory.mkdir(mode=0o700)
    tls = EphemeralCertificates.make(directory, "localhost")
    address = f"grpc+tls://localhost:{_free_port('localhost')}"
    served = ServedStore(_start(store, address, tls), address, store, tls)
    try:
        options = served.options
        shown = Credentials(
            options["tlsTrustCertsFilePath"],
            options["tlsCertificateFilePath"],
            options["tlsKeyFilePath"],
            options["authParams"],
        )
        there = connect(address, ca=shown.ca, certificate=shown.certificate, key=shown.key, token=shown.token)
        there.ledger("orders").append([{"n": 2}])
        # Clients of the private broker continue at the private socket.
        assert before.read()["n"].to_pylist() == [1, 2]
        assert served.connect().ledger("orders").describe().rows == 2
        # The session's default: where a read names no store of its own.
        default = LedgerSource({"path": "orders"}, "0", address, options)
        assert default.schema().names == ["n"]
        assert "tlskeyfilepath" not in {
            name.lower() for name in LedgerSource({"path": "o", "store": "/x"}, "0")._option_texts
        }
        with pytest.raises(Refused, match=r"already serves the store .* at grpc"):
            _start(store, f"grpc+tls://localhost:{_free_port('localhost')}", tls)
    finally:
        served.stop()
    served.stop()
    assert not directory.exists()
    with pytest.raises(LedgerError):
        connect(address)


def test_what_is_made_is_the_users_alone_and_the_authority_is_gone(tmp_path: Path) -> None:
    tls = EphemeralCertificates.make(tmp_path, "10.1.2.3")
    made = {path.name.removeprefix(f"ledger-{tls.mark}-") for path in tmp_path.iterdir()}
    assert made == {"ca.pem", "broker.pem", "broker.key", "client.pem", "client.key", "token"}
    for name in ("broker.key", "client.key", "token"):
        assert stat.S_IMODE(tls.file(name).stat().st_mode) == 0o600
    assert len(tls.file("token").read_text(encoding="ascii")) == 64


@pytest.mark.parametrize("host", ["host,IP:0.0.0.0", "", "a..b", ".a", "b\u00fccher.example"])
def test_certificate_for_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(Refused, match="no host name"):
        EphemeralCertificates.make(tmp_path, host)


@pytest.mark.parametrize(
    ("host", "names", "addresses"),
    [
        ("driver-1.example", ["driver-1.example", "localhost"], ["127.0.0.1"]),
        ("10.1.2.3", ["localhost"], ["10.1.2.3", "127.0.0.1"]),
        ("::1", ["localhost"], ["::1", "127.0.0.1"]),
        ("localhost", ["localhost"], ["127.0.0.1"]),
    ],
)
def test_certificates_name_the_host_for_a_year(
    tmp_path: Path, host: str, names: list[str], addresses: list[str]
) -> None:
    before = datetime.now(UTC)
    tls = EphemeralCertificates.make(tmp_path, host)
    ca = x509.load_pem_x509_certificate(tls.file("ca.pem").read_bytes())
    for who in ("broker", "client"):
        found = x509.load_pem_x509_certificate(tls.file(f"{who}.pem").read_bytes())
        found.verify_directly_issued_by(ca)
        assert found.subject.rfc4514_string() == f"CN={who}"
        assert found.not_valid_after_utc - found.not_valid_before_utc == timedelta(days=365)
        assert found.not_valid_before_utc <= datetime.now(UTC)
        assert found.not_valid_before_utc > before - timedelta(seconds=2)
        alternatives = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert alternatives.get_values_for_type(x509.DNSName) == names
        assert [str(found) for found in alternatives.get_values_for_type(x509.IPAddress)] == addresses
        assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        key = load_pem_private_key(tls.file(f"{who}.key").read_bytes(), password=None)
        assert key.public_key() == found.public_key()


def handshake(tls: EphemeralCertificates, trusted: EphemeralCertificates, called: str) -> None:
    """Complete a handshake in memory. The client trusts the authority of `trusted` and calls the broker `called`."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls.file("ca.pem")))
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(trusted.file("ca.pem")))
    for context, who in ((server, "broker"), (client, "client")):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_cert_chain(tls.file(f"{who}.pem"), tls.file(f"{who}.key"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = [
        client.wrap_bio(to_client, to_server, server_hostname=called),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while left:
        for side in list(left):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
                left.remove(side)


def test_both_sides_accept_the_certificates_and_no_others(tmp_path: Path) -> None:
    made = []
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        made.append(EphemeralCertificates.make(tmp_path / name, "driver.example"))
    ours, theirs = made
    for called in ("driver.example", "localhost", "127.0.0.1"):
        handshake(ours, ours, called)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(ours, ours, "other.example")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
        handshake(ours, theirs, "localhost")


def test_certificates_without_the_package_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(Refused, match="package cryptography, which is not installed here") as found:
        EphemeralCertificates.make(tmp_path, "localhost")
    assert "pyspark-ledger[crypto]" in (found.value.hint or "")
    assert not list(tmp_path.iterdir())


def test_serving_for_what_is_no_host_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ledger.connector.session.cluster.run_directory", lambda: tmp_path)
    spark = SimpleNamespace(sparkContext=None)
    with pytest.raises(Refused, match="no host name"):
        serve_session(spark, str(tmp_path / "store"), "no host", 0)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_source_has_no_defaults_of_its_own() -> None:
    assert DefaultSource.default_store is None
    assert not DefaultSource.default_options
