"""Fork server of brokers: each fresh store of a test run gets a broker in milliseconds, not in half a second.

    python -m pyspark_ledger.offload.broker_forks DIRECTORY PARENT

    line on standard input      line on standard output
    take                        DIRECTORY/7, a new store, whose broker runs or is about to answer
    end DIRECTORY/7             none; the broker ends, then the directory is deleted

`pyspark_ledger.offload.fresh_stores` starts this program, whose imports are those of a broker. To *fork* is to copy a
process.

Rules
- A broker is a fork of this process, which has one thread and has made no connection. So the fork is safe.
- One broker ahead has started before its store is taken. So a test does not wait for it.
- A broker has the supervisor's lock of its store. So a client waits for this broker, and starts no other. If the broker
  is killed or stopped, the lock is free, and the next call of a client starts a broker in the ordinary way.
- This process ends with its standard input, with SIGTERM, and with the process PARENT. It then ends its brokers and
  deletes DIRECTORY. A broker that a client has started ends itself when it finds its store deleted.
- If this process is killed, the kernel sends SIGTERM to its brokers.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import select
import shutil
import signal
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NoReturn

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.broker import main as broker
from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.offload.broker import main

_INPUT = 0
_LINES_BYTES_MAX = 1 << 16
_STEP_MS = 50
_END_MS = 5_000  # a broker waits up to two seconds for the streams of its clients
_PR_SET_PDEATHSIG = 1


class BrokerForks:
    """Brokers of the stores in one directory. The broker ahead serves a store that nobody has taken yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()
        self._pids: dict[Path, int] = {}
        self._ending: dict[Path, int] = {}
        self._ahead = self._forked()

    def serve(self, parent: int) -> None:
        """Answer the lines on standard input until it ends, or until the process `parent` ends."""
        poll = select.poll()
        poll.register(_INPUT, select.POLLIN)
        with suppress(ProcessLookupError):
            poll.register(os.pidfd_open(parent), select.POLLIN)
        while True:
            ready = dict(poll.poll(_STEP_MS if self._ending else None))
            lines = os.read(_INPUT, _LINES_BYTES_MAX).decode() if _INPUT in ready else ""
            if ready and not lines:
                return
            for line in lines.splitlines():
                self._obey(*line.split(" ", 1))
            self._delete_ended()

    def close(self) -> None:
        """End all brokers, and delete the directory."""
        for store in list(self._pids):
            self._end(store)
        until = monotonic_ms() + _END_MS
        while self._ending and monotonic_ms() < until:
            select.select([], [], [], _STEP_MS / 1000)
            self._delete_ended()
        for pid in self._ending.values():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _obey(self, word: str, store: str = "") -> None:
        if word == "end":
            self._end(Path(store))
            return
        sys.stdout.write(f"{self._ahead}\n")
        sys.stdout.flush()
        self._ahead = self._forked()

    def _forked(self) -> Path:
        store = self._directory / str(next(self._numbers))
        disk.make_directory(store)
        lock = os.open(store / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, disk.FILE_MODE)
        fcntl.flock(lock, fcntl.LOCK_EX)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_broker(store, parent)
        os.close(lock)
        self._pids[store] = pid
        return store

    def _end(self, store: Path) -> None:
        pid = self._pids.pop(store)
        os.kill(pid, signal.SIGTERM)  # a zombie if it has ended already, so the pid is not reused
        self._ending[store] = pid

    def _delete_ended(self) -> None:
        for store, pid in list(self._ending.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._ending[store]
                # A broker that a client has started finds its store gone at once, even while files are deleted.
                with suppress(FileNotFoundError):  # the test has deleted its store
                    ended = store.rename(store.with_name(f"{store.name}-ended"))
                    shutil.rmtree(ended, ignore_errors=True)


def _become_broker(store: Path, parent: int) -> NoReturn:
    """Run the broker of a store in this fork, and end the process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = os.open(store / "broker.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, disk.FILE_MODE)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, _INPUT), (log, 1), (log, 2)):
        os.dup2(source, number)
    broker.run(lambda: main(["--store", str(store), "--create", "--idle", "0"]))


def run(directory: Path, parent: int) -> None:
    """Serve the stores of a directory until the end of standard input, of `parent` or of this process by SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    gc.freeze()  # otherwise a collection in a fork would copy the memory that it shares with this process
    forks = BrokerForks(directory)
    try:
        forks.serve(parent)
    finally:
        forks.close()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
