"""Goal: a certificate is good for its hosts and its purpose only. Method: a Flight server for each certificate."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow import flight

from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Unauthenticated
from pyspark_ledger.ledger.transport.certificates import Authority, EphemeralCertificates

HERE = ("localhost", "127.0.0.1")


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """Server that answers every call."""

    def do_action(self, _context: flight.ServerCallContext, _action: flight.Action) -> list[bytes]:
        return [b"ok"]


def refusal(pair: tuple[bytes, bytes], host: str, credentials: Credentials, **tls: object) -> str:
    """Return the error of a client, or an empty text if the call succeeds."""
    with Server("grpc+tls://127.0.0.1:0", tls_certificates=[pair], **tls) as server:
        address = f"grpc+tls://{host}:{server.port}"
        connection = flight.connect(address, **credentials.connection(address))
        with suppress(flight.FlightError):
            list(connection.do_action(flight.Action("any", b""), flight.FlightCallOptions(timeout=10)))
            return ""
        return str(credentials.failure(address))


@pytest.mark.parametrize(
    ("hosts", "host", "said"),
    [
        (HERE, "localhost", ""),
        (HERE, "127.0.0.1", ""),
        (("elsewhere.example",), "localhost", "Hostname mismatch"),
        (("localhost",), "127.0.0.1", "IP address mismatch"),
    ],
)
def test_a_client_checks_the_host_of_a_broker(tmp_path: Path, hosts: tuple[str, ...], host: str, said: str) -> None:
    authority = Authority("ours", system_clock_ms())
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    found = refusal(authority.sign("broker", hosts), host, Credentials(str(ca)))
    if not said:
        assert found == ""
        return
    assert found.startswith(f"[{Unauthenticated.code}] the client does not trust the certificate of the broker at")
    assert said in found
    assert "\n" not in found


def test_executors_cannot_answer_in_place_of_the_broker(tmp_path: Path) -> None:
    """The certificate of executors is for clients only, and that of the broker for servers only."""
    files = EphemeralCertificates.make(tmp_path, "localhost")
    broker, client = (
        (files.file(f"{who}.pem").read_bytes(), files.file(f"{who}.key").read_bytes()) for who in ("broker", "client")
    )
    ca = files.file("ca.pem")
    right = Credentials(str(ca), str(files.file("client.pem")), str(files.file("client.key")))
    mutual = {"verify_client": True, "root_certificates": ca.read_bytes()}
    assert refusal(broker, "localhost", right, **mutual) == ""
    assert "does not trust the certificate of the broker" in refusal(client, "localhost", Credentials(str(ca)))
    wrong = Credentials(str(ca), str(files.file("broker.pem")), str(files.file("broker.key")))
    assert f"refuses the certificate {wrong.certificate}" in refusal(broker, "localhost", wrong, **mutual)
