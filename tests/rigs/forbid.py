"""Run a command that may not use some system calls, as in the containers of some platforms.

    python forbid.py memfd COMMAND…          memfd_create fails with EPERM
    python forbid.py packets COMMAND…        sockets of the type SEQPACKET fail with EPERM
    python forbid.py unix COMMAND…           sockets of the family AF_UNIX fail with EPERM
    python forbid.py shared-memory COMMAND…  the command has a read-only /dev/shm

The first three use a seccomp filter (x86-64), which child processes inherit. The last needs `unshare` and root.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import subprocess
import sys

_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06  # BPF: load a word, jump if equal, and, return
_ALLOW, _EPERM = 0x7FFF0000, 0x00050000 | 1
_NUMBER_AT, _FIRST_ARGUMENT_AT, _SECOND_ARGUMENT_AT = 0, 16, 24
_MEMFD_CREATE, _SOCKET, _AF_UNIX, _SEQPACKET, _TYPE_MASK = 319, 41, 1, 5, 0xF
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


FILTERS = {
    "memfd": [
        _step(_LOAD, _NUMBER_AT), _step(_EQUAL, _MEMFD_CREATE, 0, 1), _step(_RETURN, _EPERM), _step(_RETURN, _ALLOW),
    ],
    "packets": [
        _step(_LOAD, _NUMBER_AT), _step(_EQUAL, _SOCKET, 0, 4), _step(_LOAD, _SECOND_ARGUMENT_AT),
        _step(_AND, _TYPE_MASK), _step(_EQUAL, _SEQPACKET, 0, 1), _step(_RETURN, _EPERM), _step(_RETURN, _ALLOW),
    ],
    "unix": [
        _step(_LOAD, _NUMBER_AT), _step(_EQUAL, _SOCKET, 0, 3), _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_EQUAL, _AF_UNIX, 0, 1), _step(_RETURN, _EPERM), _step(_RETURN, _ALLOW),
    ],
}  # fmt: skip


def install(steps: list[bytes]) -> None:
    """Install a filter for this process and its children. Raises OSError on another processor than x86-64."""
    if platform.machine() != "x86_64":
        raise OSError(f"the numbers of system calls are those of x86-64, this is {platform.machine()}")
    libc, code = ctypes.CDLL(None, use_errno=True), b"".join(steps)
    program = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program))
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, header, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the kernel refused the filter")


def is_possible(what: str) -> bool:
    """Return whether this host can forbid these system calls to a process."""
    return subprocess.run([sys.executable, __file__, what, "true"], capture_output=True, check=False).returncode == 0


def main(what: str, *command: str) -> None:
    if what == "shared-memory":
        mounted = 'mount -t tmpfs -o ro none /dev/shm && exec "$0" "$@"'
        os.execvp("unshare", ["unshare", "-m", "sh", "-c", mounted, *command])  # noqa: S606
    install(FILTERS[what])
    os.execvp(command[0], list(command))  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
