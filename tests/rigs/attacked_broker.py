"""Broker under attack: a process that listens at a port with TLS and a token, and its honest client."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.rigs.broker import BrokerRig
from tests.rigs.certificates import certificates
from tests.rigs.memory_attacks import AttackedPort, used

_SETTLED_SECONDS = 30
_SETTINGS = {
    "tlsCertificateFilePath": "one",
    "tlsKeyFilePath": "one_key",
    "tlsTrustCertsFilePath": "ca",
    "authenticationTokens": "token",
}


class AttackedBroker:
    """Broker, honest client, and the broker's memory. The environment must have `bounded_allocator`'s variables."""

    def __init__(self, rig: BrokerRig, config: Path) -> None:
        files = certificates()
        config.write_text("".join(f'{name} = "{files[file]}"\n' for name, file in _SETTINGS.items()))
        address = ("--address", "grpc+tls://localhost:0", "--web", "http://127.0.0.1:0")
        self._pid = rig.start("--create", "--config", str(config), *address).pid
        port = urlsplit(rig.record().remote).port or 0
        web = urlsplit(re.findall(r"served at (http://\S+)", rig.log())[-1]).port or 0
        self._at = AttackedPort(port, web, files)
        self._honest = self._at.start("honest")
        self.figures()
        self._idle = used(self._pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._honest.kill()
        self._honest.communicate()

    def figures(self, seconds: float = 0) -> dict[str, float]:
        """Return the honest client's times since the last call, after at least `seconds` and one append."""
        time.sleep(seconds)
        assert self._honest.stdin is not None
        assert self._honest.stdout is not None
        while True:
            print(file=self._honest.stdin, flush=True)
            found: dict[str, float] = json.loads(self._honest.stdout.readline())
            if found["appends"]:
                return found
            time.sleep(0.1)

    def attack(self, name: str) -> tuple[int, list[str]]:
        """Run an attack. Return the most memory above idle, and the refusals."""
        most, stop = [0], threading.Event()

        def watch() -> None:
            while not stop.wait(0.01):
                most[0] = max(most[0], used(self._pid) - self._idle)

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        process = self._at.start(name)
        refused = process.communicate()[0].splitlines()
        stop.set()
        watching.join()
        assert process.returncode == 0, refused
        return most[0], refused

    def settled(self, most: int) -> int:
        """Return the bytes above idle. Wait up to thirty seconds until they are at most `most`."""
        until = time.monotonic() + _SETTLED_SECONDS
        while (above := used(self._pid) - self._idle) > most and time.monotonic() < until:
            time.sleep(0.2)
        return above
