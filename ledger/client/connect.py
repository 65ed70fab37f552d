"""Finding the broker of a store, and starting a private one where there is none.

Rules
- A client of a directory finds the broker by `<store>/broker.json`, or starts a broker under `spawn.lock`. So many
  processes that start together start exactly one broker.
- The broker runs in a session of its own, under a supervisor, with its output in `<store>/broker.log`. It outlives its
  starter.
- The broker finds its starter's packages, and nothing else on its starter's path: a script's own `queue.py` must not
  become the broker's. It has its starter's environment: see `broker_environment`.
- A store has one supervisor, which holds a lock that its children do not inherit. While it restarts a broker, a start
  waits for that broker.
- A start that finds a broker owning the store waits for that broker's answer. A failed start leaves a directory that is
  no store unchanged.
- A client that may start a broker starts it again after it has exited: idle brokers exit.
- Only calls with that permission start a broker or create a store. All others connect, or fail with the store's path.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import site
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark_ledger.ledger.client.broker_environment import broker_environment
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import Fenced, LedgerError, NotFound, Refused, Unavailable, Unsupported
from pyspark_ledger.ledger.location import FENCED, bucket_directory, bucket_of
from pyspark_ledger.ledger.ownership import is_gone, process_identity, require_open_to_us
from pyspark_ledger.ledger.protocol.actions import Empty
from pyspark_ledger.ledger.transport.discovery import BrokerRecord, token_path

_SCHEMES = ("grpc://", "grpc+unix://", "grpc+tls://", "grpc+tcp://")
_PROBE_MS = 2_000
_ADDRESS_MS = 5_000
_BUCKET_MS = 180_000  # a new bucket is probed, or a broker of another host gets time for a sign of life

# SQLite opens no path of more than 512 bytes; the names of a store's own files are part of it.
_PATH_BYTES_MAX = 448
_PATH_HINT = "Correct the path, or choose a directory of yours"
_START_HINT = "Start one, or let the driver start it"
_PACKAGES = ("pyspark_ledger", "boto3", "pyarrow", "msgspec", "numpy", "google_crc32c", "google.protobuf")


def connect_store(
    location: str | os.PathLike[str],
    *,
    create: bool = False,
    start: bool = True,
    deadline_ms: int = 30_000,
    credentials: Credentials | None = None,
) -> Client:
    """Return a client of the broker at an address, or of the store in a directory.

    No broker is started at an address: if none answers within a few seconds, an operator must act.

    Raises Unauthenticated if broker and client do not trust each other. Raises NotFound if the directory holds no store
    and `create` is false. Raises Unavailable if no broker answers in time, Refused if the store cannot be served here.
    """
    text = os.fspath(location)
    if text.startswith(_SCHEMES):
        client = Client(text, credentials=credentials, deadline_ms=deadline_ms)
        client.hello(deadline_ms=min(deadline_ms, _ADDRESS_MS))
        return client
    if text.startswith("s3://"):
        text = str(bucket_directory(text))
    if "://" in text:
        raise Refused(f"store {text!r} is neither a directory nor one of {', '.join(_SCHEMES)}")
    if credentials is not None and not credentials.empty:
        raise Refused(
            f"credentials were given for the directory {text}, whose broker asks for none",
            hint="Give the broker's address, grpc+tls://HOST:PORT",
        )
    store = Path(text).absolute()
    _require_directory(store)
    if start:
        (store / FENCED).unlink(missing_ok=True)
    client_found = _answering(store, deadline_ms)
    if not start:
        return client_found or _awaited(store, deadline_ms)
    if client_found is None:
        if not create and not (store / "metadata.sqlite").exists() and not bucket_of(store):
            raise NotFound(f"there is no ledger store at {store}", hint="Write to it once, or correct the path")
        client_found = _started(store, create, deadline_ms)
    client_found.revive = lambda: _revived(store, deadline_ms)
    return client_found


def _revived(store: Path, deadline_ms: int) -> str:
    """Return the address of a store's next broker. Raises Fenced if another host has taken over the store's bucket.

    Reason: two hosts that restart their brokers by themselves would take the store from each other for ever.
    """
    mark = store / FENCED
    if mark.exists():
        raise Fenced(
            f"the store in {bucket_of(store)} was taken over: {mark.read_text(encoding='utf-8')}",
            hint="Connect again to use the store from this host, once no other host does",
        )
    return connect_store(store, deadline_ms=deadline_ms).address


def serve_store(store: Path, arguments: Sequence[str], *, deadline_ms: int = 30_000) -> Client:
    """Start a store's broker with these arguments, and stop its private broker.

    Clients of the private broker find the new one at the same private socket. Raises what `connect_store` raises, and
    Refused if a broker with other arguments serves the store.
    """
    stop_broker(store, private_only=True, deadline_ms=deadline_ms)
    return _started(store, True, deadline_ms, arguments)


def stop_broker(store: Path, *, private_only: bool = False, deadline_ms: int = 30_000) -> bool:
    """Stop the broker of a store and wait for its end. Return False if none answered.

    The next process that uses the store starts a broker. With `private_only`, raises Refused for a broker that also
    listens elsewhere.
    """
    _require_directory(store)
    until, found = monotonic_ms() + deadline_ms, False
    while (client := _answering(store, deadline_ms, of_any_version=True)) is not None:
        record, found = BrokerRecord.read(store), True
        if private_only and record is not None and record.remote:
            raise Refused(
                f"the store {store} is served at {record.remote} already",
                hint="Use that address, or stop that broker first",
            )
        with suppress(LedgerError):
            client.call("shutdown", Empty(), deadline_ms=0)
        client.close()
        if monotonic_ms() >= until:
            raise Unavailable(f"the broker of {store} does not leave", hint=f"See {store / 'broker.log'}")
        pause(50)
    return found


def _require_directory(store: Path) -> None:
    """Refuse a path that cannot be a store: a file, a path below a file, a path that the system or SQLite rejects."""
    size = len(os.fsencode(store))
    if size > _PATH_BYTES_MAX:
        raise Refused(f"the path of store {store} has {size} bytes, at most {_PATH_BYTES_MAX} work", hint=_PATH_HINT)
    try:
        found = store.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise Refused(f"the store {store} cannot be opened: {error.strerror}", hint=_PATH_HINT) from error
    if not stat.S_ISDIR(found):
        raise Refused(f"the store {store} is a file, expected a directory", hint=_PATH_HINT)
    require_open_to_us(store)


def _awaited(store: Path, deadline_ms: int) -> Client:
    """Return a client of the last known broker, which its supervisor restarts. Raises Unavailable after the
    deadline.
    """
    record = BrokerRecord.read(store)
    if record is None:
        raise Unavailable(f"no broker was ever started for the store at {store}", hint=_START_HINT)
    client = _client_of(record, store, deadline_ms)
    try:
        client.hello()
    except (Unavailable, Refused) as error:
        raise Unavailable(
            f"no broker of store {record.store_id} at {store} answers at {record.address}: {error.message}",
            hint=_START_HINT,
        ) from None
    return client


def _answering(store: Path, deadline_ms: int, *, of_any_version: bool = False) -> Client | None:
    record = BrokerRecord.read(store)
    if record is None or (record.guarded and not _alive(record.pid)):
        return None  # the port of a dead broker may be another process's, which must not get the token
    client = _client_of(record, store, deadline_ms)
    client.connection()  # refuse a forked process here: below it would wait for a broker that it cannot call
    try:
        client.hello(deadline_ms=_PROBE_MS if _alive(record.pid) else 0)
    except (Unavailable, Refused):
        return None  # a dead broker, or the socket of another store's broker
    except Unsupported as other:
        if not of_any_version:
            raise Unsupported(
                f"the broker of {store} is of another version: {other.message}", hint=f"ledger stop --store {store}"
            ) from None
    return client


def _client_of(record: BrokerRecord, store: Path, deadline_ms: int) -> Client:
    """Return a client of a store's broker, with the store's token if its address requires one."""
    credentials = Credentials(token=f"file:{token_path(store)}") if record.guarded else None
    return Client(record.address, record.store_id, credentials=credentials, deadline_ms=deadline_ms)


def _started(store: Path, create: bool, deadline_ms: int, arguments: Sequence[str] = ()) -> Client:
    before = {entry.name for entry in store.iterdir()} if store.is_dir() else None
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(
            f"the store {store} cannot be made: {error.strerror}", hint="Choose a directory of yours"
        ) from error
    with _spawning(store):
        client = _answering(store, deadline_ms)
        if client is not None:
            return client
        if bucket_of(store):
            deadline_ms = max(deadline_ms, _BUCKET_MS)
        log = store / "broker.log"
        offset = log.stat().st_size if log.exists() else 0
        child: subprocess.Popen[bytes] | None = None
        until = monotonic_ms() + deadline_ms
        while monotonic_ms() < until:
            child = child or _spawn(store, log, [*arguments, *["--create"] * create])
            status = child.poll() if child else None
            client = _answering(store, deadline_ms)
            if client is not None:
                return client
            if status is not None and not _held(store):
                raise _start_error(store, log, offset, status, before)
            pause(20)
        raise Unavailable(
            f"the broker of {store} did not answer within {deadline_ms} ms",
            hint=f"See {log}: {_tail(log, offset)}",
        )


def _held(store: Path) -> bool:
    """Return whether another broker owns the store: restarted by its supervisor just now, or not answering."""
    try:
        holder = (store / "lock").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False
    return bool(holder) and not is_gone(holder)


def _spawn(store: Path, log: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start a supervisor, which holds its lock as long as it lives; None if the store has one already."""
    lock = os.open(store / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _supervisor(store, log, arguments, lock)
    except BlockingIOError:
        return None
    finally:
        os.close(lock)


def _supervisor(store: Path, log: Path, arguments: Sequence[str], lock: int) -> subprocess.Popen[bytes]:
    environment = broker_environment(os.environ, _package_paths())
    command = [
        sys.executable,
        "-m",
        "pyspark_ledger.ledger.broker.supervisor",
        "-m",
        "pyspark_ledger.ledger.broker.main",
        "--store",
        str(store),
    ]
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 — our own module
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
            start_new_session=True,
            pass_fds=(lock,),
        )


@contextmanager
def _spawning(store: Path) -> Iterator[None]:
    fd = os.open(store / "spawn.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.pwrite(fd, process_identity().encode(), 0)
        yield
    finally:
        os.close(fd)


def _package_paths() -> list[str]:
    """Return the directories of the broker's packages, without those that its interpreter searches anyway."""
    usual = {os.path.realpath(path) for path in site.getsitepackages()}
    found: dict[str, None] = {}
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        depth = name.count(".") + (spec.submodule_search_locations is not None)
        root = str(Path(spec.origin).absolute().parents[depth])
        if os.path.realpath(root) not in usual:
            found[root] = None
    return list(found)


def _start_error(store: Path, log: Path, offset: int, status: int, before: set[str] | None) -> LedgerError:
    """Return the error of a failed start. `before` are the directory's names before it, None without a directory."""
    said = _tail(log, offset)
    hint = f"All it said is in {log}"
    if not (store / "metadata.sqlite").exists():
        hint = ""
        for name in {log.name, "spawn.lock", "supervisor.lock"} - (before or set()):
            (store / name).unlink(missing_ok=True)
        if before is None:
            with suppress(OSError):  # not empty: the broker failed later
                store.rmdir()
    return Refused(f"the broker of {store} ended with status {status}: {said}", hint=hint)


def _tail(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
