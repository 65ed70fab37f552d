"""Probes of the driver's host: each tries one system call that the broker or its clients need.

Rules
- Each probe makes the real call and ends within `SECONDS`. It raises no error: a failure becomes its diagnosis.
- A probe leaves nothing behind: it ends its processes, deletes its files and closes its sockets.
- The diagnosis of a failure says what the package does instead, or what to do.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark_ledger.connector.doctor.deadline import error_text, within
from pyspark_ledger.connector.doctor.diagnosis import Diagnosis, State
from pyspark_ledger.ledger.clock import new_id, pause

SECONDS = 2.0
_LOOK_AGAIN_MS = 300
_CHILD_SECONDS = 20
# Program of the child process. It exits after `_CHILD_SECONDS`, even if the probe cannot end it.
_CHILD = f"import os, time; print(os.getsid(0) == os.getpid(), flush=True); time.sleep({_CHILD_SECONDS})"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # the probe creates a file without a name there
_SHARED_MEMORY_LEAST = 128 * 1024 * 1024
_MIB = 1024 * 1024
_BYTES = b"probe"


@dataclass(frozen=True, slots=True)
class Probe:
    """Call that a check tries. If it fails or hangs, the diagnosis has the state `failed` and the advice `do`."""

    check: str
    attempt: Callable[[], Diagnosis]
    failed: State
    do: str

    def diagnose(self, seconds: float = SECONDS) -> Diagnosis:
        """Make the call, and return the diagnosis. Raises nothing."""
        try:
            return within(seconds, self.attempt)
        except Exception as error:  # noqa: BLE001  # a platform may refuse in any way
            return Diagnosis(self.check, self.failed, error_text(error), self.do)


def probe_process(command: Sequence[str] = ()) -> Diagnosis:
    """Test whether a detached child process starts, and still runs after the function that started it has returned."""
    check = "background process"
    do = "No broker can run here: run `ledger serve` on another host, and name its address as the store"
    given = tuple(command) or (sys.executable or "python3", "-I", "-S", "-c", _CHILD)
    return Probe(check, lambda: _watched(check, given, do), "problem", do).diagnose()


def _watched(check: str, command: Sequence[str], do: str) -> Diagnosis:
    child = _started(command)
    try:
        answer = _first_line(child)
        pause(_LOOK_AGAIN_MS)
        status = child.poll()
        if status is not None:
            return Diagnosis(check, "problem", f"a detached process was started and ended with status {status}", do)
        if answer != "True":
            return Diagnosis(check, "warning", "a detached process runs, without a session of its own", do)
        return Diagnosis(check, "ok", "a detached process starts, and outlives the function that started it")
    finally:
        _ended(child)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  # our own program
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _first_line(child: subprocess.Popen[bytes]) -> str:
    """Return the first line that a child process prints. Empty if it prints none within 70 % of a probe's time."""
    if child.stdout is None or not select.select([child.stdout], [], [], SECONDS * 0.7)[0]:
        return ""
    return os.read(child.stdout.fileno(), 64).decode(errors="replace").strip()


def _ended(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


def probe_unix_socket(check: str, directory: Path, failed: State, do: str) -> Diagnosis:
    """Test whether a Unix socket in a directory can be bound and reached."""

    def attempt() -> Diagnosis:
        path = directory / f"probe-{new_id()[:8]}.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(str(path))
                _exchange(listener, str(path))
            finally:
                path.unlink(missing_ok=True)
        return Diagnosis(
            check,
            "ok",
            f"{directory} can have a socket, here with a path of {len(os.fsencode(path))} bytes, and it answers",
        )

    return Probe(check, attempt, failed, do).diagnose()


def _exchange(listener: socket.socket, address: str) -> None:
    with _connected(listener, address) as (client, server):
        client.sendall(_BYTES)
        server.sendall(server.recv(len(_BYTES)))
        if client.recv(len(_BYTES)) != _BYTES:
            raise OSError("the received bytes differ from the sent bytes")


@contextmanager
def _connected(listener: socket.socket, address: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection to a listening socket."""
    listener.settimeout(SECONDS)
    listener.listen(1)
    with socket.socket(listener.family, listener.type) as client:
        client.settimeout(SECONDS)
        client.connect(address)
        server, _ = listener.accept()
        with server:
            server.settimeout(SECONDS)
            yield client, server


def probe_shared_memory(directory: Path = _SHARED_MEMORY) -> Diagnosis:
    """Test whether a file in shared memory can be created and mapped, and how much memory is free."""
    check = str(directory)
    do = "Nothing to do: the broker then keeps cached blocks in its own memory and sends them to readers"

    def attempt() -> Diagnosis:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)
            with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
                mapped[: len(_BYTES)] = _BYTES
                if os.pread(file.fileno(), len(_BYTES), 0) != _BYTES:
                    raise OSError("a mapped file does not contain what was written to the mapping")
        status = os.statvfs(directory)
        free, size = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        found = f"files can be mapped; {free // _MIB} of {size // _MIB} MiB are free"
        return Diagnosis(check, "ok", found) if free >= _SHARED_MEMORY_LEAST else Diagnosis(check, "warning", found, do)

    return Probe(check, attempt, "warning", do).diagnose()


def probe_descriptor() -> Diagnosis:
    """Test whether a file without a name can be passed to another process through a Unix socket, as a producer does."""
    check = "memfd over a socket"
    do = "Nothing to do if the host forbids this: a producer on the broker's host then sends its entries by Flight"

    def attempt() -> Diagnosis:
        name = f"\0ledger-probe-{new_id()}"
        fd = os.memfd_create("ledger-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.pwrite(fd, _BYTES, 0)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(name)
                received = _passed(listener, name, fd)
        finally:
            os.close(fd)
        if received != _BYTES:
            raise OSError("the descriptor that arrived is of another file")
        return Diagnosis(check, "ok", "an anonymous file can be created and its descriptor passed to a process")

    return Probe(check, attempt, "warning", do).diagnose()


def _passed(listener: socket.socket, name: str, fd: int) -> bytes:
    """Send a file's descriptor through a socket. Return the bytes that the receiver reads; empty if none arrive."""
    with _connected(listener, name) as (client, server):
        socket.send_fds(client, [_BYTES], [fd])
        _, descriptors, _, _ = socket.recv_fds(server, len(_BYTES), 1)
        try:
            return os.pread(descriptors[0], len(_BYTES), 0) if descriptors else b""
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
