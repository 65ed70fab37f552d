"""Connection to the broker of a store. A client of a local directory starts a private broker if none runs.

The *manifest* of a store in a bucket is the object that names the store's present broker.

Rules
- A client of a directory reads the broker's address in `<store>/broker.json`. If no broker answers, the client takes
  the lock `spawn.lock` and starts a broker. So exactly one broker starts, even if many clients connect at once.
- The broker's `PYTHONPATH` has only the directories of the packages that it imports. Reason: a file `queue.py` beside a
  user's script must not replace a module of the broker. `broker_environment` describes the other variables.
- The *supervisor* is the parent process of the broker, and restarts the broker after a crash. Both continue after the
  process that started them has ended. Their output is in `<store>/broker.log`. A store has at most one
  supervisor, which keeps the lock `supervisor.lock`. While the supervisor restarts a broker, a client waits for that
  broker.
- If a broker owns the store and does not answer yet, a client waits for it.
- If a start fails in a directory that is no store, the client removes the files that the start created.
- `connect_store` has the arguments `start` and `create`. Only a client with `start` starts a broker, and only a client
  with `create` creates a store. Any other client connects, or fails with an error that names the store's path.
- An idle broker exits. A client with `start` then starts another broker at its next call.
- A store in a bucket has one broker, which may use another directory or another host. If the client's directory has no
  broker, the client connects to the broker that the manifest names.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.client.broker_environment import bounded_allocator, broker_environment, package_paths
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import Fenced, LedgerError, NotFound, Refused, Unavailable, Unsupported
from pyspark_ledger.ledger.location import FENCED, bucket_directory, bucket_of, location_text
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.ownership import is_gone, live_place, process_identity, require_trusted
from pyspark_ledger.ledger.protocol.actions import StopBroker
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.ledger.transport.moved_store import require_not_moved

_SCHEMES = ("grpc://", "grpc+unix://", "grpc+tls://", "grpc+tcp://")
_PROBE_MS = 2_000
_START_MS = 30_000
_ADDRESS_MS = 5_000
_RESTART_MS = 10_000
_BUCKET_MS = 600_000  # the broker tests a new bucket, or finds out whether another host's broker still uses it

# SQLite opens no path of more than 512 bytes. The store's path must be shorter, because its files have longer paths.
_PATH_BYTES_MAX = 448
_PATH_HINT = "Correct the path, or choose a directory that you own"
_NOT_PASSED = (
    "A broker that this process starts does not get a credential provider or a role from the options of Spark. Start "
    "the broker with `ledger serve --config FILE`, whose file names managedLedgerOffloadCredentialProvider or "
    "s3ManagedLedgerOffloadRole, or set option credentialProvider to file:/path"
)
_START_HINT = "Start a broker with `ledger serve`, or connect on the driver first"


def connect_store(
    location: str | os.PathLike[str],
    *,
    create: bool = False,
    start: bool = True,
    deadline_ms: int = 30_000,
    credentials: Credentials | None = None,
) -> Client:
    """Return a client of the broker at an address, or of the store in a directory or a bucket.

    The function uses `credentials` for an address. It also uses them for a store in a bucket, unless the broker put its
    own certificate into the bucket. For an address the function starts no broker, and waits at most a few seconds for
    the broker there.

    Raises Unauthenticated if broker and client do not trust each other, and Unavailable if no broker answers in time.
    Raises NotFound if the directory has no store and `create` is false. Raises Refused if the store cannot be used on
    this host.
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
    store = Path(text).absolute()
    if credentials is not None and not credentials.empty and not bucket_of(store):
        raise Refused(
            f"credentials were given for the store {text}, whose broker requires none",
            hint="Remove them, or use the broker's address, grpc+tls://HOST:PORT",
        )
    _require_directory(store)
    require_not_moved(store)
    if start:
        (store / FENCED).unlink(missing_ok=True)
    client_found = _answering(store, deadline_ms) or _elsewhere(store, credentials, deadline_ms)
    if not start:
        return client_found or _awaited(store, deadline_ms)
    if client_found is None:
        if not create and not (store / "metadata.sqlite").exists() and not bucket_of(store):
            raise NotFound(f"there is no ledger store at {store}", hint="Write to it once, or correct the path")
        client_found = _started_or_elsewhere(store, create, credentials, deadline_ms)
    found = client_found
    if credentials is not None:  # its tasks find the next broker with this access
        found.credentials = replace(found.credentials, bucket=credentials.bucket)
    found.can_move = bool(bucket_of(store))
    found.revive = lambda: _revived(found, store, credentials, deadline_ms)
    return found


def _elsewhere(store: Path, credentials: Credentials | None, deadline_ms: int, *, wait_ms: int = 0) -> Client | None:
    """Return a client of the broker that a store's manifest names: it has another directory, or runs on another host.

    Waits up to `wait_ms` for a broker that its supervisor restarts. Reason: running tasks know the address of this
    broker, so it is better than a new broker.
    """
    if not bucket_of(store):
        return None
    from pyspark_ledger.ledger.client.manifest_client import manifest_client  # only stores in a bucket use it

    return manifest_client(store, credentials, deadline_ms, wait_ms)


def _started_or_elsewhere(store: Path, create: bool, credentials: Credentials | None, deadline_ms: int) -> Client:
    """Start a broker. If the start fails because another host has just started one, return a client of that broker."""
    try:
        return _started(store, create, deadline_ms, (credentials or Credentials()).bucket)
    except (Refused, Unavailable):
        if (faster := _elsewhere(store, credentials, deadline_ms)) is None:
            raise
        return faster


def _revived(client: Client, store: Path, credentials: Credentials | None, deadline_ms: int) -> str:
    """Return the address of the broker that replaces a lost broker, and let `client` follow it.

    If another host has taken the store over, the next broker runs on that host. If that broker does not answer, the
    function raises Fenced and starts no broker. Reason: otherwise two hosts would take the store from each other for
    ever.
    """
    mark = store / FENCED
    if mark.exists():
        found = _elsewhere(store, credentials, deadline_ms)
        if found is None:
            raise Fenced(
                f"the store in {bucket_of(store)} was taken over: {mark.read_text(encoding='utf-8')}",
                hint="Connect again to use the store from this host, as soon as no other host uses it",
            )
    else:
        record = BrokerRecord.read(store)
        # Without a record, the cache was deleted. The directory's own broker needs no credentials, and ends with it.
        was_elsewhere = not client.credentials.empty if record is None else record.address != client.address
        restarted = _elsewhere(store, credentials, deadline_ms, wait_ms=_RESTART_MS) if was_elsewhere else None
        found = restarted or connect_store(store, deadline_ms=deadline_ms, credentials=credentials)
    return client.follow(found)


def serve_store(store: Path, arguments: Sequence[str]) -> Client:
    """Stop a store's private broker if one runs, and start a broker with these arguments.

    Clients of the private broker connect to the new broker at the same private socket. Raises the errors of
    `connect_store`, and Refused if a broker with other arguments serves the store.
    """
    return _started(store, True, _START_MS, S3Options(), arguments)


def stop_broker(store: Path, *, private_only: bool = False, deadline_ms: int = 30_000) -> bool:
    """Stop the broker of a store and wait until its process has ended. Return False if there was none.

    The next client of the store starts a broker. With `private_only`, raises Refused if the broker also listens at an
    address for other clients. Raises Unavailable after `deadline_ms`. If this host cannot see the broker's process, as
    in another container, the function returns when the broker does not answer any more.
    """
    _require_directory(store)
    until, process, found = monotonic_ms() + deadline_ms, "", False
    while True:
        record, client = BrokerRecord.read(store), None
        try:
            client = _asked(store, deadline_ms, of_any_version=True)
        except Unavailable:  # it has no time to answer, or it closes
            if record is not None and process_identity(record.pid) == _owner(store):
                process = _owner(store)
        else:
            process = "" if client is None else _owner(store)  # None: the broker is dead, or another store's
        if client is not None:
            found = True
            _ask_to_stop(client, record, store, private_only)
        elif not process or is_gone(process):
            return found
        _pause_until(until, store, deadline_ms)


def _ask_to_stop(client: Client, record: BrokerRecord | None, store: Path, private_only: bool) -> None:
    if private_only and record is not None and record.remote:
        raise Refused(
            f"a broker already serves the store {location_text(store)} at {record.remote}",
            hint="Use that address, or stop that broker first",
        )
    with suppress(LedgerError):
        client.ask(StopBroker(), deadline_ms=0)
    client.close()


def _pause_until(until_ms: int, store: Path, deadline_ms: int) -> None:
    if monotonic_ms() >= until_ms:
        raise Unavailable(
            f"the broker of {location_text(store)} did not stop within {deadline_ms} ms",
            hint=f"See {store / 'broker.log'}",
        )
    pause(50)


def _owner(store: Path) -> str:
    """Return the identity of the process that owns a store. Empty if it is this one, or if this host cannot see it."""
    owner, here = _lock_holder(store), process_identity()
    return owner if owner != here and owner.split("/")[0] == here.split("/")[0] else ""


def _require_directory(store: Path) -> None:
    """Raise Refused for a path that cannot be a store: a file, a path below a file, or a path that is too long."""
    size = len(os.fsencode(store))
    if size > _PATH_BYTES_MAX:
        raise Refused(
            f"the path of store {store} has {size} bytes, at most {_PATH_BYTES_MAX} are allowed", hint=_PATH_HINT
        )
    try:
        if not stat.S_ISDIR(store.stat().st_mode):
            raise Refused(f"the store {store} is a file, expected a directory", hint=_PATH_HINT)
    except FileNotFoundError:
        pass  # a missing store: only the directories above it are checked
    except OSError as error:
        raise Refused(f"the store {store} cannot be opened: {error.strerror}", hint=_PATH_HINT) from error
    require_trusted(store)


def _awaited(store: Path, deadline_ms: int) -> Client:
    """Return a client of the last broker of a store, which its supervisor may be restarting.

    Raises Unavailable after the deadline.
    """
    record = BrokerRecord.read(store)
    if record is None:
        raise Unavailable(f"no broker was ever started for the store at {location_text(store)}", hint=_START_HINT)
    client = _client_of(record, store, deadline_ms)
    try:
        client.hello()
    except (Unavailable, Refused) as error:
        where = location_text(store)
        raise Unavailable(
            f"no broker of store {record.store_id} at {where} answers at {record.address}: {error.message}",
            hint=_START_HINT,
        ) from None
    return client


def _answering(store: Path, deadline_ms: int) -> Client | None:
    """Return a client of the broker that serves a store now; None if no broker does, or none answers soon."""
    try:
        return _asked(store, deadline_ms)
    except Unavailable:
        return None


def _asked(store: Path, deadline_ms: int, *, of_any_version: bool = False) -> Client | None:
    """Return a client of the broker that a store's record names; None if it names none, or one of another store.

    Raises Unavailable if the broker does not answer soon.
    """
    record = BrokerRecord.read(store)
    if record is None or (record.guarded and not _alive(record.pid)):
        return None  # another process may use the port of the dead broker, and must not get the token
    client = _client_of(record, store, deadline_ms)
    client.connection()  # Refused in a forked child, where gRPC does not work and a call would wait in vain
    try:
        client.hello(deadline_ms=_PROBE_MS if _alive(record.pid) else 0)
    except Refused:
        return None  # the broker of another store, or the broker of the store's original
    except Unsupported as other:
        if not of_any_version:
            raise Unsupported(
                f"the broker of {location_text(store)} has another version: {other.message}",
                hint=f"Stop it: ledger stop --store {location_text(store)}",
            ) from None
    return client


def _client_of(record: BrokerRecord, store: Path, deadline_ms: int) -> Client:
    """Return a client of a store's broker.

    The record may have been copied with the store. So the broker must also serve the directory that the user named.
    """
    return Client(record.address, record.store_id, deadline_ms=deadline_ms, place=live_place(store))


def _started(store: Path, create: bool, deadline_ms: int, access: S3Options, arguments: Sequence[str] = ()) -> Client:
    before = {entry.name for entry in store.iterdir()} if store.is_dir() else None
    try:
        disk.make_directory(store)
    except OSError as error:
        raise Refused(
            f"the store {store} cannot be created: {error.strerror}", hint="Choose a directory that you own"
        ) from error
    with _spawning(store):
        if arguments:
            stop_broker(store, private_only=True, deadline_ms=deadline_ms)
        elif (client := _answering(store, deadline_ms)) is not None:
            return client
        if bucket_of(store):
            deadline_ms = max(deadline_ms, _BUCKET_MS)
        log = store / "broker.log"
        offset = log.stat().st_size if log.exists() else 0
        child: subprocess.Popen[bytes] | None = None
        until = monotonic_ms() + deadline_ms
        while monotonic_ms() < until:
            child = child or _spawn(store, log, [*arguments, *["--create"] * create], access)
            status = child.poll() if child else None
            if (client := _answering(store, deadline_ms)) is not None:
                if arguments and (child is None or status is not None):
                    raise Refused(
                        f"a broker with other arguments serves the store {location_text(store)}",
                        hint=f"Stop it: ledger stop --store {location_text(store)}",
                    )
                if not arguments or _is_recorded(client, store):
                    return client
            if status is not None and not _is_owned(store):
                raise _start_error(store, log, offset, status, before, access)
            pause(20)
        raise Unavailable(
            f"the broker of {location_text(store)} did not answer within {deadline_ms} ms",
            hint=f"See {log}: {_tail(log, offset)}",
        )


def _is_recorded(client: Client, store: Path) -> bool:
    """Return whether the record is the answering broker's, which answers at the socket of the last one before."""
    record = BrokerRecord.read(store)
    return record is not None and record.pid == client.hello().pid


def _is_owned(store: Path) -> bool:
    """Return whether a broker owns the store. It may not answer yet, because its supervisor has just restarted it."""
    holder = _lock_holder(store)
    return bool(holder) and not is_gone(holder)


def _lock_holder(store: Path) -> str:
    """Return the identity of the process that last locked the store; empty if there is none."""
    try:
        return (store / "lock").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _spawn(store: Path, log: Path, arguments: Sequence[str], access: S3Options) -> subprocess.Popen[bytes] | None:
    """Start a supervisor, which has its lock until it ends. Return None if the store has a supervisor already."""
    lock = os.open(store / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _supervisor(store, log, arguments, access, lock)
    except BlockingIOError:
        return None
    finally:
        os.close(lock)


def _supervisor(
    store: Path, log: Path, arguments: Sequence[str], access: S3Options, lock: int
) -> subprocess.Popen[bytes]:
    environment = broker_environment({**os.environ, **access.variables()}, package_paths())
    if not {"--address", "--config"}.isdisjoint(arguments):  # other processes reach such a broker over TCP
        environment |= bounded_allocator(environment)
    command = [
        sys.executable,
        "-m",
        "pyspark_ledger.ledger.broker.supervisor",
        "-m",
        "pyspark_ledger.offload.broker",
        "--store",
        str(store),
    ]
    # A file that others can write would stop the broker, which trusts no such store. umask 002 is usual on RHEL.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(log, flags, disk.FILE_MODE), "ab") as output:
        return subprocess.Popen(  # noqa: S603 — a module of this project
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


def _start_error(
    store: Path, log: Path, offset: int, status: int, before: set[str] | None, access: S3Options
) -> LedgerError:
    """Return the error of a failed start. If the directory is no store, remove the files that the start created.

    `before` are the names of the files in the directory before the start; None if there was no directory.
    """
    last_line = _tail(log, offset)
    hint = f"Its complete output is in {log}"
    if not (store / "metadata.sqlite").exists():
        hint = "" if access.has_variables else _NOT_PASSED
        for name in {log.name, "spawn.lock", "supervisor.lock"} - (before or set()):
            (store / name).unlink(missing_ok=True)
        if before is None:
            with suppress(OSError):  # the broker has already written files here, and they stay
                store.rmdir()
    return Refused(f"the broker of {location_text(store)} ended with status {status}: {last_line}", hint=hint)


def _tail(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
