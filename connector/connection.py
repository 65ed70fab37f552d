"""Connection of the driver to a broker, lines for the user such as the default store, and paths of credential files.

If neither an option nor the session names a store, a read or write uses the *default store*. The user sees a line with
its location, once.

    <run directory>/<digest of driver and line>.told         identity of the driver process (`ledger.ownership`)

Rules of `DriverConnection`
- Only the driver uses this connection. The driver may start the private broker of a directory, and a writer may create
  the store. A task does neither (`connector.read.ledger.task`).
- If the broker cannot be reached, a call is retried until a deadline. Reason: an error of a driver call ends a
  streaming query.
- If the location is a broker's address, no broker is started. If no broker has ever answered there, a call raises
  Unavailable within seconds.
- All requests that are sent through this class must be idempotent, because a retry repeats them.

Rules of `print_once`
- The line is printed once for each driver. The driver is the parent of the processes in which Spark runs
  data sources.
- The file above records that the line was printed. Reason: Spark starts a process for nearly every read and write, and
  shows the standard error of each process to the user. Without the file, each of them would print the line.
- If the file cannot be written, the line is printed again.
- Files of drivers that have ended are removed when the next file is written.

Rules of `local_credentials`
- `spark.files`, `sc.addFile` and `pyspark_ledger.serve` ship files to executors. There the files are in a directory of
  Spark, with the same names.
- A file at the given path takes precedence over a shipped file of the same name.
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
from pyspark_ledger.ledger.errors import Archived, LedgerError, Unavailable
from pyspark_ledger.ledger.location import location_text
from pyspark_ledger.ledger.ownership import is_gone, process_identity, run_directory

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.client.credentials import Credentials
    from pyspark_ledger.ledger.protocol.request import Reply, Request

_log = logging.getLogger(__name__)


_Answer = TypeVar("_Answer")
DRIVER_DEADLINE_MS = 30_000
_PAUSE_MS = 100
# Time for which the client retries. After this time the broker of a directory is looked up or started again.
_CLIENT_MS = 3_000


class DriverConnection:
    """Connection of a driver process to one broker, opened at the first call."""

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
        self._has_connected = False
        self._create = create
        self._deadline_ms = deadline_ms
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Connected client. The first access connects."""
        if self._client is None:
            from pyspark_ledger.ledger.client.connect import connect_store

            self._client = connect_store(self.location, create=self._create, start=True, credentials=self._credentials)
            self._has_connected = True
            self._client.deadline_ms = _CLIENT_MS
            _log.info("store %s is served at %s", self._client.store_id, self._client.address)
        return self._client

    def ask(self, request: Request[Reply]) -> Reply:
        """Send a request and return its reply. Retry until the deadline while no broker answers."""
        return self.call(lambda client: client.ask(request))

    def call(self, ask: Callable[[Client], _Answer]) -> _Answer:
        """Return the result of `ask`. Retry until the deadline while `ask` raises Unavailable."""
        deadline_ms = monotonic_ms() + self._deadline_ms
        while True:
            try:
                return ask(self.client)
            except Unavailable as error:
                self._client = None
                unserved = not self._has_connected and "://" in self.location
                if isinstance(error, Archived) or unserved or monotonic_ms() >= deadline_ms:
                    raise
                _log.warning("broker of %s: %s; trying again", location_text(self.location), error)
            pause(_PAUSE_MS)


_WORKER_VARIABLE = b"PYTHON_WORKER_FACTORY_"


def log_default_store(store: str) -> None:
    """Print the location of the default store, once per driver."""
    print_once(f"the store is {location_text(store)}")


@cache
def print_once(line: str) -> None:
    """Print a line for the user, once per driver."""
    if not _record_printed(line):
        print(f"pyspark-ledger: {line}", file=sys.stderr, flush=True)  # noqa: T201


def _record_printed(line: str) -> bool:
    """Record that a line is printed. Return whether an earlier process of this driver has printed it."""
    pid = _driver_pid()
    if pid == os.getpid():
        return False  # `print_once` is cached in this process
    driver = process_identity(pid)
    try:
        mark = run_directory() / f"{hashlib.blake2b(f'{driver} {line}'.encode(), digest_size=8).hexdigest()}.told"
        fd = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return True
    except (OSError, LedgerError):
        return False
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(driver)
    _remove_stale(mark.parent)
    return False


def _driver_pid() -> int:
    """Return the id of the driver: this process, or its nearest ancestor that is not a Python process of Spark."""
    pid = os.getpid()
    with suppress(OSError):  # the process belongs to another user, or has just ended
        while any(name.startswith(_WORKER_VARIABLE) for name in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
            pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return pid


def _remove_stale(directory: Path) -> None:
    for mark in directory.glob("*.told"):
        with suppress(OSError, UnicodeDecodeError):
            if is_gone(mark.read_text(encoding="utf-8")):
                mark.unlink()


def local_credentials(credentials: Credentials) -> Credentials:
    """Return the credentials with file paths that this process can read."""
    return credentials.with_files(local_path)


def local_path(path: str) -> str:
    """Return the path of a file on this host: `path`, or the path of the file that Spark shipped under this name.

    Returns `path` if neither file exists.
    """
    if Path(path).exists():
        return path
    try:
        from pyspark import SparkFiles

        shipped = SparkFiles.get(Path(path).name)
    except Exception:  # noqa: BLE001  # without a running Spark; a later error names the given path
        return path
    return shipped if Path(shipped).exists() else path
