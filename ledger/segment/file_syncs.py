"""Sync of many files with two system calls, without a thread for each file.

    io_submit     submits one FDSYNC request for each file     a kernel thread performs each, like `fdatasync`
    io_getevents  waits until all requests have ended          each request has its own result

This is Linux's asynchronous I/O (`io_setup(2)`). Containers allow it by default, unlike `io_uring`. On a system without
it, the kernel starts to write all files, and then the files are synced one after another.

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
from collections.abc import Sequence
from typing import NamedTuple

from pyspark_ledger.ledger import disk

FILES_MAX = 64


class _Calls(NamedTuple):
    setup: int
    destroy: int
    submit: int
    getevents: int


_CALLS = {"x86_64": _Calls(206, 207, 209, 208), "aarch64": _Calls(0, 1, 2, 4)}
_FDSYNC = 3
# struct iocb: data, key, rw_flags, opcode, priority, file, buffer, bytes, offset, reserved, flags, event file
_IOCB = struct.Struct("<QIIHhIQQqQII")
# struct io_event: data, iocb, result, second result
_EVENT = struct.Struct("<QQqq")
_SYSCALL = ctypes.CDLL(None, use_errno=True).syscall
_SYSCALL.restype = ctypes.c_long
_UNKNOWN = "the kernel did not return the result of the sync of this file"


class FileSyncs:
    """Sync of any number of files, up to `FILES_MAX` at a time."""

    def __init__(self) -> None:
        self._calls = _CALLS.get(platform.machine())
        self._set_up = False  # true once the kernel's context was requested, at the first use
        self._context = ctypes.c_ulong(0)
        self._requests = ctypes.create_string_buffer(_IOCB.size * FILES_MAX)
        self._events = ctypes.create_string_buffer(_EVENT.size * FILES_MAX)
        first = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * FILES_MAX)(*range(first, first + _IOCB.size * FILES_MAX, _IOCB.size))

    @property
    def together(self) -> bool:
        """Whether the kernel syncs several files at the same time."""
        return self._kernel() is not None

    def sync(self, files: Sequence[int]) -> list[OSError | None]:
        """Sync the files. Return None or the error of the device for each file."""
        answers: list[OSError | None] = []
        for at in range(0, len(files), FILES_MAX):
            answers += self._sync(files[at : at + FILES_MAX])
        return answers

    def _sync(self, files: Sequence[int]) -> list[OSError | None]:
        calls = self._kernel() if len(files) > 1 else None
        if calls is None:
            return _one_by_one(files)
        for number, fd in enumerate(files):
            _IOCB.pack_into(self._requests, number * _IOCB.size, number, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, 0, 0)
        submitted = self._submit(calls.submit, len(files))
        answers: list[OSError | None] = [OSError(errno.EIO, _UNKNOWN) for _ in range(submitted)]
        results = self._results(calls.getevents, submitted)
        if len(results) < submitted:
            self.close()  # otherwise a late result would count for a file of the next call
        for number, result in results:
            if result == -errno.EINVAL:  # this file system does not support FDSYNC
                answers[number] = _one_by_one([files[number]])[0]
            else:
                answers[number] = OSError(-result, os.strerror(-result)) if result < 0 else None
        return answers + _one_by_one(files[submitted:])

    def close(self) -> None:
        """Release the kernel's context."""
        if self._calls is not None and self._set_up:
            _call(self._calls.destroy, self._context.value)
        self._calls = None

    def _kernel(self) -> _Calls | None:
        """Return the numbers of the system calls, or None if this system does not have them."""
        if self._calls is not None and not self._set_up:
            self._set_up = True
            if _call(self._calls.setup, FILES_MAX, ctypes.addressof(self._context)) < 0:
                self._calls = None
        return self._calls

    def _submit(self, call: int, count: int) -> int:
        """Submit the first `count` requests. Return how many the kernel accepted; it accepts them in order."""
        done = 0
        while done < count:
            taken = _call(call, self._context.value, count - done, ctypes.addressof(self._pointers) + done * 8)
            if taken <= 0 and ctypes.get_errno() != errno.EINTR:
                break
            done += max(taken, 0)
        return done

    def _results(self, call: int, count: int) -> list[tuple[int, int]]:
        """Wait for `count` requests. Return the number and the result of each; fewer only if the kernel fails."""
        results: list[tuple[int, int]] = []
        while len(results) < count:
            left = count - len(results)
            ended = _call(call, self._context.value, left, left, ctypes.addressof(self._events), 0)
            if ended < 0 and ctypes.get_errno() != errno.EINTR:
                break
            for at in range(max(ended, 0)):
                number, _, result, _ = _EVENT.unpack_from(self._events, at * _EVENT.size)
                results.append((number, result))
        return results


def _one_by_one(files: Sequence[int]) -> list[OSError | None]:
    if len(files) > 1:
        for fd in files:
            disk.begin_sync(fd)
    answers: list[OSError | None] = []
    for fd in files:
        try:
            disk.sync_data(fd)
        except OSError as error:
            answers.append(error)
        else:
            answers.append(None)
    return answers


def _call(number: int, *arguments: int) -> int:
    ctypes.set_errno(0)
    return int(_SYSCALL(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments)))
