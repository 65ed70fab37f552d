"""The driver's connection to a broker, the message that names a default store, and paths of credential files.

    <run directory>/<digest of driver and store>.told        the driver, as `ledger.ownership` names processes

Rules of `DriverConnection`
- Only the driver uses it. It may start the private broker of a directory, and a writer may create the store. Tasks
  do neither (`connector.read.ledger.task`).
- A broker that cannot be reached is retried until a deadline. Reason: an error of a driver call ends a streaming query.
- At an address no broker is started. An address that never answered is an error within seconds, not at the deadline.
- Retried requests must be idempotent. Every request of the broker's protocol that is sent here is.

Rules of `announce`
- A default store is named once for each driver and store. The driver is the process above Spark's source processes.
- A file outside of these processes records the message. Reason: Spark makes a process for nearly every read and write,
  and shows its standard error.
- If no file can be kept, the message is repeated rather than left out.
- Files of drivers that are gone are removed when the next file is made.

Rules of `on_this_host`
- A file at the given path goes before a file of the same name that Spark shipped to its executors.
- `spark.files`, `sc.addFile` and `pyspark_ledger.serve` ship files. On an executor a shipped file keeps its name, in a
  directory of Spark's.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.ownership import is_gone, process_identity, run_directory

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.client.credentials import Credentials

_log = logging.getLogger(__name__)


_Answer = TypeVar("_Answer")
DRIVER_DEADLINE_MS = 30_000
_PAUSE_MS = 100
# How long the client itself retries before the broker of a directory is looked for, or started, anew.
_CLIENT_MS = 3_000


class DriverConnection:
    """Connection of a driver process to one broker. Connects at the first call."""

    def __init__(
        self,
        location: str,
        *,
        create: bool = False,
        deadline_ms: int = DRIVER_DEADLINE_MS,
        credentials: Credentials | None = None,
    ) -> None:
        self.location = location
        self._credentials = credentials
        self._answered = False
        self._create = create
        self._deadline_ms = deadline_ms
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The connected client; connects if there is none yet."""
        if self._client is None:
            from pyspark_ledger.ledger.client.connect import connect_store

            self._client = connect_store(self.location, create=self._create, start=True, credentials=self._credentials)
            self._answered = True
            self._client.deadline_ms = _CLIENT_MS
            _log.info("store %s is served at %s", self._client.store_id, self._client.address)
        return self._client

    def call(self, ask: Callable[[Client], _Answer]) -> _Answer:
        """The answer of `ask`, repeated while the broker is Unavailable, until the deadline."""
        end = monotonic_ms() + self._deadline_ms
        while True:
            try:
                return ask(self.client)
            except Unavailable as error:
                self._client = None
                if monotonic_ms() >= end or (not self._answered and "://" in self.location):
                    raise
                _log.warning("broker of %s: %s; trying again", self.location, error)
            pause(_PAUSE_MS)


_OF_A_WORKER = b"PYTHON_WORKER_FACTORY_"


@cache
def announce(store: str) -> None:
    """Print the location of a default store, unless it was printed for this driver."""
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


def on_this_host(credentials: Credentials) -> Credentials:
    """The same credentials, with the paths that this process can read."""
    return credentials.with_files(file_on_this_host)


def file_on_this_host(path: str) -> str:
    """The path of a file that this process can read; the given one, where there is none."""
    if Path(path).exists():
        return path
    try:
        from pyspark import SparkFiles

        shipped = SparkFiles.get(Path(path).name)
    except Exception:  # noqa: BLE001  # no Spark here, or none that runs: then the error names the path that was given
        return path
    return shipped if Path(shipped).exists() else path
