"""Goal: nobody takes much memory of a broker, with or without a token, and others are served meanwhile.

Method: each attack on a broker of its own, over TLS. The test reads the broker's memory from /proc while the attack
runs, and at the end. It prints the times of honest calls, and compares only memory and counts.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from pyspark_ledger.ledger.client.broker_environment import bounded_allocator
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.positions.acknowledge_request import ACKNOWLEDGE_SCHEMA
from pyspark_ledger.ledger.protocol.actions import (
    ENTRY_SCHEMA,
    AcknowledgeCommand,
    AppendCommand,
    CreateLedger,
    StageCommand,
)
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.transport.shared_ring import entry_batch
from tests.rigs.certificates import certificates
from tests.rigs.entry import entry
from tests.rigs.slow_call import SlowCall

pytestmark = pytest.mark.slow
Rig = Any
TOKEN = "a-token-of-sixteen-characters"
MIB = 1024 * 1024
DURING, AFTER = 512 * MIB, 256 * MIB
SETTLED_SECONDS = 30


class Target:
    """Broker under attack, with an honest client."""

    def __init__(self, rig: Rig, config: Path) -> None:
        files = certificates()
        names = {
            "tlsCertificateFilePath": "one",
            "tlsKeyFilePath": "one_key",
            "tlsTrustCertsFilePath": "ca",
            "authenticationTokens": "token",
        }
        config.write_text("".join(f'{name} = "{files[file]}"\n' for name, file in names.items()))
        address = ("--address", "grpc+tls://localhost:0", "--web", "http://127.0.0.1:0")
        self.pid = rig.start("--create", "--config", str(config), *address).pid
        self.rig = rig
        self.port = urlsplit(rig.record().remote).port or 0
        self.web = urlsplit(re.findall(r"served at (http://\S+)", rig.log())[-1]).port or 0
        self.honest = self.client()
        self.honest.create(CreateLedger("orders"))
        self.append_times, self.health_times, self.memory = list[float](), list[float](), list[int]()
        self._stop = threading.Event()
        self._append(1000)
        self.idle = self.used()
        self.idle_times, self.append_times = self.append_times, []

    def client(self) -> Client:
        files = certificates()
        credentials = Credentials(files["ca"], files["client"], files["client_key"], files["token"])
        client = Client(f"grpc+tls://localhost:{self.port}", credentials=credentials, deadline_ms=60_000)
        client.same_host_token = lambda *_, **__: ""  # type: ignore[method-assign]  # as on another host
        return client

    def used(self) -> int:
        """Return the resident memory of the broker, also of files that it maps."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def tls(self) -> ssl.SSLContext:
        files = certificates()
        context = ssl.create_default_context(cafile=files["ca"])
        context.load_cert_chain(files["client"], files["client_key"])
        context.set_alpn_protocols(["h2"])
        return context

    def during(self, attack: Callable[[], object]) -> None:
        """Run an attack. Meanwhile append, ask for the health, and read the memory."""
        watches = [threading.Thread(target=watch, daemon=True) for watch in (self._watch, self._health, self._append)]
        for watch in watches:
            watch.start()
        try:
            attack()
        finally:
            self._stop.set()
            for watch in watches:
                watch.join(60)

    def judge(self, name: str) -> None:
        peak = max(self.memory) - self.idle
        until, after = time.monotonic() + SETTLED_SECONDS, self.used() - self.idle
        while after > AFTER and time.monotonic() < until:
            time.sleep(0.5)
            after = self.used() - self.idle
        print(  # noqa: T201 — the figures of the guarantees
            f"{name}: {self.idle // MIB} MiB idle, +{peak // MIB} MiB during, +{after // MIB} MiB after; append p99 "
            f"{_p99(self.idle_times):.1f} ms idle, {_p99(self.append_times):.1f} ms during ({len(self.append_times)}); "
            f"health at most {max(self.health_times, default=0):.2f} s ({len(self.health_times)})"
        )
        assert peak <= DURING
        assert after <= AFTER
        assert self.append_times
        assert self.health_times
        assert "Traceback" not in self.rig.log()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.memory.append(self.used())

    def _append(self, times: int = 0) -> None:
        client = self.client()
        with client.producer("orders") as producer:
            while (times and len(self.append_times) < times) or not (times or self._stop.wait(0.005)):
                begin = time.monotonic()
                producer.append(entry(b"x" * 100)).result(60)
                self.append_times.append(time.monotonic() - begin)
        client.close()

    def _health(self) -> None:
        while not self._stop.wait(0.1):
            begin = time.monotonic()
            with suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.web, timeout=10)
                connection.request("GET", "/health", headers={"Authorization": f"Bearer {TOKEN}"})
                assert connection.getresponse().status == 200
                connection.close()
                self.health_times.append(time.monotonic() - begin)


@pytest.fixture
def target(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    for name, value in bounded_allocator({}).items():
        monkeypatch.setenv(name, value)
    target = Target(rig, tmp_path / "broker.toml")
    yield target
    target.honest.close()


def at_once(number: int, work: Callable[[int], object]) -> list[str]:
    """Run `work` in threads, and return the errors by their kind."""
    errors = list[str]()

    def one(place: int) -> None:
        try:
            work(place)
        except (LedgerError, flight.FlightError, pa.ArrowException, OSError) as error:
            errors.append(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}")

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads)
    return errors


@pytest.mark.parametrize("method", ["DoAction", "DoGet", "DoPut"])
def test_four_bodies_of_half_a_gigabyte_without_a_token(target: Target, method: str) -> None:
    def attack(_: int) -> None:
        call = SlowCall(target.port, method, tls=target.tls())
        try:
            call.send(512 * MIB, 512 * MIB)
        finally:
            call.close()

    def attacks() -> None:
        until = time.monotonic() + 2  # a refusal is quick, so attack again
        while time.monotonic() < until:
            at_once(4, attack)

    target.during(attacks)
    target.judge(f"four bodies of {method}")


@pytest.mark.parametrize("announced", [True, False])
def test_a_hundred_staging_streams(target: Target, *, announced: bool) -> None:
    large = entry(bytes(60 * MIB))

    def attack(place: int) -> None:
        client = target.client()
        if announced:
            with client.stage_part(f"q{place}", 0) as part:
                part.write([large], 1)
                assert part.close().entries == 1
        else:
            descriptor = flight.FlightDescriptor.for_command(request_body(StageCommand(f"q{place}", 0)))
            writer, reader = client.connection().do_put(descriptor, ENTRY_SCHEMA, client.options())
            writer.write_batch(entry_batch([large]))
            writer.done_writing()
            reader.read()
            writer.close()
        client.close()

    found = list[str]()
    target.during(lambda: found.extend(at_once(100, attack)))
    assert not [error for error in found if "LEDGER_UNAVAILABLE" not in error and "Unavailable" not in error]
    target.judge(f"a hundred staging streams, announced {announced}, {len(found)} refused")
    assert not announced or not found


def test_a_bomb_of_compressed_zeros(target: Target) -> None:
    def attack(_: int) -> None:
        client = target.client()
        descriptor = flight.FlightDescriptor.for_command(request_body(AppendCommand("orders", "p")))
        options = client.options()
        compressed = flight.FlightCallOptions(
            headers=options.headers, write_options=pa.ipc.IpcWriteOptions(compression="zstd")
        )
        writer, _ = client.connection().do_put(descriptor, ENTRY_SCHEMA, compressed)
        writer.write_batch(entry_batch([bytes(1024 * MIB)]))
        writer.close()

    target.during(lambda: at_once(1, attack))
    target.judge("a bomb of zeros")


def test_a_long_acknowledgement(target: Target) -> None:
    client = target.client()
    client.open_cursor(OpenCursor("orders", "c", EARLIEST))
    (segment,) = {found.ledger_id for found in client.describe("orders").segments}
    lines = 65_536
    columns = [np.full(lines, segment), np.zeros(lines, dtype=np.int64)]  # the same position again and again
    batch = pa.RecordBatch.from_arrays(
        [*map(pa.array, columns), pa.nulls(lines, pa.large_binary())], schema=ACKNOWLEDGE_SCHEMA
    )

    def attack(_: int) -> None:
        descriptor = flight.FlightDescriptor.for_command(request_body(AcknowledgeCommand("orders", "c")))
        writer, reader = client.connection().do_put(descriptor, ACKNOWLEDGE_SCHEMA, client.options())
        for _ in range(1024):  # 1.6 GB
            writer.write_batch(batch)
        writer.done_writing()
        assert reader.read() is not None
        writer.close()

    target.during(lambda: at_once(1, attack))
    target.judge("an acknowledgement of 67 million lines")
    client.close()


def test_five_thousand_connections(target: Target) -> None:
    context, opened = target.tls(), list[socket.socket]()

    def attack() -> None:
        for number in range(5000):
            connection = socket.create_connection(("localhost", target.port), 60)
            opened.append(connection)
            if number % 10 == 0:  # one in ten completes the handshake
                with suppress(OSError):
                    opened[-1] = context.wrap_socket(connection, server_hostname="localhost")
        time.sleep(5)

    target.during(attack)
    target.judge("five thousand connections")
    for connection in opened:
        connection.close()


def test_three_hundred_slow_http_clients(target: Target) -> None:
    opened = list[socket.socket]()

    def attack() -> None:
        for _ in range(300):
            opened.append(socket.create_connection(("127.0.0.1", target.web), 60))
        for _ in range(20):
            for connection in opened:
                with suppress(OSError):
                    connection.sendall(b"G")
            time.sleep(0.25)

    target.during(attack)
    target.judge("three hundred slow HTTP clients")
    for connection in opened:
        connection.close()


def _p99(seconds: list[float]) -> float:
    return 1000 * float(np.quantile(seconds, 0.99)) if seconds else float("nan")
