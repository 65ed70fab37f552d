"""File lock for commits to a Delta table on a local disk. Other file systems need no lock.

On a local disk, Delta creates a version of a table in two steps. It checks that the version does not exist, then
renames a file. Delta's lock excludes only threads of the same JVM. So two processes could create the same version, and
the segment of the first process would be lost. Therefore a commit holds an exclusive `flock`, which the kernel releases
when the process ends.

Rules
- The lock is on the directory of the table's log, so it needs no file. Before the first version, the lock is on the
  nearest existing directory above the table.
- A table on another file system is not locked, because Delta detects concurrent commits there.
- The lock excludes only programs that use it. If the file system has no locks, the table is not locked.
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
    """Hold the lock of the table in this directory. None means a table on another file system, without a lock."""
    fd = None if table is None else _acquire(table)
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def directory_of(location: str) -> Path | None:
    """Return the directory of a path or a `file:` address of Spark. Returns None for other file systems."""
    parsed = urlsplit(location)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    return Path(location) if location.startswith("/") else None


def _acquire(table: Path) -> int | None:
    """Wait for the lock and return its file descriptor. Returns None if the directory cannot be locked."""
    while True:
        directory = _lock_directory(table)
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another process deleted the directory
        except PermissionError:
            return None  # Delta's commit fails for the same reason, and raises the error
        try:
            _wait_for_lock(fd, directory)
        except OSError as error:
            os.close(fd)
            _log.debug("%s cannot be locked: %s", directory, error)
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
