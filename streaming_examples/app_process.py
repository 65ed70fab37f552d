"""A Spark application in a process group of its own, so that it can be killed the way a machine kills it.

Rules: everything that the application starts (its JVM, its Python workers) is in its session. `kill` is SIGKILL to the
whole of it, with no warning; nothing of it is left when `kill` or `wait` returns.
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
    """Run of `python -m <module> <arguments>`; its output goes to `log`."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        root = str(Path(__file__).resolve().parent.parent)
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # Spark hands its own settings to children by the environment; this one is an application of its own.
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
        """The process, which is also its group and its session."""
        return self._process.pid

    def require_alive(self) -> None:
        """RuntimeError with the end of its log when it has ended."""
        status = self._process.poll()
        if status is not None:
            said = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
            message = f"the application {self.pid} ended with status {status}; the end of {self.log}:\n{said}"
            raise RuntimeError(message)

    def kill(self) -> None:
        """SIGKILL to all of it."""
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
        """Spark puts its Python daemon in a group of its own: it leaves by itself, or is killed too."""
        until = time.monotonic() + _GONE_SECONDS
        while members := session_members(self.pid):
            for pid in members:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it left between the two lines
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
            # pid (name) state ppid pgrp session …; the name may hold anything, also a parenthesis.
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            members.append(int(entry.name))
    return members
