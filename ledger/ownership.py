"""Identity of this host and of processes, and the lock of a store.

Rules
- A store belongs to one host and one directory. Its metadata record the machine id, and the numbers of the directory's
  disk (device) and of the directory on this disk (inode). These numbers change by a reboot, a restore or a move. So a
  difference raises a question (`OwnerChange`), and never decides.
- While a host runs, boot, device and inode identify a directory, under each of its paths. A copy has another inode. So
  sockets and shared memory are named by the *live place* of a store, and each client compares it.
- The lock is a `flock`, a lock of the kernel, on `<store>/lock`. The kernel releases it when the broker's process ends.
- A broker that takes a store over replaces the lock file. The previous broker keeps the lock of the replaced file. It
  learns from the store's epoch, which rises with each start of a broker, that it has lost the store.
- A process is identified by host, pid and start time, because the kernel reuses pids.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Self

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import bucket_of, location_text

_MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FORMERLY = " formerly "
_log = logging.getLogger(__name__)
_STARTTIME_FIELD = 19  # in /proc/<pid>/stat, counted after the command's closing parenthesis


class OwnerChange(StrEnum):
    """Answer of a person to the question why a store is in another place than its records or its manifest say.

    - `MOVED`: the store was moved or restored, and nobody uses the original. The store keeps its id.
    - `COPIED`: the original is still used. The copy gets a new id, and keeps the old one in a list of former ids.
    - `BROKER`: the same store was served by another broker, which may still run. The store keeps its id.
    """

    MOVED = "moved"
    COPIED = "copied"
    BROKER = "broker"


def owner_hint(where: str) -> str:
    """Return the hint of an error that asks for an `OwnerChange`."""
    command = f"ledger serve --store {where} --take-over"
    return (
        f"Run once: `{command} moved` after a move or a restore, `{command} copied` if the original is still used, or "
        f"`{command} broker` if another broker served this same place"
    )


def machine_id() -> str:
    """Return the machine id of this host.

    A system without a machine id, as in many containers, returns the host's name.
    """
    for name in _MACHINE_ID_FILES:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text:
            return text
    return os.uname().nodename


def host_identity(store: Path) -> str:
    """Return `machine:device:inode` of a store's directory, as the store's metadata record it."""
    status = store.stat()
    return f"{machine_id()}:{status.st_dev}:{status.st_ino}"


def host_text(host: str, former: Sequence[str]) -> str:
    """Return `machine:device:inode` and the former ids of a store, as one column of the metadata.

    A program of an earlier version compares the whole text. So it refuses a store that has former ids.
    """
    return f"{host}{_FORMERLY}{' '.join(former)}" if former else host


def host_parts(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the two parts of a `host_text`."""
    host, _, former = text.partition(_FORMERLY)
    return host, tuple(former.split())


def live_place(store: Path) -> str:
    """Return `boot:device:inode` of a store's directory, or the address of the store's bucket.

    Two paths of one directory, such as a link and its target, have the same live place. A copy has another one.
    """
    if address := bucket_of(store):
        return address
    status = store.stat()
    return f"{_BOOT_ID.read_text(encoding='ascii').strip()}:{status.st_dev}:{status.st_ino}"


def live_name(store: Path, endpoint: str = "") -> str:
    """Return 16 hex digits from a store's live place, for the names of sockets and shared memory.

    `endpoint` is the S3 endpoint of a store in a bucket: two servers can have buckets of the same name.
    """
    place = f"{live_place(store)} {endpoint if bucket_of(store) else ''}"
    return hashlib.sha256(place.encode()).hexdigest()[:16]


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file, or None if the file is missing."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def process_identity(pid: int | None = None) -> str:
    """Return `machine/pid/start time` of a process, by default of the calling process."""
    pid = os.getpid() if pid is None else pid
    return f"{machine_id()}/{pid}/{_start_time(pid)}"


def is_gone(identity: str) -> bool:
    """Return whether a process of this host has ended: its pid is free or reused.

    Returns False for a process of another host, because this host cannot know. Text after the third part of the
    identity is ignored.
    """
    parts = identity.split("/")
    if len(parts) < 3 or parts[0] != machine_id() or not parts[1].isdecimal():
        return False
    return _start_time(int(parts[1])) != parts[2]


def run_directory() -> Path:
    """Return a private directory for sockets, and create it if it is missing.

    Its path is short, because the kernel limits the path of a socket to 107 bytes.

    Raises Refused if another user owns the directory or has access to it.
    """
    path = run_directory_path()
    with suppress(FileExistsError):  # the checks below refuse a file or a link of this name
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise Refused(f"{path} is not a directory", hint="Remove it, or set XDG_RUNTIME_DIR to a private directory")
    if status.st_uid != os.getuid() or status.st_mode & 0o77:
        raise Refused(
            f"{path} has owner {status.st_uid} and mode {status.st_mode & 0o777:o}, expected {os.getuid()} and 700",
            hint="Remove it, or set XDG_RUNTIME_DIR to a private directory",
        )
    return path


def run_directory_path() -> Path:
    """Return the path of the run directory, which may be missing."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    shared = Path(f"/tmp/pyspark-ledger-{os.getuid()}")  # noqa: S108 — `run_directory` checks owner and mode
    return Path(base) / "pyspark-ledger" if base and Path(base).is_dir() else shared


def require_private(store: Path) -> None:
    """Raise Refused if another user owns a file of the store or can write to it.

    Otherwise, make the store's directory private. The broker calls this before it reads any file of the store.
    """
    for path in [store, *sorted(store.iterdir())]:
        status = path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if path.is_symlink() or status.st_uid != os.getuid() or mode & 0o022:
            kind = "a link" if path.is_symlink() else f"owner {status.st_uid} and mode {mode:o}"
            raise Refused(
                f"{path} has {kind}, expected owner {os.getuid()} and a mode that lets only the owner write",
                hint="Another user could have changed it. If that did not happen: chown it, chmod -R go-w it",
            )
    mode = stat.S_IMODE(store.stat().st_mode)
    if mode & 0o077:
        _log.warning("%s had mode %o and has %o from now on: only the owner reads a ledger's data", store, mode, 0o700)
        store.chmod(0o700)


def require_open_to_us(store: Path) -> None:
    """Raise Refused if this user cannot read the store's directory. Other users connect to the broker's address."""
    if not os.access(store, os.R_OK | os.X_OK, effective_ids=True):
        raise Refused(
            f"user {os.geteuid()} cannot read the store {store}, its owner is user {store.stat().st_uid}",
            hint="Only the owner can open a store's directory: connect to the address of its broker",
        )


class StoreLock:
    """Exclusive lock of a store, acquired by its broker."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def acquire(cls, store: Path, *, take_over: bool = False) -> Self:
        """Acquire the lock. Raises Refused with the owner's process if another broker has the lock.

        `take_over` acquires the lock of a new file, and replaces the lock file of a broker that may still be alive.
        """
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
                raise Refused(
                    f"another broker took over the store {location_text(store)} while {process_identity()} locked it"
                )
        os.ftruncate(lock._fd, 0)
        os.pwrite(lock._fd, process_identity().encode(), 0)
        return lock

    def shared(self) -> Self:
        """Return a second handle of this lock. The lock is released with the last of its handles."""
        return type(self)(self._path, os.dup(self._fd))

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
            store = location_text(path.parent)
            raise Refused(
                f"the store {store} is in use by the broker {holder}, this is {process_identity()}",
                hint="A store has one broker: connect to that broker",
            ) from None
        return fd


def _start_time(pid: int) -> str:
    """Return a process's start, in clock ticks since boot.

    Returns an empty text if no process has the pid, or only a zombie (a process that has ended).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[_STARTTIME_FIELD]
