"""Keeps an embedded broker alive: starts it as a child and starts it again when it dies without having meant to.

    python -m ledger.broker.supervisor BROKER ARGUMENTS …

Rules
- Standard library only, so that it costs a few megabytes.
- A child that ends with status 0 has left (idle, or asked to) and so does the supervisor. One that cannot start
  (status 2) is not started again. Otherwise it comes back at once; after several quick deaths in a row later and later,
  up to five seconds.
- SIGTERM ends both, whatever the supervisor is doing at that moment.
- The store is created by the first broker only: one that somebody has deleted since then does not come back empty.
- Standard error is a log that nobody empties: it is begun anew, before a start, when it has grown too large.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time

_CANNOT_START = 2
_QUICK_SECONDS = 5.0
_DELAY_SECONDS_MAX = 5.0
_STEP_SECONDS = 0.05
_LOG_BYTES_MAX = 16 * 1024 * 1024


class Supervisor:
    """Runs one command until it leaves or SIGTERM comes."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._leaving = False
        self._quick_deaths = 0

    def run(self) -> int:
        """Returns the status to exit with."""
        signal.signal(signal.SIGTERM, lambda *_: self._leave())
        while not self._leaving:
            started = time.monotonic()
            status = self._run_once()
            if status in (0, _CANNOT_START, -signal.SIGTERM):
                return max(status, 0)
            if time.monotonic() - started >= _QUICK_SECONDS:
                self._quick_deaths = 0
                self._command = [word for word in self._command if word != "--create"]
            delay = min(0.1 * (2**self._quick_deaths - 1), _DELAY_SECONDS_MAX)
            self._quick_deaths = min(self._quick_deaths + 1, 10)
            _bound_log(sys.stderr.fileno())
            said = f"the broker ended with status {status}; starting it again in {delay:.1f} s"
            print(said, file=sys.stderr, flush=True)
            self._wait(delay)
        return 0

    def _run_once(self) -> int:
        self._child = subprocess.Popen(self._command)  # noqa: S603 — the command is our own broker
        if self._leaving:
            self._child.terminate()  # the signal came before there was a child to tell
        return self._child.wait()

    def _leave(self) -> None:
        self._leaving = True
        if self._child is not None:
            self._child.terminate()

    def _wait(self, seconds: float) -> None:
        """In steps: a signal does not cut a sleep short."""
        until = time.monotonic() + seconds
        while not self._leaving and time.monotonic() < until:
            time.sleep(_STEP_SECONDS)  # noqa: TID251 — nothing to wait on but time


def _bound_log(fd: int) -> None:
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_size > _LOG_BYTES_MAX:
        os.ftruncate(fd, 0)


if __name__ == "__main__":
    sys.exit(Supervisor([sys.executable, *sys.argv[1:]]).run())
