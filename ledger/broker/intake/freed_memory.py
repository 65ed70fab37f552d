"""Return of freed memory to the system after a burst.

The C library and Arrow keep freed memory for later allocations. After a burst of large requests this can be hundreds of
megabytes, which a broker may not need again for days.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from pyspark_ledger.ledger.clock import Clock

_GROWTH = 64 * 1024 * 1024  # less than this is not worth the work
_PAUSE_MS = 10_000


class FreedMemory:
    """Decision when freed memory is returned: every ten seconds, while the process has much more than its least.

    A return takes milliseconds, also if it finds nothing. `used` returns the process's own memory in bytes.
    """

    def __init__(self, used: Callable[[], int], give_back: Callable[[], None], monotonic_ms: Clock) -> None:
        self._used = used
        self._give_back = give_back
        self._clock = monotonic_ms
        self._least = used()
        self._due_ms = 0

    def check(self) -> bool:
        """Return freed memory if it is due. Return whether it was. Called about twice a second."""
        used, now = self._used(), self._clock()
        self._least = min(self._least, used)
        if used - self._least <= _GROWTH or now < self._due_ms:
            return False
        self._give_back()
        self._due_ms = now + _PAUSE_MS
        return True


def own_memory() -> int:
    """Return the bytes of memory that only this process uses: without mapped files and shared memory."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Return freed memory of Arrow and of the C library to the system."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)
