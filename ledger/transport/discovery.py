"""Discovery of a store's broker: a record in the store directory, and the fixed socket path of a private broker.

    <store>/broker.json                       {"address", "pid", "epoch", "store_id", "remote", "crc32c", "guarded"}
    <store>/broker.token                      of a host without Unix sockets: the token of clients of the directory
    <run directory>/<16 hex digits>.sock      by store id, so the address outlives any one broker process
    <run directory>/<16 hex digits>.token     locked while its broker runs

Rules
- The record is replaced whole.
- A record is only a hint. A client accepts a broker only if it answers with the store's id.
- A record with a wrong checksum is ignored. A record of an older broker has no checksum.
- A host that forbids Unix sockets gets a loopback port and a token. Both outlive a killed broker, because tasks know
  them. The store directory protects the file.
- After an orderly end the next broker has another token. Reason: a process of another user may take the free port, and
  receive the old token from a client that stays connected.
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
    """Record that a broker writes once it answers calls. `remote` is its address with credentials, if it has one.

    `guarded` says that `address` requires the token of `broker.token`; unset for a Unix socket.
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
    """Return the file with the token of a store's loopback port. Unless `keep` is set, the token is replaced."""
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
    """Return the path of the token file."""
    return store / "broker.token"


def sweep_run_directory(clock: Clock) -> None:
    """Remove sockets and tokens of brokers that were killed. The lock of their token files is free.

    Files younger than a minute are kept: their broker may be about to lock them.
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


def socket_path(store_id: str) -> Path:
    """Return the socket path of a store's private broker. It is short: the kernel allows about 100 bytes."""
    return run_directory() / f"{store_id.replace('-', '')[:16]}.sock"
