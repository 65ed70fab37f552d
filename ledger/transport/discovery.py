"""Discovery of a store's broker: a record in the store directory, and the socket of a private broker.

A *private broker* is a broker that the first client of a local store starts. Its clients are processes of the same
user that can open the store directory. They connect to its Unix socket. The *epoch* of a store is a number that each
new broker raises.

    <store>/broker.json                       {"address", "pid", "epoch", "store_id", "remote", "crc32c", "guarded"}
    <run directory>/<16 hex digits>.sock      the socket; its name is from the store's live place
                                              (`ledger.ownership.live_name`), so every restart has it, and no copy
    <run directory>/<16 hex digits>.token     the token of the running broker, which keeps the file locked
    <run directory>/<host>-<port>.token       the token of its loopback port, also locked

Rules
- A broker writes a new record to a scratch file and renames it. A reader sees either the old or the new record.
- A record can be out of date, or copied with its store. A client therefore accepts a broker only if the broker has the
  store's id, and serves the client's directory.
- A record with a wrong checksum is ignored. A record of an older broker has no checksum.
- A loopback port requires a token, because every user of the host can connect to it. Only the user of the broker can
  read the token file. The user's clients find the file by the address.
- On a host that forbids Unix sockets, the private broker listens at a loopback port.
- After a crash, the next broker uses the same port and token, because running tasks know them.
- After an orderly end, the next broker has another token. Reason: a process of another user can take the free port.
  That process then receives the old token from a client that connects to this port again.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.ownership import own_token, run_directories, run_directory
from pyspark_ledger.ledger.transport.tokens import is_loopback

_YOUNG_MS = 60_000


class BrokerRecord(msgspec.Struct, frozen=True):
    """Record that a broker writes when it answers calls. `remote` is its address that requires credentials, or empty.

    `guarded` is true if `address` is a loopback port, which requires a token. It is unset for a Unix socket.
    """

    address: str
    pid: int
    epoch: int
    store_id: str
    remote: str = ""
    crc32c: int | None = None
    guarded: bool | msgspec.UnsetType = msgspec.UNSET

    def write(self, store: Path) -> None:
        scratch = store / f"broker.json.{os.getpid()}"
        scratch.unlink(missing_ok=True)
        fd = disk.create_file(scratch)
        try:
            disk.write_all(fd, [msgspec.json.encode(msgspec.structs.replace(self, crc32c=_sum_of(self)))], 0, scratch)
        finally:
            os.close(fd)
        scratch.rename(store / "broker.json")

    @classmethod
    def read(cls, store: Path) -> BrokerRecord | None:
        """Return the record of a store; None if there is no readable record."""
        try:
            record = _RECORD.decode((store / "broker.json").read_bytes())
        except (FileNotFoundError, *JSON_FAULTS):
            return None
        return record if record.crc32c in (None, _sum_of(record)) else None


_RECORD = msgspec.json.Decoder(BrokerRecord)


def _sum_of(record: BrokerRecord) -> int:
    return crc32c(msgspec.json.encode(msgspec.structs.replace(record, crc32c=None)))


def address_token(address: str) -> str:
    """Return the token of this user's broker at a loopback address, while this broker runs. Otherwise empty.

    Only a running broker keeps its token file locked. Reason: a process of another user can take the port of a broker
    that has ended, and must not get the token.
    """
    name = _token_name(address)
    for path in (directory / name for directory in run_directories() if name):
        token = own_token(path)
        if token and _is_held(path):
            return token
    return ""


def address_token_path(address: str) -> Path:
    """Return the path of the token file of a loopback address: `127.0.0.1-7650.token` for `grpc://127.0.0.1:7650`."""
    return run_directory() / _token_name(address)


def _token_name(address: str) -> str:
    """Return the name of the token file of an address. Empty for an address that is no loopback port without TLS."""
    if not address.startswith(("grpc://", "grpc+tcp://")):
        return ""
    parts = urlsplit(address)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
    return f"{host}-{parts.port}.token" if is_loopback(host) else ""


def write_token(path: Path, token: str) -> None:
    """Write a token file. This process keeps the file locked until it ends.

    `sweep_run_directory` deletes the token files that no process has locked.
    """
    scratch = path.with_name(f"{path.name}.{os.getpid()}")  # locked before it gets its name
    scratch.unlink(missing_ok=True)
    fd = disk.create_file(scratch)
    disk.hold(fd)
    disk.write_all(fd, [token.encode()], 0, scratch)
    scratch.rename(path)


def sweep_run_directory(clock: Clock) -> None:
    """Remove the sockets and token files of killed brokers. Such a broker has no lock on its token file any more.

    Files younger than a minute are kept, because a new broker creates its token file before it locks the file.
    """
    for path in sorted(run_directory().iterdir()):
        try:
            if clock() - path.stat().st_mtime_ns // 1_000_000 < _YOUNG_MS:
                continue
            if path.suffix == ".token" and not _is_held(path):
                path.with_suffix(".sock").unlink(missing_ok=True)
                path.unlink()
            elif path.suffix == ".sock" and not path.with_suffix(".token").exists() and not _is_listened_at(path):
                path.unlink()
        except FileNotFoundError:
            continue  # removed by another broker


def _is_held(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _is_listened_at(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def socket_path(name: str) -> Path:
    """Return the socket path of the private broker of the store with this live name.

    The kernel limits the path to about 100 bytes.
    """
    return run_directory() / f"{name}.sock"
