"""Attacks on the memory of a broker, and an honest client. Each runs in a process of its own.

    python -m tests.rigs.memory_attacks NAME PORT WEB_PORT FILES      FILES: JSON of `tests.rigs.certificates`

`honest` appends and asks for the health. For each line that it reads, it prints its times since the last line. Each
other name is a key of `ATTACKS`. Such a process prints its refusals, one a line, and ends.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import LedgerError, NotFound
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.positions.acknowledge_request import ACKNOWLEDGE_SCHEMA
from pyspark_ledger.ledger.protocol.actions import (
    ENTRY_SCHEMA,
    AcknowledgeCommand,
    AppendCommand,
    CreateLedger,
    DescribeLedger,
    StageCommand,
)
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.transport.shared_ring import entry_batch
from tests.rigs.entry import entry
from tests.rigs.slow_call import SlowCall

MIB = 1024 * 1024
_ATTACK_SECONDS = 240


@dataclass(frozen=True)
class AttackedPort:
    """Ports of a broker, and the files of its certificates and its token."""

    port: int
    web: int
    files: Mapping[str, str]

    def client(self) -> Client:
        """Return a client with a valid token, as on another host."""
        names = ("ca", "client", "client_key", "token")
        credentials = Credentials(*(self.files[name] for name in names))
        client = Client(f"grpc+tls://localhost:{self.port}", credentials=credentials, deadline_ms=60_000)
        client.same_host_token = lambda *_, **__: ""  # type: ignore[method-assign]
        return client

    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.files["ca"])
        context.load_cert_chain(self.files["client"], self.files["client_key"])
        context.set_alpn_protocols(["h2"])
        return context

    def start(self, name: str) -> subprocess.Popen[str]:
        """Start the honest client or an attack in a process."""
        command = [sys.executable, "-m", "tests.rigs.memory_attacks", name, str(self.port), str(self.web)]
        root = Path(__file__).resolve().parents[2]
        return subprocess.Popen(
            [*command, json.dumps(dict(self.files))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )


def used(pid: int) -> int:
    """Return the resident memory of a process, also of files that it maps."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _at_once(number: int, work: Callable[[int], object]) -> None:
    """Run `work` in threads, and print the errors by their kind."""
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
        thread.join(_ATTACK_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    print("".join(f"{error}\n" for error in errors), end="")  # noqa: T201 — for the test


def _bodies(method: str) -> Callable[[AttackedPort], None]:
    def attack(at: AttackedPort) -> None:
        def one(_: int) -> None:
            call = SlowCall(at.port, method, tls=at.tls())
            try:
                call.send(512 * MIB, 512 * MIB)
            finally:
                call.close()

        until = time.monotonic() + 5  # a refusal is quick, so attack again
        while time.monotonic() < until:
            _at_once(4, one)

    return attack


def _staging(at: AttackedPort) -> None:
    large = entry(bytes(60 * MIB))

    def one(place: int) -> None:
        client = at.client()
        with client.stage_part(f"q{place}", 0) as part:
            part.write([large], 1)
            assert part.close().entries == 1
        client.close()

    _at_once(100, one)


def _silent_staging(at: AttackedPort) -> None:
    """Stage as a client of an earlier release does: without announcements."""
    large = entry(bytes(60 * MIB))

    def one(place: int) -> None:
        client = at.client()
        writer, reader = _stream(client, StageCommand(f"q{place}", 0), ENTRY_SCHEMA)
        writer.write_batch(entry_batch([large]))
        writer.done_writing()
        reader.read()
        writer.close()
        client.close()

    _at_once(100, one)


def _bomb(at: AttackedPort) -> None:
    def one(_: int) -> None:
        writer, _reader = _stream(at.client(), AppendCommand("orders", "p"), ENTRY_SCHEMA, compression="zstd")
        writer.write_batch(entry_batch([bytes(1024 * MIB)]))
        writer.close()

    _at_once(1, one)


def _acknowledgement(at: AttackedPort) -> None:
    client = at.client()
    client.ask(OpenCursor("orders", "c", EARLIEST))
    (segment,) = {found.ledger_id for found in client.ask(DescribeLedger("orders")).segments}
    lines = 65_536
    columns = [np.full(lines, segment), np.zeros(lines, dtype=np.int64)]  # the same position again and again
    batch = pa.RecordBatch.from_arrays(
        [*map(pa.array, columns), pa.nulls(lines, pa.large_binary())], schema=ACKNOWLEDGE_SCHEMA
    )
    writer, reader = _stream(client, AcknowledgeCommand("orders", "c"), ACKNOWLEDGE_SCHEMA)
    for _ in range(1024):  # 1.6 GB
        writer.write_batch(batch)
    writer.done_writing()
    assert reader.read() is not None
    writer.close()


def _connections(at: AttackedPort) -> None:
    context, opened = at.tls(), list[socket.socket]()
    for number in range(5000):
        connection = socket.create_connection(("localhost", at.port), 60)
        opened.append(connection)
        if number % 10 == 0:  # one in ten completes the handshake
            with suppress(OSError):
                opened[-1] = context.wrap_socket(connection, server_hostname="localhost")
    time.sleep(5)


def _slow_requests(at: AttackedPort) -> None:
    opened = [socket.create_connection(("127.0.0.1", at.web), 60) for _ in range(300)]
    for _ in range(20):
        for connection in opened:
            with suppress(OSError):
                connection.sendall(b"G")
        time.sleep(0.25)


def _stream(
    client: Client, command: StageCommand | AppendCommand | AcknowledgeCommand, schema: pa.Schema, **ipc: str
) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]:
    descriptor = flight.FlightDescriptor.for_command(request_body(command))
    options = flight.FlightCallOptions(headers=client.options().headers, write_options=pa.ipc.IpcWriteOptions(**ipc))
    writer, reader = client.connection().do_put(descriptor, schema, options)
    return writer, reader


ATTACKS: dict[str, Callable[[AttackedPort], None]] = {
    "bodies_of_calls": _bodies("DoAction"),
    "bodies_of_reads": _bodies("DoGet"),
    "bodies_of_streams": _bodies("DoPut"),
    "staging_streams": _staging,
    "silent_staging_streams": _silent_staging,
    "compressed_zeros": _bomb,
    "long_acknowledgement": _acknowledgement,
    "connections": _connections,
    "slow_requests": _slow_requests,
}


def _honest(at: AttackedPort) -> None:
    appends, health, lock = list[float](), list[float](), threading.Lock()
    client = at.client()
    try:
        client.ask(DescribeLedger("orders"))
    except NotFound:
        client.ask(CreateLedger("orders"))

    def append() -> None:
        with client.producer("orders") as producer:
            while True:
                begin = time.monotonic()
                producer.append(entry(b"x" * 100)).result(60)
                with lock:
                    appends.append(time.monotonic() - begin)
                time.sleep(0.005)

    def ask() -> None:
        token = Path(at.files["token"].removeprefix("file:")).read_text().split()[0]
        request = Request(f"http://127.0.0.1:{at.web}/health", headers={"Authorization": f"Bearer {token}"})
        while True:
            begin = time.monotonic()
            with urlopen(request, timeout=30) as answer:  # noqa: S310 — the address is fixed
                assert answer.status == 200
            health.append(time.monotonic() - begin)
            time.sleep(0.1)

    for watch in (append, ask):
        threading.Thread(target=watch, daemon=True).start()
    for _ in sys.stdin:
        with lock:
            figures = {
                "appends": len(appends),
                "p99": float(np.quantile(appends, 0.99)) if appends else 60.0,
                "health": max(health, default=60.0),
            }
            appends.clear()
            health.clear()
        print(json.dumps(figures), flush=True)  # noqa: T201 — for the test


if __name__ == "__main__":
    _name, _port, _web, _files = sys.argv[1:]
    ({"honest": _honest} | ATTACKS)[_name](AttackedPort(int(_port), int(_web), json.loads(_files)))
    sys.stdout.flush()
    os._exit(0)  # threads of gRPC may still wait for the broker
