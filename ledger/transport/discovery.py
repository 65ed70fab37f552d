"""Discovery of a store's broker: a record in the store directory, and the socket of a private broker.

A *private broker* is a broker that the first client of a local store starts. Its clients are processes of the same
user that can open the store directory. They connect to its Unix socket. The *epoch* of a store is a number that each
new broker raises.

    <store>/broker.json                       {"address", "pid", "epoch", "store_id", "remote", "crc32c", "guarded"}
    <store>/broker.token                      token for the loopback port of a host that forbids Unix sockets
    <run directory>/<16 hex digits>.sock      the socket; its name is from the store's live place
                                              (`ledger.ownership.live_name`), so every restart has it, and no copy
    <run directory>/<16 hex digits>.token     the token of the running broker, which keeps the file locked

Rules
- A broker writes a new record to a scratch file and renames it. A reader sees either the old or the new record.
- A record can be out of date, or copied with its store. A client therefore accepts a broker only if the broker has the
  store's id, and serves the client's directory.
- A record with a wrong checksum is ignored. A record of an older broker has no checksum.
- On a host that forbids Unix sockets, the broker listens at a loopback port and requires a token. Only the user of the
  broker can read the token file.
- After a crash, the next broker uses the same port and token, because running tasks know them.
- After an orderly end, the next broker has another token. Reason: a process of another user can take the free port.
  That process then receives the old token from a client that connects to this port again.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from pathlib import Path

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.ownership import run_directory

_YOUNG_MS = 60_000
_TOKEN_CHARACTERS = 64


class BrokerRecord(msgspec.Struct, frozen=True):
    """Record that a broker writes when it answers calls. `remote` is its address that requires credentials, or empty.

    `guarded` is true if `address` is a loopback port that requires the token in `broker.token`. It is unset for a Unix
    socket.
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


def loopback_token(store: Path, *, keep: bool) -> Path:
    """Return the path of the file with the token of a store's loopback port.

    Writes a new token to the file, unless `keep` is set and the file has a token.
    """
    path = token_path(store)
    if not (keep and path.exists() and path.stat().st_size == _TOKEN_CHARACTERS):
        scratch = path.with_suffix(f".token.{os.getpid()}")
        scratch.unlink(missing_ok=True)
        fd = disk.create_file(scratch)
        try:
            disk.write_all(fd, [secrets.token_hex(_TOKEN_CHARACTERS // 2).encode()], 0, scratch)
        finally:
            os.close(fd)
        scratch.rename(path)
    return path


def token_path(store: Path) -> Path:
    """Return the path of the file with the token of a loopback port."""
    return store / "broker.token"


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
