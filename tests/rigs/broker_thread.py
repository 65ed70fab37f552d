"""Set-up for tests of clients and connector: a store whose broker runs in this process.

The start of a process takes twenty times the CPU. The program's own functions start this broker, and clients reach it
at its socket, as any broker. A test that kills a broker, reads its log, or wants a store without a broker has the mark
`broker_process`. If a test stops this broker with the call `shutdown`, the next client of the store starts a process.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.broker import main, process
from pyspark_ledger.ledger.broker.append_socket import AppendSocketListener, Serve
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.offload.broker import make_offloader
from tests.rigs.broker_process import end_all, kill_all

_SHUTDOWN_SECONDS = 0.2  # Flight waits for the streams of clients, and a test may leave one open


class _Door(AppendSocketListener):
    """Socket for producers, whose connections end with the broker, as those of a process."""

    def __init__(self, serve: Serve) -> None:
        self._peers = list[socket.socket]()
        super().__init__(serve)

    def _converse(self, peer: socket.socket) -> None:
        self._peers.append(peer)
        super()._converse(peer)

    def close(self) -> None:
        super().close()
        for peer in self._peers:
            with suppress(OSError):  # closed already
                peer.shutdown(socket.SHUT_RDWR)


class BrokerThread:
    """Broker of `python -m pyspark_ledger.offload.broker --create`, without signal handlers and main loop."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self._doors = list[_Door]()
        self._handlers = logging.getLogger().handlers.copy()
        options = main._parser().parse_args(["--store", str(path), "--create", *arguments])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process, "AppendSocketListener", self._door)
            self._broker = process.BrokerProcess.open(options, make_offloader)
        self._broker.record.write(path)
        for work in (self._broker.store.upkeep, self._broker.store.acknowledgements, self._broker.store.offloads):
            work.start()
        self._leaving = threading.Thread(target=self._leave, name="broker", daemon=True)
        self._leaving.start()

    def _door(self, serve: Serve) -> _Door:
        self._doors.append(_Door(serve))
        return self._doors[-1]

    def _leave(self) -> None:
        """Wait for the call `shutdown`, and leave the store as the program does."""
        broker = self._broker
        broker.context.stopping.wait()
        broker.store.settle()
        broker.context.cache.stop()
        broker.context.token_path.unlink(missing_ok=True)
        for door in self._doors:
            door.close()
        shutdowns = [threading.Thread(target=server.shutdown, daemon=True) for server in broker.servers]
        for shutdown in shutdowns:
            shutdown.start()
        for shutdown in shutdowns:
            shutdown.join(_SHUTDOWN_SECONDS)
        with suppress(LedgerError):  # a test may have given the store to another broker
            broker.store.close()
        os.close(broker.directory)

    def close(self) -> None:
        self._broker.context.stopping.set()
        self._leaving.join()
        logging.getLogger().handlers[:] = self._handlers


@contextmanager
def served(path: Path) -> Iterator[LedgerStore]:
    """Yield a store with a broker of its own, which ends with the block."""
    broker = BrokerThread(path)
    try:
        yield connect(path)
    finally:
        broker.close()
        kill_all(path)


@contextmanager
def _begun(request: pytest.FixtureRequest, path: Path) -> Iterator[None]:
    """Run the broker of a test's store. The mark `broker_process` leaves it to the first client to start a process."""
    with nullcontext() if request.node.get_closest_marker("broker_process") else closing(BrokerThread(path)):
        yield
    end_all(path)


@pytest.fixture
def store(request: pytest.FixtureRequest, store_path: Path) -> Iterator[Path]:
    """Yield the path of a store with a broker. All that serves it ends with the test."""
    with _begun(request, store_path):
        yield store_path


@pytest.fixture
def served_store(request: pytest.FixtureRequest, store_path: Path) -> Iterator[LedgerStore]:
    with _begun(request, store_path):
        yield connect(store_path)


@pytest.fixture
def api(store: Path) -> LedgerStore:
    return connect(store)
