"""The broker's process: opens a store, serves it, says where, and leaves when it is told to or nobody wants it.

    python -m ledger.broker.main --store DIR [--address ADDRESS] [--create] [--take-over] [--config FILE] [--idle
    SECONDS]

Rules: the address is written to `<store>/broker.json` once calls are answered. A store that cannot be opened ends the
process with status 2 and the error on standard error; SIGTERM and SIGINT end it with 0 after what was queued is
durable. A broker whose store was taken over leaves, with 0 too, and touches nothing on its way.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from ledger import disk
from ledger.broker.activity import Activity
from ledger.broker.discovery import BrokerRecord, socket_path
from ledger.broker.server import BrokerServer
from ledger.cache.block_cache import BlockCache
from ledger.clock import monotonic_ms, system_clock_ms
from ledger.errors import Fenced, LedgerError, Refused
from ledger.host import run_directory
from ledger.settings import Settings
from ledger.store import Store

_CANNOT_START = 2
_MB = 1024 * 1024
_CHECK_SECONDS = 0.5
_GRACE_SECONDS = 2.0
_log = logging.getLogger("ledger.broker")


def main(arguments: list[str] | None = None) -> int:
    """Run a broker until it leaves; returns the status to exit with."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if options.address is not None:
            _require_loopback(options.address)
        settings = Settings.load(options.config) if options.config else Settings()
        store = Store.open(
            options.store,
            settings=settings,
            clock=system_clock_ms,
            create=options.create,
            take_over=options.take_over,
        )
    except (LedgerError, OSError) as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 — whoever started us reads it there
        return _CANNOT_START
    idle_seconds = settings.brokerIdleTimeoutSeconds if options.idle is None else options.idle
    activity = Activity(monotonic_ms)
    try:
        server, address = _bound(store, settings, options.address, activity)
    except (LedgerError, OSError, pa.ArrowException) as error:
        store.close()
        print(f"{options.address or 'the private socket'}: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return _CANNOT_START
    _serve(store, server, address, activity, idle_seconds)
    return 0


def _bound(store: Store, settings: Settings, address: str | None, activity: Activity) -> tuple[BrokerServer, str]:
    """The server, listening, and the address that clients use."""
    socket = socket_path(store.store_id)
    if address is None:
        socket.unlink(missing_ok=True)
        address = f"grpc+unix://{socket}"
    token_path = run_directory() / f"{store.store_id[:18].replace('-', '')}.token"
    server = BrokerServer(
        store,
        BlockCache(settings.managedLedgerCacheSizeMB * _MB),
        address,
        token=_write_token(token_path),
        token_path=str(token_path),
        in_flight_max=settings.maxInFlightAppendBytes,
        activity=activity,
    )
    return server, f"{address[:-2]}:{server.port}" if address.endswith(":0") else address


def _serve(store: Store, server: BrokerServer, address: str, activity: Activity, idle_seconds: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stopping.set())
    BrokerRecord(address, os.getpid(), store.epoch, store.store_id).write(store.path)
    _log.info("store %s (%s, epoch %d) is served at %s", store.path, store.store_id, store.epoch, address)
    # The server answers since it was made. Its `serve` would only wait, and take the signals' handlers away.
    while not server.stopping.wait(_CHECK_SECONDS):
        try:
            store.require_ours()
        except Fenced as fenced:
            # The socket's name is the successor's by now, and an orderly shutdown would remove it.
            _log.warning("leaving: %s", fenced)
            _leave_at_once()
        if not store.path.exists():
            _log.error("the store %s is gone; leaving, so that nothing is acknowledged into deleted files", store.path)
            _leave_at_once(_CANNOT_START)
        if idle_seconds and activity.idle_ms() > idle_seconds * 1000:
            _log.info("nobody has called for %d s; leaving", idle_seconds)
            break
    _leave(store, server)


def _leave(store: Store, server: BrokerServer) -> None:
    """Settle what was queued, tell the clients, let the store go.

    Flight's shutdown waits for open streams, and nothing makes a quiet producer hang up: after a short while the
    process ends beneath them. The store's lock is held to the end, so that no successor's socket is removed.
    """
    shutdown = threading.Thread(target=server.shutdown, name="shutdown", daemon=True)
    shutdown.start()
    store.settle()
    Path(server.token_path).unlink(missing_ok=True)
    shutdown.join(_GRACE_SECONDS)
    if shutdown.is_alive():
        _log.info("clients are still connected; leaving all the same")
        _leave_at_once()
    store.close()


def _leave_at_once(status: int = 0) -> NoReturn:
    """End the process beneath whatever Flight still holds: its server waits for open streams at exit, too."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


def _require_loopback(address: str) -> None:
    host = address.partition("://")[2].rpartition(":")[0]
    if not address.startswith("grpc+unix://") and host not in ("127.0.0.1", "localhost", "[::1]"):
        raise Refused(
            f"the broker does not listen at {address}: without TLS it serves loopback and Unix sockets only",
            hint="Use grpc+unix:///path or grpc://127.0.0.1:PORT",
        )


def _write_token(path: Path) -> str:
    token = secrets.token_hex(32)
    path.unlink(missing_ok=True)
    fd = disk.create_file(path)
    try:
        disk.write_all(fd, [token.encode()], 0, path)
    finally:
        os.close(fd)
    return token


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ledger.broker.main", description="Serve one ledger store.")
    parser.add_argument("--store", type=Path, required=True, help="directory of the store")
    parser.add_argument(
        "--address", help="grpc+unix:///path or grpc://127.0.0.1:PORT (0: any); default: a private socket"
    )
    parser.add_argument("--create", action="store_true", help="make the store if the directory is not one yet")
    parser.add_argument("--take-over", action="store_true", help="fence off a broker that holds the store")
    parser.add_argument("--config", type=Path, help="settings, see conf/broker.toml")
    parser.add_argument("--idle", type=int, help="leave after so many seconds without a call; 0: never")
    return parser


if __name__ == "__main__":
    _leave_at_once(main())
