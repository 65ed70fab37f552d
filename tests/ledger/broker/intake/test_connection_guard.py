"""Goal: who has no token takes little memory, and keeps no client with a token out.

Method: connections with made-up numbers, sockets of this process, and a broker that gets bodies without a token.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyspark_ledger.ledger.broker.intake.connection_guard import (
    Connection,
    ConnectionGuard,
    Peer,
    Sockets,
    connections_of,
    peer_of,
)
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.protocol.actions import CreateLedger, ListLedgers
from tests.rigs.certificates import certificates
from tests.rigs.deadline import wait_until
from tests.rigs.slow_call import SlowCall

Rig = Any
MIB = 1024 * 1024
HOST = "10.0.0.1"


class Clients:
    """Connections with made-up numbers, and a clock."""

    def __init__(self) -> None:
        self.now = 0
        self.received: dict[int, int] = {}
        self.closed: list[int] = []
        self.guard = ConnectionGuard(self.open, 16 * MIB, lambda: self.now)

    def open(self, known: Iterable[int] = ()) -> Sockets:
        found = [
            Connection(number, (HOST, number), size, lambda number=number: self.closed.append(number))  # type: ignore[misc]
            for number, size in self.received.items()
            if number not in self.closed
        ]
        return {one.inode for one in found}, [one for one in found if one.inode not in known]


@pytest.fixture
def clients() -> Clients:
    return Clients()


def test_only_who_sent_too_much_without_a_token_is_closed(clients: Clients) -> None:
    clients.received = {1: 24 * MIB, 2: 24 * MIB + 1, 3: 10_000 * MIB}
    clients.guard.admit(f"ipv4:{HOST}:3")
    assert clients.guard.sweep() == 1
    assert clients.closed == [2]


def test_admitted_once_is_admitted_until_it_ends(clients: Clients) -> None:
    clients.guard.admit(f"ipv4:{HOST}:1")
    clients.guard.sweep()  # the connection was not listed yet
    clients.now = 9_000
    clients.received = {1: 0}
    clients.guard.sweep()
    clients.now, clients.received = 10**9, {1: 10**12}
    assert clients.guard.sweep() == 0
    clients.received = {}
    clients.guard.sweep()
    clients.now, clients.received = 2 * 10**9, {1: 10**12}
    assert clients.guard.sweep() == 1, "another connection of the same port"


def test_many_that_send_little_are_bounded_together(clients: Clients) -> None:
    clients.received = dict.fromkeys(range(20), 10 * MIB) | {20: 11 * MIB, 21: 1}
    assert clients.guard.sweep() == 9
    assert sum(found.received for found in clients.open()[1]) <= 128 * MIB
    assert 20 in clients.closed
    assert 21 not in clients.closed


def test_the_thread_ends_with_its_server(clients: Clients) -> None:
    before = set(threading.enumerate())  # threads of earlier tests may end meanwhile
    clients.guard.start()
    (thread,) = [one for one in set(threading.enumerate()) - before if one.name == "connection guard"]
    clients.guard.stop()
    wait_until(lambda: not thread.is_alive(), "the thread has ended")


def test_who_waits_too_long_and_the_oldest_of_too_many_are_closed(clients: Clients) -> None:
    clients.received = {1: 0}
    clients.guard.sweep()
    clients.now = 30_000
    clients.received |= dict.fromkeys(range(2, 1026), 0)
    assert clients.guard.sweep() == 1
    assert clients.closed == [1]
    clients.now = 60_001
    assert clients.guard.sweep() == 1024


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:127.0.0.1:5", ("127.0.0.1", 5)),
        ("ipv6:[::1]:5", ("::1", 5)),
        ("ipv6:%5B::1%5D:5", ("::1", 5)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:5", ("10.0.0.1", 5)),
        ("ipv6:[fe80::1%25eth0]:5", ("fe80::1", 5)),
        ("unix:", None),
        ("unix:/run/a.sock", None),
    ],
)
def test_the_name_of_a_client_is_its_address_and_port(name: str, peer: Peer | None) -> None:
    assert peer_of(name) == peer


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_connections_of_a_port_have_their_received_bytes(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as listener, socket.create_server((host, 0), family=family):
        port = listener.getsockname()[1]
        assert connections_of(port, set())[1] == []
        with socket.create_connection((host, port), 30) as client, listener.accept()[0] as accepted:
            client.sendall(b"x" * 1000)
            assert len(accepted.recv(1000, socket.MSG_WAITALL)) == 1000
            inodes, (found,) = connections_of(port, set())
            assert connections_of(port, inodes) == (inodes, [])
            assert (found.peer, found.received) == (client.getsockname()[:2], 1000)
            found.close()
            client.settimeout(30)
            assert client.recv(1) == b""


@pytest.fixture
def port(rig: Rig, tmp_path: Path) -> int:
    """The port of a broker that requires a token."""
    config = tmp_path / "broker.toml"
    config.write_text(f'authenticationTokens = "{certificates()["token"]}"\n')
    rig.start("--create", "--config", str(config), "--address", "grpc://127.0.0.1:0")
    found = urlsplit(rig.record().remote).port
    assert found is not None
    return found


@pytest.mark.thorough
def test_a_body_without_a_token_is_cut_off_and_a_client_with_one_is_served(rig: Rig, port: int) -> None:
    call = SlowCall(port, "DoAction")
    with pytest.raises(ConnectionError):
        call.send(256 * MIB, 256 * MIB)
    call.close()
    rig.wait_until(lambda: "closed 1 connections that sent too much" in rig.log(), "the log names the client")
    client = Client(f"grpc://127.0.0.1:{port}", credentials=Credentials(token=certificates()["token"]))
    properties = {"a": "x" * 2 * MIB}  # more than a connection without a token may send, in several calls
    for number in range(16):
        client.ask(CreateLedger(f"l{number}", properties=properties))
    assert len(client.ask(ListLedgers()).names) == 16
    client.close()


def test_a_stream_without_a_token_is_refused_before_its_first_byte(rig: Rig, port: int) -> None:
    for headers in ((), (("authorization", "Bearer of-another-sixteen-characters"),)):
        for method in ("DoPut", "DoExchange"):
            call = SlowCall(port, method, *headers)
            call.wait()
            call.close()
    assert "Traceback" not in rig.log()
