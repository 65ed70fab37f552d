"""Fresh stores for a run of tests, each in a directory of its own with a broker of its own.

    with FreshStores() as stores, stores.fresh() as store:
        connect(store).ledger("orders").append([{"id": 1}])

Rules
- The brokers are forks of one process, `pyspark_ledger.offload.broker_forks`. It ends with the process that started it,
  however that process ends, and deletes all stores.
- The import of this module costs little, so that the fork server can start while its caller imports the client.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from pyspark_ledger.ledger.client.broker_environment import broker_environment, package_paths
from pyspark_ledger.ledger.errors import Unavailable

_ANSWER_SECONDS = 30.0
_END_SECONDS = 10.0
_LINE_BYTES_MAX = 4_096
# The broker computes no matrix, and a fork with idle threads of OpenBLAS makes Python warn.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class FreshStores:
    """Source of fresh stores. `close`, or the end of this process, ends all brokers and deletes all stores."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ledger-stores-"))
        self._log = self.directory / "forks.log"
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_ANSWER_SECONDS)
        with theirs, self._log.open("wb") as log:
            self._server = subprocess.Popen(  # noqa: S603 — a module of this project
                [sys.executable, "-m", "pyspark_ledger.offload.broker_forks", str(self.directory), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=log,
                cwd="/",
                env=broker_environment(os.environ, package_paths()) | _ONE_THREAD,
                start_new_session=True,  # Ctrl-C interrupts the tests first
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """Yield the path of a new, empty store. Its broker ends after the block, and its directory is deleted.

        Raises Unavailable if the fork server has ended, or does not answer within 30 seconds.
        """
        store = self._taken()
        try:
            yield store
        finally:
            with suppress(OSError):  # a fork server that was killed has ended its brokers
                self._socket.sendall(f"end {store}\n".encode())

    def close(self) -> None:
        """End all brokers, and delete all stores."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends it also for a fork of this process
        self._socket.close()
        try:
            self._server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()  # the kernel ends its brokers
            self._server.wait()
        shutil.rmtree(self.directory, ignore_errors=True)  # the fork server has done so, unless it was killed

    def _taken(self) -> Path:
        line = b""
        with suppress(OSError):
            self._socket.sendall(b"take\n")
            line = self._socket.recv(_LINE_BYTES_MAX)
        if not line:
            why = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["it printed no error"]
            raise Unavailable(f"the process that forks the brokers of {self.directory} gave no store: {why[0]}")
        return Path(line.decode().rstrip("\n"))
