"""Supervisor of a broker that a client starts. It runs the broker as a child process and restarts it after a crash.

    python -m pyspark_ledger.ledger.broker.supervisor BROKER ARGUMENTS …

Rules
- The supervisor imports only the standard library, so that the process needs only a few megabytes.
- If the broker exits with status 0 (idle, or shut down) or with status 2 (it cannot start), the supervisor exits too.
- After any other status the supervisor restarts the broker at once. If the broker ends quickly several times in a row,
  the delay before a restart grows up to five seconds.
- SIGTERM ends both processes at any time.
- The supervisor passes the option `--create` to the broker until a broker has run for five seconds. Reason: a later
  restart must not create a store again that was deleted.
- If the broker ends quickly several times without answering a call, the supervisor exits with status 3. It prints the
  broker's last error, for the program that started the supervisor.
- Standard error is a log file. If the file exceeds 16 MiB, the supervisor moves its content to `.old` before a restart.
  The broker does the same while it runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time

_CANNOT_START = 2
_QUICK_SECONDS = 5.0
_DELAY_SECONDS_MAX = 5.0
_STEP_SECONDS = 0.05
_QUICK_DEATHS_MAX = 5
_GAVE_UP = 3
_LOG_BYTES_MAX = 16 * 1024 * 1024
_TAIL_BYTES = 16 * 1024
_ENDED = "the broker ended with status"


class Supervisor:
    """Runner of one command, until it exits with status 0 or SIGTERM arrives."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._leaving = False
        self._quick_deaths = 0
        self._answered = False

    def run(self) -> int:
        """Run and restart the command. Return the exit status of the supervisor."""
        signal.signal(signal.SIGTERM, lambda *_: self._leave())
        while not self._leaving:
            started = time.monotonic()
            status = self._run_once()
            if status in (0, _CANNOT_START, -signal.SIGTERM):
                return max(status, 0)
            self._answered = self._answered or self._has_answered()
            if time.monotonic() - started >= _QUICK_SECONDS:
                self._answered = True  # a broker that ran for five seconds counts as if it had answered a call
                self._quick_deaths = 0
                self._command = [word for word in self._command if word != "--create"]
            delay = min(0.1 * (2**self._quick_deaths - 1), _DELAY_SECONDS_MAX)
            self._quick_deaths = min(self._quick_deaths + 1, 10)
            if self._quick_deaths >= _QUICK_DEATHS_MAX and not self._answered:
                last = _last_error(sys.stderr.fileno())
                message = f"{_ENDED} {status}, {self._quick_deaths} times, and never answered a call: {last}"
                print(message, file=sys.stderr, flush=True)
                return _GAVE_UP
            bound_log(sys.stderr.fileno())
            print(f"{_ENDED} {status}; it is restarted in {delay:.1f} s", file=sys.stderr, flush=True)
            self._wait(delay)
        return 0

    def _run_once(self) -> int:
        self._child = subprocess.Popen(self._command)  # noqa: S603 — the command is the broker's own
        if self._leaving:
            self._child.terminate()  # SIGTERM arrived before the child existed
        return self._child.wait()

    def _has_answered(self) -> bool:
        """Return whether the record in the store has the child's process id.

        A broker writes its record when it can answer calls.
        """
        if "--store" not in self._command or self._child is None:
            return False
        record = os.path.join(self._command[self._command.index("--store") + 1], "broker.json")  # noqa: PTH118
        try:
            with open(record, "rb") as file:  # noqa: PTH123 — pathlib is as large as the rest of this process
                return f'"pid":{self._child.pid},'.encode() in file.read()
        except OSError:
            return False

    def _leave(self) -> None:
        self._leaving = True
        if self._child is not None:
            self._child.terminate()

    def _wait(self, seconds: float) -> None:
        """Sleep in short steps, because Python continues a long sleep after a signal was handled."""
        until = time.monotonic() + seconds
        while not self._leaving and time.monotonic() < until:
            time.sleep(_STEP_SECONDS)  # noqa: TID251 — there is no event to wait for


def bound_log(fd: int, path: str | None = None) -> None:
    """If the log with the descriptor `fd` is too large, move its content to `<log>.old`.

    With `path`, does nothing if the log is not the file at `path`. The content is copied, and then the log is emptied.
    The log is not replaced by a new file, because several processes have it open.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size <= _LOG_BYTES_MAX:
        return
    name = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 — see `_has_answered`
    if path not in (None, name):
        return
    with open(name, "rb") as full, open(f"{name}.old", "wb", opener=_private) as old:  # noqa: PTH123 — as above
        shutil.copyfileobj(full, old)
    os.ftruncate(fd, 0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _last_error(fd: int) -> str:
    """Return the last line of the broker in a log. Skips the lines of the supervisor."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return "see its log"
    with open(f"/proc/self/fd/{fd}", "rb") as file:  # noqa: PTH123 — see `_has_answered`
        file.seek(max(status.st_size - _TAIL_BYTES, 0))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    broker_lines = [line for line in lines if not line.startswith(_ENDED)]
    return broker_lines[-1] if broker_lines else "the broker printed no error"


if __name__ == "__main__":
    sys.exit(Supervisor([sys.executable, *sys.argv[1:]]).run())
