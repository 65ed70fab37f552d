"""Goal: a full disk is reported, loses no acknowledged entry, and writes continue when space is free.

Method: a broker on a small file system that the test fills and frees.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.protocol.actions import CreateLedger

pytestmark = pytest.mark.fault


@pytest.fixture
def store_path(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "small"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(point)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield point / "store"
    subprocess.run(["umount", "--lazy", str(point)], check=True)


def test_a_full_disk_is_said_and_the_log_goes_on_when_there_is_room(
    victim: Any, make_entry: Callable[..., bytes], read_log: Callable[[Client, str], list[bytes]]
) -> None:
    client = victim.client()
    client.ask(CreateLedger("log", block_bytes=64 * 1024, max_entries_per_ledger=50))
    ballast = victim.store.parent / "ballast"
    ballast.write_bytes(bytes(12 * 1024 * 1024))
    acknowledged: list[bytes] = []
    unknown: set[bytes] = set()
    errors: list[BaseException] = []
    payloads = (b"%d/" % number + b"x" * 20_000 for number in itertools.count())
    while len(errors) < 8:
        producer = client.producer("log")
        while not errors or producer._error is None:
            payload = next(payloads)
            try:
                producer.append(make_entry(payload)).result(30)
            except LedgerError as error:
                unknown.add(payload)
                errors.append(error)
                break
            acknowledged.append(payload)
    assert {type(error) for error in errors} == {Unavailable}
    assert any("No space left" in str(error) or "full" in str(error) for error in errors), errors
    assert [payload for payload in read_log(client, "log") if payload not in unknown] == acknowledged
    ballast.unlink()
    with client.producer("log") as producer:
        sent = [next(payloads) for _ in range(60)]
        for future in [producer.append(make_entry(payload)) for payload in sent]:
            future.result(30)
    acknowledged += sent
    victim.kill_broker()
    client.hello()
    assert [payload for payload in read_log(client, "log") if payload not in unknown] == acknowledged
