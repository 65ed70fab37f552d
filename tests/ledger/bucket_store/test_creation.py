"""Goal: only a sound, empty place becomes a store, and only one. Method: a real S3 server, and one made unsound."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyspark_ledger.ledger.bucket_store.creation import found_or_created
from pyspark_ledger.ledger.bucket_store.probe import probe_bucket
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import AlreadyExists, NotFound, Refused
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import MANIFEST
from pyspark_ledger.ledger.wal.requests import FoundManifest
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_store import REQUESTS


@pytest.fixture
def place(bucket: str, s3_server: S3Server) -> ObjectStore:
    return open_object_store(bucket, s3_server.options)


def create(
    place: ObjectStore, probe: Callable[[ObjectStore], None] = lambda _: None, *, create: bool = True
) -> FoundManifest:
    return found_or_created(place, system_clock_ms, REQUESTS, create=create, window=4, probe=probe)


class Unsound:
    """Bucket whose conditional puts are a read and a write, as in servers that are not atomic."""

    def __init__(self, real: ObjectStore) -> None:
        self._real = real
        self._both = threading.Barrier(2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def put(self, key: str, data: bytes, *, only_new: bool = False, if_match: str = "") -> str:
        try:
            found = self._real.get(key, 1000).head.etag
        except NotFound:
            found = ""
        if (only_new and found) or (if_match and if_match != found):
            raise AlreadyExists(f"{key} exists")
        if "/create-" in key:
            try:
                self._both.wait(0.2)
            except threading.BrokenBarrierError:
                self._both.reset()
        return self._real.put(key, data)


def test_a_sound_server_passes_and_nothing_is_left(place: ObjectStore) -> None:
    probe_bucket(place, create_rounds=12, replace_rounds=4)
    assert list(place.objects()) == []


def test_a_server_with_two_winners_is_refused(place: ObjectStore) -> None:
    with pytest.raises(Refused, match=r"in round \d+ [2-8] of 8 puts with If-None-Match: \* succeeded, expected one"):
        create(Unsound(place), lambda bucket: probe_bucket(bucket, create_rounds=8, replace_rounds=0))
    assert list(place.objects()) == []


def test_a_server_without_conditions_is_refused(place: ObjectStore) -> None:
    class Careless(Unsound):
        def put(self, key: str, data: bytes, *, only_new: bool = False, if_match: str = "") -> str:
            return self._real.put(key, data)

    with pytest.raises(Refused, match=r"If-None-Match: \* on an existing object succeeded, expected 412"):
        create(Careless(place), probe_bucket)


def test_a_bucket_with_old_versions_is_told(s3_server: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    name = f"versions-{uuid.uuid4()}"
    place = open_object_store(s3_server.make_bucket(name), s3_server.options)
    probe_bucket(place, create_rounds=0, replace_rounds=0)
    assert not caplog.messages
    s3_server.client().put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    probe_bucket(place, create_rounds=0, replace_rounds=0)
    assert [f"s3://{name} keeps old versions" in message for message in caplog.messages] == [True]


def test_a_server_that_ignores_the_encryption_is_refused(place: ObjectStore) -> None:
    with pytest.raises(Refused, match=r"has the encryption none, managedLedgerOffloadEncryption is aws:kms"):
        probe_bucket(place, encryption="aws:kms", create_rounds=0, replace_rounds=0)
    assert list(place.objects()) == []


def test_a_prefix_in_use_is_refused(place: ObjectStore) -> None:
    place.put("somebody/else", b"x")
    with pytest.raises(Refused, match="has objects and no manifest, the first is somebody/else"):
        create(place)


def test_what_a_crashed_creator_left_is_no_obstacle(place: ObjectStore) -> None:
    place.put("probe-1/create-0001", b"x")
    place.put("snapshot/1-0-n", b"x")
    create(place)


def test_a_store_is_made_only_if_asked_for(place: ObjectStore) -> None:
    with pytest.raises(NotFound, match="there is no ledger store at s3://"):
        create(place, create=False)
    made = create(place)
    assert create(place, create=False) == made
    assert made.manifest.snapshot is not None


def test_of_many_creators_at_once_all_find_the_same_store(place: ObjectStore) -> None:
    ready = threading.Barrier(6)

    def one() -> str:
        ready.wait()
        return create(place).manifest.store_id

    with ThreadPoolExecutor(6) as pool:
        ids = list(pool.map(lambda _: one(), range(6)))
    assert len(set(ids)) == 1
    assert [found.key for found in place.objects(MANIFEST)] == [MANIFEST]
