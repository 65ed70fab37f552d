"""Says where rows go when nobody said it: one line for a driver and a store.

Spark makes sources in Python processes of its own, a new one for nearly every read and write, and shows their standard
error. So that it was said is kept outside of them, as a file that stands for the driver, the process above them all:

    <run directory>/<digest of driver and store>.told        the driver, as `ledger.host` names processes

Rules: it is said again rather than not at all, where no file can be kept. Files of drivers that are gone are removed by
the next that is made.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from ledger.errors import LedgerError
from ledger.host import is_gone, process_identity, run_directory

_OF_A_WORKER = b"PYTHON_WORKER_FACTORY_"


@cache
def announce(store: str) -> None:
    """Say it, unless it was said."""
    if not _was_told(store):
        print(f"pyspark-ledger: the store is {store}", file=sys.stderr, flush=True)  # noqa: T201


def _was_told(store: str) -> bool:
    pid = _driver()
    if pid == os.getpid():
        return False  # what this process said it remembers
    driver = process_identity(pid)
    try:
        mark = run_directory() / f"{hashlib.blake2b(f'{driver} {store}'.encode(), digest_size=8).hexdigest()}.told"
        fd = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return True
    except (OSError, LedgerError):
        return False
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(driver)
    _sweep(mark.parent)
    return False


def _driver() -> int:
    """The nearest process above this one that Spark did not start as a worker, or to fork workers; this one itself."""
    pid = os.getpid()
    with suppress(OSError):  # of a process of another user, or one that ends just now
        while any(name.startswith(_OF_A_WORKER) for name in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
            pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return pid


def _sweep(directory: Path) -> None:
    for mark in directory.glob("*.told"):
        with suppress(OSError, UnicodeDecodeError):
            if is_gone(mark.read_text(encoding="utf-8")):
                mark.unlink()
