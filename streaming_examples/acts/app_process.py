"""Spark application in a session of its own, which can be killed as if its machine failed.

A *session* is the operating system's group of processes. All processes that the application starts, such as its JVM and
its Python workers, are in its session. `kill` sends SIGKILL to all of them. When `kill` or `wait` returns, no process
of the session runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_GONE_SECONDS = 15.0


class AppProcess:
    """Process that runs `python -m <module> <arguments>`. Its output goes to the file `log`."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        root = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # Spark passes the address of its JVM to child processes in variables. This child starts a JVM of its own.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**kept, "PYTHONPATH": paths},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Id of the process, and also of its process group and its session."""
        return self._process.pid

    def require_alive(self) -> None:
        """Raise RuntimeError with the last lines of the log if the application has ended."""
        status = self._process.poll()
        if status is not None:
            output = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
            message = f"the application {self.pid} ended with status {status}; the end of {self.log}:\n{output}"
            raise RuntimeError(message)

    def kill(self) -> None:
        """Send SIGKILL to all processes of the application."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        self._sweep()

    def wait(self, seconds: float) -> int:
        """Return the exit status. Raises TimeoutExpired if the process still runs after `seconds`."""
        status = self._process.wait(seconds)
        self._sweep()
        return status

    def _sweep(self) -> None:
        """Kill the remaining processes of the session. Reason: Spark's Python daemon is in another process group."""
        until = time.monotonic() + _GONE_SECONDS
        while members := session_members(self.pid):
            for pid in members:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it ended after the call of session_members
            if time.monotonic() > until:
                message = f"processes {members} of session {self.pid} cannot be killed"
                raise RuntimeError(message)
            time.sleep(0.05)


def session_members(session: int) -> list[int]:
    """Return the live processes of a session, without zombies."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The file has: pid (name) state ppid pgrp session … The name may contain any character, also a parenthesis.
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            members.append(int(entry.name))
    return members
