"""Where a store's broker is: a record beside the store, and the socket that a private broker always uses.

    <store>/broker.json                       {"address", "pid", "epoch", "store_id", "remote"}
    <run directory>/<16 hex digits>.sock      by store id, so the address outlives any one broker process

Rules: the record is replaced whole; a record is a hint, and only a broker that answers with the store's id counts.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ledger import disk
from ledger.host import run_directory


class BrokerRecord(msgspec.Struct, frozen=True):
    """What a broker wrote when it began to answer. `remote`: where it asks for credentials, if it listens there too."""

    address: str
    pid: int
    epoch: int
    store_id: str
    remote: str = ""

    def write(self, store: Path) -> None:
        """Put the record beside the store."""
        scratch = store / f"broker.json.{os.getpid()}"
        scratch.unlink(missing_ok=True)
        fd = disk.create_file(scratch)
        try:
            disk.write_all(fd, [msgspec.json.encode(self)], 0, scratch)
        finally:
            os.close(fd)
        scratch.rename(store / "broker.json")

    @classmethod
    def read(cls, store: Path) -> BrokerRecord | None:
        """The record, or None when there is none that can be read."""
        try:
            return msgspec.json.decode((store / "broker.json").read_bytes(), type=cls)
        except (FileNotFoundError, msgspec.DecodeError):
            return None


def socket_path(store_id: str) -> Path:
    """The socket of a store's private broker; short, because socket paths are limited to about 100 bytes."""
    return run_directory() / f"{store_id.replace('-', '')[:16]}.sock"
