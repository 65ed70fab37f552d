"""Broker in this process, made by `ledger.broker.main` from a file of settings, with a clock that the test sets.

A test has a table of `Drive`, one for each setting, which states the effect of the setting.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ledger.ledger.broker import main, process
from pyspark_ledger.ledger.broker.append_socket import AppendSocketListener, Serve
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.clock import monotonic_ms, system_clock_ms
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from pyspark_ledger.offload.broker import make_offloader
from tests.rigs.entry import entry
from tests.rigs.recording_s3 import RecordingS3

Value = int | str
_numbers = itertools.count()


@dataclass(frozen=True)
class Drive:
    """Effect of a setting. Without the setting, `observe` returns `default`. `seen` has the result for each value.

    `also` are settings that the effect needs. In a text, `{folder}` is a folder of the test, and `{port}` the port of
    an S3 server that records its requests.
    """

    observe: Callable[[DrivenBroker], object]
    default: object
    seen: Mapping[Value, object]
    also: Mapping[str, Value] = field(default_factory=dict)


Drives = dict[str, Sequence[Drive]]


class DrivenBroker:
    """Broker of `python -m pyspark_ledger.offload.broker --config FILE`, without signal handlers and main loop."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Value], patch: pytest.MonkeyPatch, wall_ms: int | None = None
    ) -> None:
        self.folder, self.patch = folder, patch
        self.s3: RecordingS3
        self._given = settings
        self.wall_ms, self.now_ms = wall_ms or system_clock_ms(), monotonic_ms()
        patch.setattr(process, "system_clock_ms", lambda: self.wall_ms)
        patch.setattr(process, "monotonic_ms", lambda: self.now_ms)
        self._listeners = list[AppendSocketListener]()
        patch.setattr(process, "AppendSocketListener", self._listener)
        self._clients, self._handlers = list[Client](), logging.getLogger().handlers.copy()
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "broker.toml"
        config.write_text(
            "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in settings.items())
        )
        self.arguments = ["--store", str(folder / "store"), "--create", "--config", str(config)]
        self.process = process.BrokerProcess.open(main._parser().parse_args(self.arguments), make_offloader)
        self._opened = ExitStack()  # a test may close the broker twice
        self._opened.callback(os.close, self.process.directory)
        self.store, self.servers, self.record = self.process.store, self.process.servers, self.process.record
        self.record.write(self.store.path)
        self.live, self.source = self.process.live, self.process.context.cache
        self.cache = self.source.cache

    def _listener(self, serve: Serve) -> AppendSocketListener:
        self._listeners.append(AppendSocketListener(serve))
        return self._listeners[-1]

    @property
    def client(self) -> Client:
        self._clients.append(Client(self.record.address, self.record.store_id, deadline_ms=0))
        return self._clients[-1]

    @property
    def admission(self) -> Any:
        return self.process.context.admission

    def set(self, name: str, value: Value | None) -> None:
        self.client.ask(ChangeSetting(name, value))

    def pass_ms(self, milliseconds: int) -> None:
        self.wall_ms += milliseconds
        self.now_ms += milliseconds

    def again(self) -> DrivenBroker:
        """Close this broker. Return a new broker of the same store, with the same settings and the same time."""
        self.close()
        return DrivenBroker(self.folder, self._given, self.patch, self.wall_ms)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for door in self._listeners:
            door.close()
        for server in self.servers:
            server.shutdown()
        self.source.stop()
        if self.process.web is not None:
            self.process.web.stop()
        with suppress(LedgerError):
            self.store.close()
        self._opened.close()
        logging.getLogger().handlers[:] = self._handlers

    # Ledgers that show the effects of settings.

    def log(self, entries: int = 0, **shape: Any) -> ManagedLedger:
        """Return a new ledger with at most `entries` entries in a segment. 0: the limit in the settings."""
        name = f"log{next(_numbers)}"
        return self.store.create_ledger(CreateLedger(name, max_entries_per_ledger=entries, **shape))

    def filled(self, entries: int = 3, *, payload: bytes = b"x", **shape: Any) -> ManagedLedger:
        """Return a new ledger with `entries` sealed segments of one entry each."""
        log = self.log(1, **shape)
        for _ in range(entries):
            log.append([entry(payload)]).result(60)
        log.roll_over()
        return log

    def offloaded(self, entries: int = 1, *, gone: bool = False, payload: bytes = b"x") -> ManagedLedger:
        """Return a new ledger like `filled`, offloaded as the settings say. With `gone`, the local copies are
        deleted."""
        log = self.filled(entries, payload=payload)
        self.store.offloads.offload(OffloadPrefix(log.name))
        self.store.offloads.round()
        assert self.store.offloads.status(log.name).state == "done"
        if gone:
            self.pass_ms(5 * 3_600_000)
            log.trim()
        return log


class WaitRecorder:
    """Replacement of an event or condition of a broker's thread. It records the seconds of a wait and ends the wait."""

    def __init__(self, stop: Callable[[], object] = lambda: None) -> None:
        self.seconds = list[float]()
        self._stop = stop

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return True

    def wait_for(self, _ready: object, seconds: float) -> bool:
        self._stop()
        return self.wait(seconds)

    def set(self) -> None: ...

    def notify(self) -> None: ...

    notify_all = notify

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
