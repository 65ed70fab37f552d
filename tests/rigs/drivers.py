"""Processes of drivers, each with a cache and a working directory of its own, as on hosts of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def start(words: list[str], cache: Path, log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start Python with `words` in the directory of its log."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=log.parent,
            env={**os.environ, "LEDGER_CACHE": str(cache), **environment},
            start_new_session=True,
            stdout=output,
            stderr=output,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver with its JVM and its workers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-3000:]
