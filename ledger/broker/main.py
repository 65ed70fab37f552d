"""Entry point of the broker process. It opens a store, serves it, and exits on a signal or when it is idle.

    python -m pyspark_ledger.ledger.broker.main --store DIR [--address ADDRESS] [--create] [--config FILE]
    [--web ADDRESS] [--idle SECONDS] [--take-over {moved,copied,broker}]

Rules
- The broker writes its address to `<store>/broker.json` when it can answer calls.
- If the broker cannot open the store, it prints the error on standard error and exits with status 2.
- After SIGTERM or SIGINT the broker completes all queued appends and exits with status 0.
- If another broker takes the store over, this broker writes nothing more to the store and exits with status 0.
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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace

from pyspark_ledger.ledger.broker.append_socket import AppendSocketListener
from pyspark_ledger.ledger.broker.bucket_home import BucketHome, FoundStore, only_target, open_in_bucket, settings_of
from pyspark_ledger.ledger.broker.error_log import ErrorLog
from pyspark_ledger.ledger.broker.intake.freed_memory import FreedMemory, give_back, own_memory
from pyspark_ledger.ledger.broker.limits import Activity, BrokerLimits
from pyspark_ledger.ledger.broker.listening import Listening, require_free
from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.broker.metrics import MetricsCollector
from pyspark_ledger.ledger.broker.own_certificates import OwnCertificates
from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.server import BrokerServer
from pyspark_ledger.ledger.broker.supervisor import bound_log
from pyspark_ledger.ledger.broker.telemetry.push import start_push
from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.cache.shared_memory import SharedBlocks
from pyspark_ledger.ledger.clock import monotonic_ms, system_clock_ms
from pyspark_ledger.ledger.errors import Fenced, LedgerError
from pyspark_ledger.ledger.location import bucket_of
from pyspark_ledger.ledger.logs.json_lines import log_broker_as
from pyspark_ledger.ledger.metrics.calls import CallMetrics
from pyspark_ledger.ledger.ownership import OwnerChange, live_name
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.loader import OffloaderChoice, address_checked_by, called, made_by, tried_by
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

_CANNOT_START = 2
# Names of functions instead of imports. Reason: this package depends only on the interface `ledger.tiering.offloader`,
# not on the modules of object storage.
_OFFLOADER = "pyspark_ledger.offload.offloader:offloader_of"
_ADDRESS = "pyspark_ledger.offload.storage.address:require_address"
_BUCKET = "pyspark_ledger.offload.home_bucket:home_bucket"
_TRIAL = "pyspark_ledger.offload.trial:try_address"
# Interval after which a computing thread gives up the interpreter lock. It is short, so that a thread gets the lock
# soon after its fsync, even while another thread computes a checksum.
_SWITCH_SECONDS = 0.0002
_DESCRIPTORS_MAX = 2**20  # Linux's default limit of open files (fs.nr_open)
_CHECK_SECONDS = 0.5
_GRACE_MS = 2_000
_log = logging.getLogger("pyspark_ledger.ledger.broker")


def main(arguments: list[str] | None = None) -> int:
    """Run a broker until it exits. Return the exit status of the process."""
    options = _parser().parse_args(arguments)
    os.umask(0o077)  # only this user may use sockets, logs and other new files
    sys.setswitchinterval(_SWITCH_SECONDS)
    log_broker_as("text")
    try:
        store, cache, live, listening, web_address, in_bucket = _opened(options)
    except (LedgerError, OSError) as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 — the process that started the broker reads it
        return _CANNOT_START
    # The inode of this directory names the sockets. While the directory is open, no other gets the number, even if this
    # one is deleted. Otherwise this broker would delete the socket of another store at its end.
    os.open(store.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    activity = Activity(monotonic_ms)
    try:
        servers, record = _bound(store, cache, live, listening, activity)
        if in_bucket is not None:
            record = in_bucket.announced(record, servers[0].port)
    except (LedgerError, OSError, pa.ArrowException) as error:
        store.close()
        where = listening.address if listening else "the private socket"
        print(f"{where}: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return _CANNOT_START
    try:
        web = None if web_address is None else _web_server(web_address, store, servers[0], live)
        metrics = servers[0].metrics
        push = start_push(live.now.openTelemetryEndpoint, os.environ, lambda: metrics.collect_by(live.now))
    except (LedgerError, OSError) as error:
        store.close()
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        return _CANNOT_START
    idle = options.idle
    idle_limit = (lambda: live.now.brokerIdleTimeoutSeconds) if idle is None else (lambda: idle)
    _serve(store, servers, record, activity, idle_limit, live, (lambda: None) if push is None else push.stop, in_bucket)
    if web is not None:
        web.stop()
    return 0


def _opened(
    options: argparse.Namespace,
) -> tuple[Store, CachedReads, LiveSettings, Listening | None, WebAddress | None, BucketHome | None]:
    """Open the store. Return it with its cache, settings, the addresses for calls and for HTTP, and its bucket.

    Both addresses are checked before the store is opened, because the opening ends an earlier broker of the store.
    The address for calls is None if the broker listens only at its private socket. The address for HTTP is None if the
    broker has no HTTP service. The bucket (`BucketHome`) is None for a local store.
    """
    settings = Settings.load(options.config) if options.config else Settings()
    in_bucket = bucket_of(options.store)
    if in_bucket:
        settings = settings_of(settings, in_bucket)
    _raise_descriptors()
    address = options.address or settings.bindAddress
    own = OwnCertificates.of(address, settings, options.store, system_clock_ms) if in_bucket else None
    if own is not None:
        listening: Listening | None = own.listening
    else:
        listening = Listening.of(address, settings) if address else None
    web = _web_address(options.web or settings.webServiceAddress, settings)
    change = OwnerChange(options.take_over) if options.take_over else None
    found = FoundStore.find(called(_BUCKET, settings), settings, change, create=options.create) if in_bucket else None
    live = LiveSettings.load(options.store, settings) if found is None else found.live_settings(settings)
    log_broker_as(live.now.logFormat)
    live.on_change(lambda changed: log_broker_as(changed.logFormat))
    offloader = OffloaderChoice(made_by(_OFFLOADER), live.now)
    live.before_change(address_checked_by(_ADDRESS))
    if in_bucket:
        live.before_change(only_target(in_bucket, live.now.managedLedgerOffloadServiceEndpoint))
    live.on_trial(tried_by(_TRIAL))
    live.on_change(offloader.change)
    made: list[CachedReads] = []

    def watch(store: Store) -> CachedReads:
        shared = SharedBlocks.begin(f"{store.store_id}-{_live_name(store, live)}", store.epoch)
        made.append(CachedReads(live.now, monotonic_ms, store.snapshot, store.cursors.leased, shared))
        return made[0]

    how: dict[str, Any] = {"offloader": offloader, "watch": watch}
    if found is not None:
        home = open_in_bucket(found, options.store, live.now, change, **how)
        live.keep_by(home.keep_settings)
        return home.store, made[0], live, listening, web, BucketHome(home, own)
    how |= {"create": options.create, "take_over": change or False}
    store = Store.open(options.store, settings=live.now, clock=system_clock_ms, **how)
    return store, made[0], live, listening, web, None


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


def _bound(
    store: Store, cache: CachedReads, live: LiveSettings, listening: Listening | None, activity: Activity
) -> tuple[list[BrokerServer], BrokerRecord]:
    """Start the servers. Return them, and the record from which clients read their addresses.

    If the address requires credentials, the broker also listens at its private socket. The socket requires no
    credentials, because a client that can open the store directory has this user's rights.
    """
    previous = BrokerRecord.read(store.path)
    socket = socket_path(_live_name(store, live))
    token_path = socket.with_suffix(".token")
    token = secrets.token_hex(32)
    write_token(token_path, token)
    live.on_change(cache.change)
    cache.start()
    admission = BrokerLimits(live, monotonic_ms)
    stopping = threading.Event()
    errors = ErrorLog()
    logging.getLogger().addHandler(errors)
    calls = CallMetrics()
    metrics = MetricsCollector(store, cache, calls, errors, admission, system_clock_ms)

    def server_at(where: Listening) -> BrokerServer:
        return BrokerServer(
            store,
            cache,
            where,
            token=token,
            token_path=str(token_path),
            settings=live,
            admission=admission,
            activity=activity,
            errors=errors,
            calls=calls,
            metrics=metrics,
            stopping=stopping,
        )

    servers, addresses, guarded = [], [], False
    if listening is not None:
        servers.append(server_at(listening))
        addresses.append(_announced(listening, servers[0]))
    if listening is None or listening.guarded:
        private, address = _private_server(socket, server_at, previous)
        guarded = not address.startswith("grpc+unix:")
        addresses.insert(0, address)
        servers.append(private)
    sweep_run_directory(system_clock_ms)  # after the servers, which keep the token of a killed broker
    try:
        append_socket = AppendSocketListener(servers[-1].append).name
    except PermissionError as error:
        _log.warning("producers send entries over Flight, because this host forbids the append socket: %s", error)
        append_socket = ""
    for server in servers:
        server.append_socket = append_socket
    admission.connections.begin()
    remote = addresses[1] if len(addresses) > 1 else ""
    record = BrokerRecord(addresses[0], os.getpid(), store.epoch, store.store_id, remote, guarded=guarded or UNSET)
    return servers, record


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


def _web_server(address: WebAddress, store: Store, server: BrokerServer, live: LiveSettings) -> WebServer:
    """Start the HTTP service."""
    from pyspark_ledger.ledger.broker.web.routes import routes_of
    from pyspark_ledger.ledger.broker.web.server import WebServer

    web = WebServer(address, routes_of(store, server.metrics, live, server.stopping))
    _log.info("metrics and status page are served at %s", web.url)
    return web


def _private_server(
    socket: Path, server_at: Callable[[Listening], BrokerServer], previous: BrokerRecord | None
) -> tuple[BrokerServer, str]:
    """Start the server for clients that can open the store directory. Return the server and its address.

    On a host that forbids Unix sockets the server listens at a loopback port. If the previous broker was killed, the
    server uses the same port again, because running tasks know it.
    """
    # Only an earlier broker of this place can have made the file, and this broker has taken the place over.
    socket.unlink(missing_ok=True)
    address = f"grpc+unix://{socket}"
    try:
        return server_at(Listening(address, private=True)), address
    except (OSError, pa.ArrowException) as error:
        _log.warning("the broker listens at a loopback port, because the system refused %s: %s", address, error)
    was_killed = previous is not None and previous.guarded is True
    port = urlsplit(previous.address).port if previous is not None and was_killed else None
    listening = Listening.loopback(port or 0)
    server = server_at(listening)
    return server, _announced(listening, server)


def _announced(listening: Listening, server: BrokerServer) -> str:
    """Return the address of a server with its port. If the broker has made the token, write it for this user."""
    address = listening.with_port(server.port)
    if listening.private and listening.tokens:
        server.own_files.append(address_token_path(address))
        write_token(server.own_files[0], listening.tokens[0])
    return address


def _serve(
    store: Store,
    servers: list[BrokerServer],
    record: BrokerRecord,
    activity: Activity,
    idle_limit: Callable[[], int],
    live: LiveSettings,
    stop_push: Callable[[], object],
    in_bucket: BucketHome | None,
) -> None:
    stopping = servers[0].stopping
    log = store.path / "broker.log"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    record.write(store.path)
    if in_bucket is not None:
        in_bucket.begin()
    store.upkeep.start()
    store.acknowledgements.start()
    store.offloads.start()
    places = f"{record.address} and {record.remote}" if record.remote else record.address
    _log.info("store %s (%s, epoch %d) is served at %s", store.path, store.store_id, store.epoch, places)
    # The server answers calls since its construction. This loop replaces Flight's `serve`, which would only wait, and
    # would replace the signal handlers.
    freed_memory = FreedMemory(own_memory, give_back, monotonic_ms)
    while not stopping.wait(_CHECK_SECONDS):
        freed_memory.check()
        try:
            store.require_ours()
            bound_log(sys.stderr.fileno(), str(log))
            is_deleted = store.is_deleted()
        except Fenced as fenced:
            # The new owner uses the same socket path. An orderly shutdown of this broker would remove the new owner's
            # socket.
            _log.warning("the broker exits: %s", fenced)
            servers[0].stop_cache()
            _leave_at_once()
        except (LedgerError, OSError) as error:
            _log.warning("cannot check whether this broker owns the store, will check again: %s", error)
            is_deleted = False
        if is_deleted:
            _log.error("the store %s was deleted; the broker exits, so that it acknowledges no lost append", store.path)
            servers[0].stop_cache()
            _leave_at_once(_CANNOT_START)
        idle_seconds = idle_limit()
        if idle_seconds and activity.idle_ms() > idle_seconds * 1000:
            _log.info("the broker had no call for %d s, and exits", idle_seconds)
            break
    if record.guarded is True:
        replace(record, guarded=UNSET).write(store.path)  # the next broker needs neither this port nor this token
    stop_push()
    _leave(store if in_bucket is None else in_bucket.store, servers, live.now.brokerShutdownTimeoutMs)


def _leave(store: Store | BucketStore, servers: list[BrokerServer], limit_ms: int) -> None:
    """Complete the queued appends, shut the servers down, and close the store.

    Flight's shutdown waits until all streams end, and an idle producer keeps its stream open. So after `_GRACE_MS` the
    process exits without waiting for the streams.

    The process keeps the store's lock until it exits. Reason: the shutdown removes the socket's file. Without the lock,
    the next broker could create its socket at this path first. The shutdown would then remove the new socket.

    For a store in a bucket, the next broker may use another directory of this host, which has its own lock. So the
    broker of such a store first reads the manifest, which names the store's broker. If the manifest names another
    broker, this process ends at once.
    """
    if isinstance(store, BucketStore):
        store.check_fenced()
    shutdowns = [threading.Thread(target=server.shutdown, name="shutdown", daemon=True) for server in servers]
    for shutdown in shutdowns:
        shutdown.start()
    settling = threading.Thread(target=store.settle, name="settle", daemon=True)
    settling.start()
    settling.join(limit_ms / 1000)
    if settling.is_alive():
        _log.warning(
            "queued appends are not complete after %d ms; the broker exits without an acknowledgement", limit_ms
        )
        _leave_at_once()
    servers[0].stop_cache()
    for path in [Path(servers[0].token_path), *(path for server in servers for path in server.own_files)]:
        path.unlink(missing_ok=True)  # the next broker makes another token
    until = monotonic_ms() + _GRACE_MS
    for shutdown in shutdowns:
        shutdown.join(max(until - monotonic_ms(), 0) / 1000)
    if any(shutdown.is_alive() for shutdown in shutdowns):
        _log.info("the broker exits while clients are connected")
        _leave_at_once()
    store.close()


def _leave_at_once(status: int = 0) -> NoReturn:
    """End the process at once. A normal exit of the interpreter would wait for Flight's open streams."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_ledger.ledger.broker.main", description="Serve one ledger store."
    )
    parser.add_argument("--store", type=Path, required=True, help="directory of the store")
    parser.add_argument("--address", help="listening address, instead of the setting bindAddress")
    parser.add_argument("--web", help="address of the HTTP service, instead of the setting webServiceAddress")
    parser.add_argument("--create", action="store_true", help="create the store if the directory has none")
    changes = [change.value for change in OwnerChange]
    parser.add_argument("--take-over", choices=changes, help="why the store belongs to another broker, host or place")
    parser.add_argument("--config", type=Path, help="file of settings, see conf/broker.toml")
    parser.add_argument("--idle", type=int, help="exit after this many seconds without a call; 0: do not exit")
    return parser


def _main() -> NoReturn:
    status = 1
    try:
        status = main()
    except Exception:  # noqa: BLE001 — a normal exit would wait for Flight's open streams
        _log.exception("the broker exits with an unexpected error")
    finally:
        _leave_at_once(status)


if __name__ == "__main__":
    _main()
