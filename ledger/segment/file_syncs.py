"""Syncs of many files at the same time, without a thread for each file.

    io_submit      submits a request for each file             a kernel thread syncs each file, like `fdatasync`
    event          file descriptor that the kernel signals     whenever a request ends
    io_getevents   returns the ended requests                  each request has its own result

These calls are Linux's asynchronous I/O (`io_setup(2)`). Containers allow these calls by default, but not Linux's newer
calls (`io_uring`). Threads sync the files that the kernel does not accept. On a system without these calls, threads
sync all files.

Invariants
- Every file has its own result. A request without a result counts as failed.
- No file is synced again after an error. The device may have dropped data, and reports the loss only once.
- Only one thread at a time uses a `FileSyncs`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pyspark_ledger.ledger import disk

FILES_MAX = 128
"""Limit of the files that are synced at the same time."""
_THREADS = 8  # more threads than processors, because the threads mostly wait for the device


class _Calls(NamedTuple):
    setup: int
    destroy: int
    submit: int
    getevents: int


_CALLS = {"x86_64": _Calls(206, 207, 209, 208), "aarch64": _Calls(0, 1, 2, 4)}
_FDSYNC = 3
_SIGNAL_EVENT = 1
# struct iocb, a request: data, key, rw_flags, opcode, priority, file, buffer, bytes, offset, reserved, flags, event
_IOCB = struct.Struct("<QIIHhIQQqQII")
# struct io_event (a result): data, iocb, result, second result
_EVENT = struct.Struct("<QQqq")
_SYSCALL = ctypes.CDLL(None, use_errno=True).syscall
_SYSCALL.restype = ctypes.c_long
_UNKNOWN = "the kernel did not return the result of the sync of this file"

Ended = list[tuple[int, OSError | None]]
"""Numbers of the files whose sync has ended, with the error of the device."""


class FileSyncs:
    """Syncs of at most `FILES_MAX` files. Whenever a sync ends, the descriptor `event` (`os.eventfd`) is signalled."""

    def __init__(self, event: int) -> None:
        self._event = event
        self._calls = _CALLS.get(platform.machine())
        self._context = ctypes.c_ulong(0)
        self._requests = ctypes.create_string_buffer(_IOCB.size * FILES_MAX)
        self._events = ctypes.create_string_buffer(_EVENT.size * FILES_MAX)
        first = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * FILES_MAX)(*range(first, first + _IOCB.size * FILES_MAX, _IOCB.size))
        self._submitted: set[int] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._ended: deque[tuple[int, OSError | None]] = deque()  # syncs that threads have ended
        if self._calls and _call(self._calls.setup, FILES_MAX, ctypes.addressof(self._context)) < 0:
            self._calls = None

    @property
    def by_kernel(self) -> bool:
        """Whether the kernel syncs the files."""
        return self._calls is not None

    def begin(self, files: Mapping[int, int]) -> None:
        """Start the syncs of files: `files` maps a number to a descriptor. No running sync has one of these numbers."""
        numbers = list(files)
        for number in numbers[self._submit(files) :]:
            self._sync_by_thread(number, files[number])

    def ended(self) -> Ended:
        """Return the syncs that have ended since the last call. Does not wait."""
        ended: Ended = [self._ended.popleft() for _ in range(len(self._ended))]
        found = self._found()
        if found < 0:
            ended += [(number, OSError(errno.EIO, _UNKNOWN)) for number in self._submitted]
            self._submitted.clear()
            self._release()
        for at in range(found):
            number, _, result, _ = _EVENT.unpack_from(self._events, at * _EVENT.size)
            ended.append((number, OSError(-result, os.strerror(-result)) if result < 0 else None))
            self._submitted.remove(number)
        return ended

    def close(self) -> None:
        """Wait until the running syncs have ended, and drop their results. From then on, threads do the syncs."""
        self._release()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self._submitted.clear()
        self._ended.clear()

    def _release(self) -> None:
        """End the use of the kernel's calls. The kernel first ends all requests. From then on, threads do the syncs."""
        if self._calls is not None:
            _call(self._calls.destroy, self._context.value)
        self._calls = None

    def _submit(self, files: Mapping[int, int]) -> int:
        """Submit requests. Return how many the kernel accepted; it accepts them in order."""
        if self._calls is None:
            return 0
        for at, (number, fd) in enumerate(files.items()):
            fields = (number, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, _SIGNAL_EVENT, self._event)
            _IOCB.pack_into(self._requests, at * _IOCB.size, *fields)
        done = 0
        while done < len(files):
            pointers = ctypes.addressof(self._pointers) + done * ctypes.sizeof(ctypes.c_void_p)
            taken = _call(self._calls.submit, self._context.value, len(files) - done, pointers)
            if taken <= 0 and ctypes.get_errno() != errno.EINTR:
                break
            done += max(taken, 0)
        self._submitted.update(list(files)[:done])
        return done

    def _found(self) -> int:
        """Read the ended requests into `_events`. Return their number, or -1 if the kernel fails."""
        if self._calls is None or not self._submitted:
            return 0
        while True:
            found = _call(self._calls.getevents, self._context.value, 0, FILES_MAX, ctypes.addressof(self._events), 0)
            if found >= 0 or ctypes.get_errno() != errno.EINTR:
                return found

    def _sync_by_thread(self, number: int, fd: int) -> None:
        def sync() -> None:
            error: OSError | None = OSError(errno.EIO, _UNKNOWN)
            try:
                error = disk.sync_result(fd)
            finally:
                self._ended.append((number, error))
                os.eventfd_write(self._event, 1)

        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "sync-file")
        self._threads.submit(sync)


def _call(number: int, *arguments: int) -> int:
    ctypes.set_errno(0)
    return int(_SYSCALL(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments)))
