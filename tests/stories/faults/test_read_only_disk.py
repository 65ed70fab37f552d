"""Goal: a store on a read-only disk is refused by name and not changed. Method: a file system is remounted read-only
under a closed store, and under the store of a killed broker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from tests.rigs.entry import entry
from tests.rigs.store import open_store

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


def test_a_read_only_disk_is_refused_and_nothing_is_lost(mount: Path) -> None:
    store = open_store(mount / "store")
    store.create_ledger(CreateLedger("log")).append([entry(b"x")]).result(60)
    store.close()
    before = {path: path.read_bytes() for path in (mount / "store").rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    with pytest.raises((LedgerError, OSError), match="Read-only file system") as caught:
        open_store(mount / "store")
    assert str(mount / "store") in str(caught.value)
    with pytest.raises((LedgerError, OSError), match="Read-only file system"):
        open_store(mount / "another")
    assert {path: path.read_bytes() for path in (mount / "store").rglob("*") if path.is_file()} == before
    subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
    store = open_store(mount / "store")
    assert store.ledger("log").snapshot.end.entry_id == 1
    store.close()
