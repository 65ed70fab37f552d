"""Goal: a killed move leaves one store, and the same command goes on. Method: each request is its last; kill -9."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.transport.moved_store import METADATA, MOVED_METADATA, moved_store
from pyspark_ledger.ledger.wal.fence import require_served
from pyspark_ledger.ledger.wal.requests import read_manifest
from streaming_examples.s3_server import S3Server
from tests.offload.move.test_into_bucket import move
from tests.rigs.bucket_store import REQUESTS, BucketRig
from tests.rigs.command import run
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.moving_store import filled, reserved, staged, state
from tests.stories.faults.test_bucket_crashes import Mortal

pytestmark = pytest.mark.fault
STEP = 7
LAST = 4
"""Number of last requests of which each is tried. Two moves differ by at most so many requests."""
KILLS = [
    ("PUT", "segments/", "before", 0),
    ("PUT", "wal/", "after", 0),
    ("PUT", "snapshot/", "after", 0),
    ("GET", "snapshot/", "before", 0),
    ("PUT", "/manifest", "before", 0),
    ("PUT", "/manifest", "after", 0),
    ("PUT", "/manifest", "before", 1),
    ("PUT", "/manifest", "after", 1),
]


def is_served(address: str, options: S3Options | None = None) -> bool:
    """Whether a broker would serve the store in a bucket."""
    bucket = open_object_store(address, options or S3Options())
    try:
        require_served(read_manifest(bucket, REQUESTS).manifest, address)
    except (Refused, NotFound):
        return False
    finally:
        bucket.close()
    return True


def require_one_store(path: Path, address: str, options: S3Options | None = None) -> None:
    """At most one of both sides serves the store, and a side that a crash left can be served or the move goes on."""
    served = is_served(address, options)
    if moved_store(path) is None:
        assert not served, "the directory is the store"
        Store.open(path, settings=Settings(), clock=system_clock_ms).close()
    else:
        with pytest.raises(Refused, match="was moved to"):
            Store.open(path, settings=Settings(), clock=system_clock_ms)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_move_that_dies_at_any_request_goes_on(tmp_path: Path, after: bool) -> None:
    rig, mortal = filled(tmp_path), Mortal()
    before, path = state(rig.store), rig.path
    rig.store.close()
    move(path, (tmp_path / "whole").as_uri(), wrap=mortal.before)
    requests, deaths = mortal.requests, 0
    tried = {*range(1 + after, requests, STEP), *range(requests - 5, requests + 1)}
    for last in sorted(tried):
        (path / MOVED_METADATA).rename(path / METADATA)
        address = (tmp_path / f"bucket{last}").as_uri()
        mortal.live(last, after=after)
        try:
            move(path, address, wrap=mortal.before)
        except LedgerError:
            deaths += 1
        mortal.live(-1, after=False)
        require_one_store(path, address)
        move(path, address)
        assert is_served(address)
        hosts = BucketRig(tmp_path / f"hosts{last}", address, S3Options())
        assert state(hosts.host("a").store) == before, f"request {last}"
        assert staged(tmp_path / f"hosts{last}" / "a") == staged(path)
        hosts.close()
    assert deaths >= len(tried) - LAST


def killed_at(endpoint: str, fault: tuple[str, str, str, int], *arguments: str) -> None:
    """Run the command, and kill it when it has reached a request."""
    method, key, kind, skipped = fault
    with FaultProxy(endpoint) as proxy:
        proxy.on(method, key, "slow", skipped)
        proxy.on(method, key, kind)
        command = [sys.executable, "-m", "pyspark_ledger.connector.cli.app", "store", "move", *arguments]
        moving = subprocess.Popen(command, env={**os.environ, "AWS_ENDPOINT_URL_S3": proxy.endpoint})
        assert proxy.reached.wait(60)
        moving.kill()
        moving.wait()
        proxy.heal()


@pytest.fixture
def environment(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / "cache"))
    return s3_server


@pytest.mark.parametrize("fault", KILLS, ids=str)
def test_a_killed_command_goes_on(
    tmp_path: Path, environment: S3Server, bucket: str, fault: tuple[str, str, str, int]
) -> None:
    rig = filled(tmp_path)
    before, path = state(rig.store), rig.path
    rig.store.close()
    reserved(before["id"], bucket, environment.options)
    killed_at(environment.endpoint, fault, str(path), bucket)
    require_one_store(path, bucket, environment.options)
    assert f"the store of {path} is in {bucket} now" in run("store", "move", str(path), bucket)
    hosts = BucketRig(tmp_path / "hosts", bucket, environment.options)
    assert state(hosts.host("a").store) == before
    hosts.close()
