"""Goal: a store on a disk that takes no writes is refused by name and left as it is. Method: a file system remounted
read-only under a closed store and under one that a killed broker left."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.entry import encode_entry
from ledger.errors import LedgerError
from ledger.proto.pulsar_messages_pb2 import MessageMetadata
from ledger.protocol import CreateLedger
from ledger.settings import Settings
from ledger.store import Store

pytestmark = pytest.mark.fault


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "disk"
    point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(point)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield point
    subprocess.run(["umount", "--lazy", str(point)], check=True)


def opened(path: Path) -> Store:
    return Store.open(path, settings=Settings(), clock=lambda: 1, create=True)


def test_a_read_only_disk_is_refused_and_nothing_is_lost(mount: Path) -> None:
    entry = b"".join(
        bytes(part) for part in encode_entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"x")
    )
    store = opened(mount / "store")
    store.create_ledger(CreateLedger("log")).append([entry]).result(60)
    store.close()
    before = {path: path.read_bytes() for path in (mount / "store").rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    with pytest.raises((LedgerError, OSError), match="Read-only file system") as caught:
        opened(mount / "store")
    assert str(mount / "store") in str(caught.value)
    with pytest.raises((LedgerError, OSError), match="Read-only file system"):
        opened(mount / "another")
    assert {path: path.read_bytes() for path in (mount / "store").rglob("*") if path.is_file()} == before
    subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
    store = opened(mount / "store")
    assert store.ledger("log").snapshot.end.entry_id == 1
    store.close()
