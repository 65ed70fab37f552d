"""Processor time of several processes with all that they started, read from `/proc`.

What a child took is counted with its parent once it is reaped, so that the sum of a family only grows. A process that
leaves its family (a broker begins a session of its own) is named beside it.
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
    """Seconds of user and system time of these processes and their descendants, those that ended included."""
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
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
        ticks = sum(int(field) for field in fields[_UTIME : _CSTIME + 1])
        found[int(folder.name)] = _Process(int(fields[_PARENT]), ticks)
    return found
