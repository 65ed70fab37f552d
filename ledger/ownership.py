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
- A store is trusted if only its owner can write to it, and if nobody else can rename it or a directory above it
  (`require_trusted`). Exception: directories that `LEDGER_SHARED_DIRECTORY` names, such as a volume of Kubernetes.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import logging
import os
import pwd
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Self

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import bucket_of, location_text

_MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FORMERLY = " formerly "
_log = logging.getLogger(__name__)
SHARED = "LEDGER_SHARED_DIRECTORY"
"""Environment variable with directories, separated by `:`, whose writers the user trusts."""
_OTHERS_WRITE, _GROUP_WRITES = 0o022, 0o020
_LINKS_MAX = 40
_TOKEN_CHARACTERS = 64
_TOKEN = re.compile(rb"[0-9a-f]{64}")
_STARTED = {"broker.log", "spawn.lock", "supervisor.lock"}  # files of a first start, which has not made a store yet
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


def restored_hint(address: str) -> str:
    """Return the advice for a store in a bucket that was moved or restored."""
    return (
        "If its objects are a restored copy, objects that were uploaded later may be left: delete them with "
        f"`ledger offload LEDGER --sweep --store {address}`"
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


def require_trusted(store: Path) -> None:
    """Raise Refused if another user could have planted or changed a store, or could replace its directory.

    Every program calls this function before it reads, creates or writes a file of the store. The directory may be
    missing. If only the mode is too open and everything is ours, the function corrects the mode and logs one line.
    """
    steps = _steps_to(store)
    exists = store.is_dir()
    for path, status in steps[:-1] if exists else steps:
        if not _is_shared(path):
            _require_lasting(path, status)
    if not exists:
        return
    _require_open_to_us(store)
    directory, status = steps[-1]
    if _is_shared(directory):
        _checked_entries(store, None)
        return
    if status.st_uid not in (0, os.geteuid()):
        raise Refused(
            f"the store {store} belongs to user {status.st_uid}, this is user {os.geteuid()}",
            hint=f"Connect to the address of its broker. If the files are yours: {_chown(store)}. If its users "
            f"trust each other: {_share(store)}",
        )
    found = _checked_entries(store, status.st_uid)
    if status.st_mode & _OTHERS_WRITE and not _is_store(store, found):
        raise Refused(
            f"{store} has mode {stat.S_IMODE(status.st_mode):o}: other users can write to it, and it is no store",
            hint="Choose a directory of your own",
        )
    loose = [path for path, mode in found.items() if mode & _GROUP_WRITES]
    if loose or status.st_mode & _OTHERS_WRITE:
        _tighten(store, status, loose)


def make_private(store: Path) -> None:
    """Let only the owner read a store's directory. A directory that is named as shared stays unchanged."""
    status = store.stat()
    if stat.S_IMODE(status.st_mode) & 0o077 and not _is_shared(store):
        _tighten(store, status, [])


def _tighten(store: Path, status: os.stat_result, loose: Sequence[Path]) -> None:
    if status.st_uid != os.geteuid():
        raise Refused(
            f"{store} has mode {stat.S_IMODE(status.st_mode):o} or files that its group can write",
            hint=f"Ask its owner, user {status.st_uid}, to run: chmod -R go-w {quote(str(store))}",
        )
    store.chmod(0o700)
    _checked_entries(store, status.st_uid)  # again, because the directory was open until now
    for path in loose:
        with suppress(FileNotFoundError):  # a scratch file of a broker
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~_OTHERS_WRITE)
    names = f", and {len(loose)} files were writable by their group" if loose else ""
    mode = stat.S_IMODE(status.st_mode)
    _log.warning("%s had mode %o%s: from now on only user %d uses them", store, mode, names, status.st_uid)


def _checked_entries(store: Path, owner: int | None) -> dict[Path, int]:
    """Return the entries of a store with their modes. Raises Refused for an entry that another user could have made.

    With no `owner` only links are refused. Files in folders of the store are not checked: nobody else reaches them.
    """
    entries: dict[Path, int] = {}
    statuses: list[tuple[Path, os.stat_result]] = []
    for path in sorted(store.iterdir()):
        with suppress(FileNotFoundError):  # a scratch file of a broker
            statuses.append((path, path.lstat()))
    known = _is_store(store, [path for path, _ in statuses])
    for path, status in statuses:
        mode = stat.S_IMODE(status.st_mode)
        entries[path] = mode
        if not known and not path.name.startswith("broker."):
            continue  # a file of a directory that is no store, which a later check refuses
        if stat.S_ISLNK(status.st_mode):
            raise Refused(f"{path} is a link, and a store contains none", hint=f"Remove it: rm {quote(str(path))}")
        if owner is not None and (status.st_uid != owner or mode & 0o002):
            raise Refused(
                f"{path} has owner {status.st_uid} and mode {mode:o}, expected owner {owner} and a mode that lets only "
                "the owner write",
                hint=f"Another user could have changed it. If that did not happen: {_chown(store)}",
            )
    return entries


def _is_store(store: Path, entries: Iterable[Path]) -> bool:
    """Return whether a directory is a store, a store that is being created, or the cache of a bucket's store."""
    names = {path.name for path in entries}
    return (
        bool(bucket_of(store))
        or not names.isdisjoint(("metadata.sqlite", "metadata.moved.sqlite"))
        or names <= _STARTED
    )


def _require_lasting(path: Path, status: os.stat_result) -> None:
    """Raise Refused if another user can rename or replace what is in a directory on the way to a store.

    In a directory with the sticky bit (`/tmp`), only the owner of a file can do so.
    """
    mode = stat.S_IMODE(status.st_mode)
    # In a user namespace the host's root has another id. The owner of `/` can replace everything anyway.
    if status.st_uid not in (0, os.geteuid(), Path("/").stat().st_uid):
        raise Refused(
            f"{path}, on the way to the store, belongs to user {status.st_uid}, who could replace the store",
            hint=f"Choose a directory below one of your own. If you trust this user: {_share(path)}",
        )
    if stat.S_ISLNK(status.st_mode) or mode & stat.S_ISVTX:
        return
    if mode & 0o002 or (mode & _GROUP_WRITES and not _is_own_group(status.st_gid)):
        raise Refused(
            f"{path}, on the way to the store, has mode {mode:o}: other users could replace the store",
            hint=f"Run: chmod {'o' if mode & 0o002 else 'g'}-w {quote(str(path))}. If these users must write there: "
            f"chmod +t {quote(str(path))}. If you trust them: {_share(path)}",
        )


def _steps_to(store: Path) -> list[tuple[Path, os.stat_result]]:
    """Return every directory and link that the kernel passes on the way to a store. The last step is the store.

    The steps end before a missing directory.
    """
    steps: list[tuple[Path, os.stat_result]] = []
    path = store.absolute()
    for _ in range(_LINKS_MAX):
        for step in [*reversed(path.parents), path]:
            try:
                status = step.lstat()
            except (FileNotFoundError, NotADirectoryError):
                return steps
            steps.append((Path(os.path.realpath(step.parent)) / step.name, status))
            if stat.S_ISLNK(status.st_mode):
                path = step.parent / step.readlink() / path.relative_to(step)
                break
        else:
            return steps
    raise Refused(f"the path of the store {store} has more than {_LINKS_MAX} links", hint="Correct the path")


def _is_shared(path: Path) -> bool:
    """Return whether the user has named a directory, or a directory above it, as shared."""
    named = [Path(text).expanduser().resolve() for text in os.environ.get(SHARED, "").split(os.pathsep) if text]
    return any(path.resolve().is_relative_to(root) for root in named)


@cache
def _is_own_group(gid: int) -> bool:
    """Return whether this user is the only member of a group, as of the group that many systems make for each user."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
        members = {*grp.getgrgid(gid).gr_mem, *(user.pw_name for user in pwd.getpwall() if user.pw_gid == gid)}
    except KeyError:  # a container without an entry for the user or the group
        return gid == os.getegid()
    return members <= {name, "root"}


def _chown(store: Path) -> str:
    return f"sudo chown -R {os.geteuid()} {quote(str(store))} && sudo chmod -R go-w {quote(str(store))}"


def _share(path: Path) -> str:
    return f"export {SHARED}={quote(str(path))}"


def _require_open_to_us(store: Path) -> None:
    """Raise Refused if this user cannot read the store's directory. Other users connect to the broker's address."""
    if not os.access(store, os.R_OK | os.X_OK, effective_ids=True):
        raise Refused(
            f"user {os.geteuid()} cannot read the store {store}, its owner is user {store.stat().st_uid}",
            hint="Only the owner can open a store's directory: connect to the address of its broker",
        )


def own_token(path: Path) -> str:
    """Return the token in a file of one of this user's run directories. Empty for any other file.

    `path` may come from a program of another user, and must not name another secret.
    """
    if path.parent not in run_directories() or path.suffix != ".token":
        return ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        status, folder = os.fstat(fd), path.parent.lstat()
        private = not (status.st_mode | folder.st_mode) & 0o077 and stat.S_ISREG(status.st_mode)
        ours = {status.st_uid, folder.st_uid} == {os.geteuid()} and stat.S_ISDIR(folder.st_mode)
        text = os.read(fd, _TOKEN_CHARACTERS + 1) if private and ours else b""
    finally:
        os.close(fd)
    return text.decode() if _TOKEN.fullmatch(text) else ""


def run_directories() -> list[Path]:
    """Return the paths that the run directory has for this user's programs with and without XDG_RUNTIME_DIR."""
    user = os.geteuid()
    others = (f"/run/user/{user}/pyspark-ledger", f"/tmp/pyspark-ledger-{user}")  # noqa: S108 — see `own_token`
    return [run_directory_path(), *map(Path, others)]


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
