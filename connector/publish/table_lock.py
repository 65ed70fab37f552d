"""File lock for commits to a Delta table on a local disk. Other file systems need no lock.

On a local disk, Delta's log store creates a version in two steps: an existence check and a rename. It excludes only
threads of the same JVM. Two processes could create the same version, and the first one's segment would be lost.
Therefore a commit holds an exclusive `flock`, which the kernel releases when the process ends.

Rules
- The lock is on the directory of the table's log, so no file is left behind. Before the first version, the lock is on
  the nearest existing directory above the table.
- A table on another file system is not locked: Delta detects concurrent commits there.
- Programs that do not use this lock are not excluded. A file system without locks is used unlocked.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

_log = logging.getLogger(__name__)


@contextmanager
def table_lock(table: Path | None) -> Iterator[None]:
    """Hold the lock of the table in this directory. `None` means a table on another file system: no lock."""
    fd = None if table is None else _acquire(table)
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def directory_of(location: str) -> Path | None:
    """Return the directory of a path or a `file:` address, as Spark writes them; None for other file systems."""
    parsed = urlsplit(location)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    return Path(location) if location.startswith("/") else None


def _acquire(table: Path) -> int | None:
    """Wait for the lock and return its descriptor; None if the file system has no locks."""
    while True:
        directory = _lock_directory(table)
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # the directory was deleted meanwhile
        except PermissionError:
            return None  # a process that cannot list the directory cannot commit there; Delta reports it
        try:
            _wait_for_lock(fd, directory)
        except OSError as none:
            os.close(fd)
            _log.debug("%s cannot be locked: %s", directory, none)
            return None
        except BaseException:
            os.close(fd)
            raise
        if _lock_directory(table) == directory and _is_same_directory(fd, directory):
            return fd
        os.close(fd)


def _lock_directory(table: Path) -> Path:
    log = table / "_delta_log"
    if any(log.glob("*.json")):
        return log
    return next(above for above in table.parents if above.is_dir())


def _wait_for_lock(fd: int, directory: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.info("%s: waiting for the commit of another process", directory)
        fcntl.flock(fd, fcntl.LOCK_EX)


def _is_same_directory(fd: int, directory: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), directory.stat())
    except FileNotFoundError:
        return False
