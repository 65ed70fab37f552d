"""One process of a host at a time commits to a table on its disk: Delta tells two of them apart everywhere but there.

Delta's log store makes a version of a table by `is it there?` and `rename`, on a local disk two steps that only threads
of one JVM are kept from doing at once. Two processes could both make the same version, and the first one's segment
would be gone. So a commit is made under an exclusive `flock` that the kernel gives up with its process.

Rules
- What is locked is the directory of the table's log, so that nothing is left behind; while there is no version, the
  nearest directory above the table, so that one process makes it.
- A table elsewhere is Delta's alone, and so are commits of those who know nothing of this. A file system without locks
  is passed over.
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
    """Nobody else commits to the table in this directory meanwhile; None for one that is elsewhere."""
    fd = None if table is None else _taken(table)
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def directory_of(location: str) -> Path | None:
    """The directory of a path or a `file:` address, as Spark writes them; None for what is elsewhere."""
    parsed = urlsplit(location)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    return Path(location) if location.startswith("/") else None


def _taken(table: Path) -> int | None:
    """The lock, once it is this process'; None where there are no locks."""
    while True:
        place = _place(table)
        try:
            fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # it went meanwhile
        except PermissionError:
            return None  # whoever cannot list it cannot commit there either, and Delta says so
        try:
            _wait(fd, place)
        except OSError as none:
            os.close(fd)
            _log.debug("%s cannot be locked: %s", place, none)
            return None
        except BaseException:
            os.close(fd)
            raise
        if _place(table) == place and _is_still(fd, place):
            return fd
        os.close(fd)


def _place(table: Path) -> Path:
    log = table / "_delta_log"
    if any(log.glob("*.json")):
        return log
    return next(above for above in table.parents if above.is_dir())


def _wait(fd: int, place: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.info("%s: waiting for another process that commits", place)
        fcntl.flock(fd, fcntl.LOCK_EX)


def _is_still(fd: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), place.stat())
    except FileNotFoundError:
        return False
