"""Broker of one store, in its own process: opens the store, answers calls, and leaves.

    open      settings ─▶ addresses are checked ─▶ store ─▶ servers ─▶ HTTP
    serve     broker.json and manifest name the address ─▶ background tasks ─▶ checks until the end
    close     queued appends ─▶ cache ─▶ token files ─▶ servers ─▶ store

Rules
- A server answers calls from its creation, before `broker.json` names its address.
- The broker asks nothing about the kind of its store's home (`ledger.broker.store_home`).
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import secrets
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace

from pyspark_ledger.ledger.broker.append_socket import AppendSocketListener
from pyspark_ledger.ledger.broker.context import BrokerContext
from pyspark_ledger.ledger.broker.intake.freed_memory import FreedMemory, give_back, own_memory
from pyspark_ledger.ledger.broker.listening import Listening, require_free
from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.server import BrokerServer
from pyspark_ledger.ledger.broker.store_home import StoreHome, home_of
from pyspark_ledger.ledger.broker.supervisor import bound_log
from pyspark_ledger.ledger.cache.shared_memory import SharedBlocks
from pyspark_ledger.ledger.clock import monotonic_ms, system_clock_ms
from pyspark_ledger.ledger.errors import Fenced, LedgerError
from pyspark_ledger.ledger.logs.json_lines import log_broker_as
from pyspark_ledger.ledger.objects.from_settings import require_address
from pyspark_ledger.ledger.objects.trial import try_address
from pyspark_ledger.ledger.ownership import OwnerChange, live_name
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.offloader_choice import MakeOffloader, OffloaderChoice
from pyspark_ledger.ledger.transport.discovery import (
    BrokerRecord,
    address_token_path,
    socket_path,
    sweep_run_directory,
    write_token,
)

if TYPE_CHECKING:
    from pyspark_ledger.ledger.broker.web.address import WebAddress
    from pyspark_ledger.ledger.broker.web.server import WebServer

CANNOT_START = 2
"""Exit status of a broker that cannot open its store, or whose store was deleted."""
_DESCRIPTORS_MAX = 2**20  # Linux's default limit of open files (fs.nr_open)
_CHECK_SECONDS = 0.5
_GRACE_MS = 2_000
_log = logging.getLogger("pyspark_ledger.ledger.broker")


class BrokerProcess:
    """Broker of one store. Its servers answer calls from its creation until `close`."""

    def __init__(self, home: StoreHome, cache: CachedReads, live: LiveSettings, listening: Listening | None) -> None:
        """Start the servers. `cache` holds the blocks that readers need.

        If the address requires credentials, the broker also listens at its private socket. The socket requires no
        credentials, because a client that can open the store directory has this user's rights.
        """
        self.home, self.store, self.live = home, home.store, live
        # The inode of this directory names the sockets. While the directory is open, no other gets the number, even if
        # this one is deleted. Otherwise this broker would delete the socket of another store at its end.
        self.directory = os.open(self.store.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.web: WebServer | None = None
        previous = BrokerRecord.read(self.store.path)
        socket = socket_path(_live_name(self.store, live))
        token, token_path = secrets.token_hex(32), socket.with_suffix(".token")
        write_token(token_path, token)
        live.on_change(cache.change)
        cache.start()
        clocks = {"clock": system_clock_ms, "monotonic_ms": monotonic_ms}
        self.context = BrokerContext(self.store, cache, live, token=token, token_path=token_path, **clocks)
        logging.getLogger().addHandler(self.context.errors)
        self.servers: list[BrokerServer] = []
        addresses, guarded = [], False
        if listening is not None:
            self.servers.append(BrokerServer(self.context, listening))
            addresses.append(_announced(listening, self.servers[0]))
        if listening is None or listening.guarded:
            private, address = self._private_server(socket, previous)
            guarded = not address.startswith("grpc+unix:")
            addresses.insert(0, address)
            self.servers.append(private)
        sweep_run_directory(system_clock_ms)  # after the servers, which keep the token of a killed broker
        self._open_append_socket()
        self.context.admission.connections.begin()
        remote = addresses[1] if len(addresses) > 1 else ""
        self.record = home.announced(
            BrokerRecord(
                addresses[0], os.getpid(), self.store.epoch, self.store.store_id, remote, guarded=guarded or UNSET
            ),
            self.servers[0].port,
        )

    @classmethod
    def open(cls, options: argparse.Namespace, make_offloader: MakeOffloader) -> BrokerProcess:
        """Open the store, and start its servers. Raises LedgerError or OSError.

        The addresses for calls and for HTTP are checked before the store is opened, because the opening ends an earlier
        broker of the store. Without an address for calls, the broker listens only at its private socket. Without an
        address for HTTP, it has no HTTP service.
        """
        change = OwnerChange(options.take_over) if options.take_over else None
        configured = Settings.load(options.config) if options.config else Settings()
        home = home_of(options.store, configured, change, create=options.create, clock=system_clock_ms)
        _raise_descriptors()
        listening = home.listening(options.address or home.settings.bindAddress)
        web = _web_address(options.web or home.settings.webServiceAddress, home.settings)
        live = home.find()
        log_broker_as(live.now.logFormat)
        live.on_change(lambda changed: log_broker_as(changed.logFormat))
        offloader = OffloaderChoice(make_offloader, live.now)
        live.before_change(require_address)
        live.on_trial(try_address)
        live.on_change(offloader.change)
        made: list[CachedReads] = []

        def watch(store: Store) -> CachedReads:
            shared = SharedBlocks.begin(f"{store.store_id}-{_live_name(store, live)}", store.epoch)
            made.append(CachedReads(live.now, monotonic_ms, store.snapshot, store.leases.held, shared))
            return made[0]

        home.open(live, offloader, watch)
        try:
            broker = cls(home, made[0], live, listening)
        except (LedgerError, OSError, pa.ArrowException) as error:
            home.store.close()
            where = listening.address if listening else "the private socket"
            raise LedgerError(f"{where}: {error}") from error
        try:
            broker.web = None if web is None else _web_server(web, broker.context)
        except (LedgerError, OSError):
            home.store.close()
            raise
        return broker

    def serve(self, idle_seconds: int | None) -> None:
        """Announce the broker, and serve until a signal, a call, or `idle_seconds` without a call.

        0 seconds: do not exit. None: as the setting says. Ends the process if the store was lost.
        """
        store, record, stopping = self.store, self.record, self.context.stopping
        log = store.path / "broker.log"
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        record.write(store.path)
        self.home.begin()
        store.upkeep.start()
        store.acknowledgements.start()
        store.offloads.start()
        places = f"{record.address} and {record.remote}" if record.remote else record.address
        _log.info("store %s (%s, epoch %d) is served at %s", store.path, store.store_id, store.epoch, places)
        # The server answers calls since its construction. This loop replaces Flight's `serve`, which would only wait,
        # and would replace the signal handlers.
        freed_memory = FreedMemory(own_memory, give_back, monotonic_ms)
        while not stopping.wait(_CHECK_SECONDS):
            freed_memory.check()
            status = _lost(store)
            if status is not None:
                # The new owner uses the same socket path. An orderly shutdown of this broker would remove the new
                # owner's socket.
                self.context.cache.stop()
                leave_at_once(status)
            try:
                bound_log(sys.stderr.fileno(), str(log))
            except OSError as error:
                _log.warning("cannot move the content of %s, will try again: %s", log, error)
            limit = self.live.now.brokerIdleTimeoutSeconds if idle_seconds is None else idle_seconds
            if limit and self.context.activity.idle_ms() > limit * 1000:
                _log.info("the broker had no call for %d s, and exits", limit)
                break
        if record.guarded is True:
            replace(record, guarded=UNSET).write(store.path)  # the next broker needs neither this port nor this token

    def close(self) -> None:
        """Complete the queued appends, shut the servers down, and close the store.

        Flight's shutdown waits until all streams end, and an idle producer keeps its stream open. So after `_GRACE_MS`
        the process exits without waiting for the streams.

        The process keeps the store's lock until it exits. Reason: the shutdown removes the socket's file. Without the
        lock, the next broker could create its socket at this path first. The shutdown would then remove the new socket.
        """
        limit_ms = self.live.now.brokerShutdownTimeoutMs
        self.home.check_fenced()
        shutdowns = [threading.Thread(target=server.shutdown, name="shutdown", daemon=True) for server in self.servers]
        for shutdown in shutdowns:
            shutdown.start()
        settling = threading.Thread(target=self.home.settle, name="settle", daemon=True)
        settling.start()
        settling.join(limit_ms / 1000)
        if settling.is_alive():
            _log.warning(
                "queued appends are not complete after %d ms; the broker exits without an acknowledgement", limit_ms
            )
            leave_at_once()
        self.context.cache.stop()
        for path in [self.context.token_path, *(path for server in self.servers for path in server.own_files)]:
            path.unlink(missing_ok=True)  # the next broker makes another token
        until = monotonic_ms() + _GRACE_MS
        for shutdown in shutdowns:
            shutdown.join(max(until - monotonic_ms(), 0) / 1000)
        if any(shutdown.is_alive() for shutdown in shutdowns):
            _log.info("the broker exits while clients are connected")
            leave_at_once()
        self.home.close()
        if self.web is not None:
            self.web.stop()

    def _private_server(self, socket: Path, previous: BrokerRecord | None) -> tuple[BrokerServer, str]:
        """Start the server for clients that can open the store directory. Return the server and its address.

        On a host that forbids Unix sockets the server listens at a loopback port. If the previous broker was killed,
        the server uses the same port again, because running tasks know it.
        """
        # Only an earlier broker of this place can have made the file, and this broker has taken the place over.
        socket.unlink(missing_ok=True)
        address = f"grpc+unix://{socket}"
        try:
            return BrokerServer(self.context, Listening(address, private=True)), address
        except (OSError, pa.ArrowException) as error:
            _log.warning("the broker listens at a loopback port, because the system refused %s: %s", address, error)
        was_killed = previous is not None and previous.guarded is True
        port = urlsplit(previous.address).port if previous is not None and was_killed else None
        listening = Listening.loopback(port or 0)
        server = BrokerServer(self.context, listening)
        return server, _announced(listening, server)

    def _open_append_socket(self) -> None:
        """Listen for producers of this host."""
        try:
            name = AppendSocketListener(self.servers[-1].append).name
        except PermissionError as error:
            _log.warning("producers send entries over Flight, because this host forbids the append socket: %s", error)
            return
        for server in self.servers:
            server.append_socket = name


def leave_at_once(status: int = 0) -> NoReturn:
    """End the process at once. A normal exit of the interpreter would wait for Flight's open streams."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


def _lost(store: Store) -> int | None:
    """Return the exit status of a broker whose store was deleted or taken over. Otherwise return None.

    The files are compared first. Reason: the metadata of a deleted store, or of another store at its place, may have
    any error.
    """
    try:
        if store.is_deleted():
            _log.error("the store %s was deleted; the broker exits, so that it acknowledges no lost append", store.path)
            return CANNOT_START
        store.require_ours()
    except Fenced as fenced:
        _log.warning("the broker exits: %s", fenced)
        return 0
    except (LedgerError, OSError) as error:
        _log.warning("cannot check whether this broker owns the store, will check again: %s", error)
    return None


def _raise_descriptors() -> None:
    """Raise the limit of open files as far as the system allows. A ledger with a writer uses three descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        _log.warning("the limit of open files stays %d, raising it to %d failed: %s", soft, wanted, error)
        return
    _log.info("the limit of open files is %d, before %d", wanted, soft)


def _announced(listening: Listening, server: BrokerServer) -> str:
    """Return the address of a server with its port. If the broker has made the token, write it for this user."""
    address = listening.with_port(server.port)
    if listening.private and listening.tokens:
        server.own_files.append(address_token_path(address))
        write_token(server.own_files[0], listening.tokens[0])
    return address


def _live_name(store: Store, live: LiveSettings) -> str:
    return live_name(store.path, live.now.managedLedgerOffloadServiceEndpoint)


def _web_address(address: str, settings: Settings) -> WebAddress | None:
    """Return the address of the HTTP service; None if `address` is empty. Raises Refused for an unusable address."""
    if not address:
        return None
    # Imported here, because most brokers have no HTTP service and start faster without these modules.
    from pyspark_ledger.ledger.broker.web.address import WebAddress

    web = WebAddress.of(address, settings)
    require_free(web.url(web.port))
    return web


def _web_server(address: WebAddress, broker: BrokerContext) -> WebServer:
    """Start the HTTP service."""
    from pyspark_ledger.ledger.broker.web.routes import routes_of
    from pyspark_ledger.ledger.broker.web.server import WebServer

    web = WebServer(address, routes_of(broker.store, broker.metrics, broker.settings, broker.stopping))
    _log.info("metrics and status page are served at %s", web.url)
    return web
