"""Processes of this machine, as /proc shows them. Tests walk /proc only with these functions.

A process may end between any two reads. The kernel then raises ENOENT or ESRCH.
For a process that has ended, each function returns the empty value.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
_BROKER, _SUPERVISOR = b"pyspark_ledger.offload.broker", b"pyspark_ledger.ledger.broker.supervisor"


def process_ids() -> list[int]:
    """Return the ids of all processes in ascending order."""
    return sorted(int(name) for name in os.listdir(PROC) if name.isdecimal())  # noqa: PTH208 — names only


def process_file(pid: int, name: str) -> bytes:
    """Return the content of a file of a process's folder, empty if the process has ended or is another user's."""
    try:
        # Each store of a test walks over all processes three times, and a Path costs three times the reading.
        with open(f"{PROC}/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def command_words(pid: int) -> list[bytes]:
    return process_file(pid, "cmdline").split(b"\0")


def process_status(pid: int) -> list[str]:
    """Return state, parent, group and session of a process, nothing if it has ended. The state of a zombie is "Z"."""
    return _status(process_file(pid, "stat"))


def thread_states(pid: int) -> list[str]:
    """Return the states of a process's threads, nothing if it has ended. The state of a stopped thread is "T"."""
    try:
        threads = os.listdir(PROC / str(pid) / "task")  # noqa: PTH208 — names only
    except OSError:
        return []
    found = (process_file(pid, f"task/{thread}/stat") for thread in threads)
    return [_status(stat)[0] for stat in found if stat]


def parent_of(pid: int) -> int:
    """Return the id of a process's parent, 0 if the process has ended."""
    return int((process_status(pid) or ["", "0"])[1])


def is_running(pid: int) -> bool:
    """Return whether a process runs. A killed process whose parent has not waited for it does not run."""
    return (process_status(pid) or ["X"])[0] not in "ZX"


def is_supervisor(pid: int) -> bool:
    """Return whether a process is a supervisor, which restarts a killed broker."""
    return _SUPERVISOR in command_words(pid)


def serving(store: Path) -> list[int]:
    """Return the ids of a store's supervisors, then of its brokers. A killed supervisor starts no broker."""
    found, wanted = [], {str(store).encode(), _BROKER}
    for pid in process_ids():
        words = command_words(pid)
        if wanted <= set(words):
            found.append((_SUPERVISOR not in words, pid))
    return [pid for _, pid in sorted(found)]


def descendants(pid: int) -> list[int]:
    """Return the ids of a process and of its descendants."""
    found, parents = [pid], {child: parent_of(child) for child in process_ids()}
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found


def _status(stat: bytes) -> list[str]:
    # The name of the program precedes these fields, in brackets. The name may have brackets, too.
    return stat.decode(errors="replace").rpartition(")")[2].split()[:4]
