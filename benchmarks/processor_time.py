"""Processor time of processes and their descendants, read from `/proc`.

When a child process ends, its time is added to the time of its parent. So the sum over a process tree never shrinks.
The caller must also name each process outside of the tree, such as a broker with a session of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name in brackets: state, ppid, …, utime, stime, cutime, cstime.
_PARENT, _UTIME, _CSTIME = 1, 11, 14


@dataclass(frozen=True)
class _Process:
    parent: int
    ticks: int


def processor_seconds(*roots: int) -> float:
    """Return the seconds of user and system time of these processes and their running and reaped descendants."""
    processes = _processes()
    family, found = set(roots), len(roots) - 1
    while found < len(family):
        found = len(family)
        family |= {pid for pid, process in processes.items() if process.parent in family}
    return sum(processes[pid].ticks for pid in family if pid in processes) / _TICK


def _processes() -> dict[int, _Process]:
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # the process ended meanwhile
            continue
        ticks = sum(int(field) for field in fields[_UTIME : _CSTIME + 1])
        found[int(folder.name)] = _Process(int(fields[_PARENT]), ticks)
    return found
