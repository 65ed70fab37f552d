"""Identity of this host and of processes, and the lock of a store.

Rules
- A store belongs to one host and one directory on it: machine id, device and inode are recorded when it is created.
- The lock is a `flock` on `<store>/lock`, held as long as the broker lives; the kernel releases it at its death.
- A take-over replaces the lock file. The old owner keeps a lock on an unused file, and the epoch tells it that it has
  lost the store.
- A process is named by host, pid and start time, so that a reused pid is not mistaken for it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Refused

_MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_log = logging.getLogger(__name__)
_STARTTIME_FIELD = 19  # in /proc/<pid>/stat, counted after the command's closing parenthesis


def machine_id() -> str:
    """Return the machine id of this host; its name if the system has none, as in many containers."""
    for name in _MACHINE_ID_FILES:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text:
            return text
    return os.uname().nodename


def host_identity(store: Path) -> str:
    """Return the host and directory of a store, as its metadata record them."""
    status = store.stat()
    return f"{machine_id()}:{status.st_dev}:{status.st_ino}"


def process_identity(pid: int | None = None) -> str:
    """Return `machine/pid/start time` of a process, this one by default."""
    pid = os.getpid() if pid is None else pid
    return f"{machine_id()}/{pid}/{_start_time(pid)}"


def is_gone(identity: str) -> bool:
    """Return whether a process is known to be dead: it was of this host, and its pid is free or reused.

    Anything after the third part of the identity is ignored. A process of another host is never known to be dead.
    """
    parts = identity.split("/")
    if len(parts) < 3 or parts[0] != machine_id() or not parts[1].isdecimal():
        return False
    return _start_time(int(parts[1])) != parts[2]


def run_directory() -> Path:
    """Return a short, private directory for sockets. It is created if missing, and refused unless it is this user's
    alone.
    """
    path = run_directory_path()
    with suppress(FileExistsError):  # an existing file or link is checked below
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise Refused(f"{path} is no directory", hint="Remove it, or set XDG_RUNTIME_DIR to a private directory")
    if status.st_uid != os.getuid() or status.st_mode & 0o77:
        raise Refused(
            f"{path} has owner {status.st_uid} and mode {status.st_mode & 0o777:o}, expected {os.getuid()} and 700",
            hint="Remove it, or set XDG_RUNTIME_DIR to a private directory",
        )
    return path


def run_directory_path() -> Path:
    """Return the path of the run directory, which need not exist."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    shared = Path(f"/tmp/pyspark-ledger-{os.getuid()}")  # noqa: S108 — `run_directory` checks owner and mode
    return Path(base) / "pyspark-ledger" if base and Path(base).is_dir() else shared


def require_private(store: Path) -> None:
    """Refuse a store that others can write to, and close it to readers.

    Checks the directory and its content before any of it is used.
    """
    for path in [store, *sorted(store.iterdir())]:
        status = path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if path.is_symlink() or status.st_uid != os.getuid() or mode & 0o022:
            kind = "a link" if path.is_symlink() else f"owner {status.st_uid} and mode {mode:o}"
            raise Refused(
                f"{path} has {kind}, expected owner {os.getuid()} and a mode that lets nobody else write",
                hint="Somebody else could have changed it. If nobody has: chown it, chmod -R go-w it",
            )
    mode = stat.S_IMODE(store.stat().st_mode)
    if mode & 0o077:
        _log.warning("%s has mode %o, has %o from now on: what a ledger holds is its owner's", store, mode, 0o700)
        store.chmod(0o700)


def require_open_to_us(store: Path) -> None:
    """Raise Refused if the store directory belongs to another user. Other users must connect through the broker's
    address.
    """
    if not os.access(store, os.R_OK | os.X_OK, effective_ids=True):
        raise Refused(
            f"the store {store} is closed to user {os.geteuid()}, its owner is {store.stat().st_uid}",
            hint="A store is its owner's alone: connect to the address that its broker is served at",
        )


class StoreLock:
    """Lock of a store's broker."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def acquire(cls, store: Path, *, take_over: bool = False) -> Self:
        """Take the lock. Raises Refused naming the holder's process if another broker has it."""
        path = store / "lock"
        if take_over:
            scratch = store / f"lock.{os.getpid()}"
            scratch.unlink(missing_ok=True)
            os.close(disk.create_file(scratch))
            lock = cls(path, cls._locked(scratch))
            scratch.rename(path)
        else:
            lock = cls(path, cls._locked(path))
            if os.fstat(lock._fd).st_ino != path.stat().st_ino:
                lock.release()
                raise Refused(f"the store at {store} was taken over while {process_identity()} asked for its lock")
        os.ftruncate(lock._fd, 0)
        os.pwrite(lock._fd, process_identity().encode(), 0)
        return lock

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @staticmethod
    def _locked(path: Path) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 256, 0).decode(errors="replace")
            os.close(fd)
            raise Refused(
                f"the store at {path.parent} is held by the broker {holder}, this is {process_identity()}",
                hint="Connect to that broker; a store has one",
            ) from None
        return fd


def _start_time(pid: int) -> str:
    """Return a process's start, in clock ticks since boot; empty if there is none of that pid, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[_STARTTIME_FIELD]
