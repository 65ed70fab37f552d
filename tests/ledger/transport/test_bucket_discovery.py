"""Goal: a secret reaches only clients that read the bucket. Method: a bucket in a directory, with faults."""

from __future__ import annotations

import stat
import uuid
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt, NotFound
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.transport.bucket_discovery import (
    BrokerSecret,
    NamedBroker,
    decode_secret,
    encode_secret,
    keep_secret,
    named_broker,
    put_secret,
)
from pyspark_ledger.ledger.wal.bucket import MANIFEST, secret_key
from pyspark_ledger.ledger.wal.manifest import BrokerAddress, StoreManifest, encode_manifest
from pyspark_ledger.ledger.wal.requests import RequestLimits
from tests.rigs.faulty_bucket import FaultyBucket, lost

SECRET = BrokerSecret("3f0c9b2e71d84a65" * 2, "-----BEGIN CERTIFICATE-----")
LIMITS = RequestLimits(deadline_ms=1_000, refused_ms=0)
STORE = str(uuid.UUID(int=7))


@pytest.fixture
def place(tmp_path: Path) -> ObjectStore:
    return open_object_store(tmp_path / "bucket")


def name(place: ObjectStore, broker: BrokerAddress | None, epoch: int = 3) -> StoreManifest:
    manifest = StoreManifest(STORE, "nonce", epoch=epoch, broker=broker)
    place.put(MANIFEST, encode_manifest(manifest))
    return manifest


def test_every_flipped_bit_of_a_secret_is_refused_without_its_token() -> None:
    data = encode_secret(SECRET)
    assert decode_secret(data, "secret/1").token == SECRET.token
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match="secret/1 is no secret of a broker, or is damaged") as found:
            decode_secret(bytes(damaged), "secret/1")
        assert SECRET.token[:8] not in f"{found.value} {found.value.__cause__}"
    assert SECRET.token not in repr(SECRET)


def test_a_secret_is_put_once_although_the_answer_is_lost(place: ObjectStore) -> None:
    faults = FaultyBucket()
    faults.on("put", "secret/", lost)
    manifest = name(place, None)
    key = put_secret(faults.before(place), manifest, SECRET, LIMITS)
    assert (key, faults.met) == (secret_key(3, "nonce"), 1)
    assert put_secret(place, manifest, SECRET, LIMITS) == key
    with pytest.raises(AlreadyExists):
        put_secret(place, manifest, BrokerSecret("another", ""), LIMITS)


def test_a_client_reads_the_address_and_the_secret(place: ObjectStore) -> None:
    with pytest.raises(NotFound):
        named_broker(place, LIMITS)
    name(place, None)
    assert named_broker(place, LIMITS) is None
    name(place, BrokerAddress("grpc+unix:///s", "machine/1/2"))
    assert named_broker(place, LIMITS) == NamedBroker(STORE, "grpc+unix:///s", "machine/1/2", None)
    key = put_secret(place, name(place, None), SECRET, LIMITS)
    name(place, BrokerAddress("grpc+tls://h:1", "machine/1/2", key))
    found = named_broker(place, LIMITS)
    assert found is not None
    assert found.secret is not None
    assert (found.address, found.secret.token) == ("grpc+tls://h:1", SECRET.token)


def test_a_client_that_misses_the_secret_reads_the_manifest_again(place: ObjectStore) -> None:
    later = BrokerSecret("the next broker's", "")
    next_key = put_secret(place, name(place, None, 4), later, LIMITS)
    swept = BrokerAddress("grpc+tls://h:1", "machine/1/2", secret_key(3, "nonce"))

    def replaced(call: object) -> object:
        name(place, BrokerAddress("grpc+tls://h:2", "machine/1/3", next_key), 4)
        return call()  # type: ignore[operator]

    faults = FaultyBucket()
    faults.on("get", swept.secret, replaced)
    name(place, swept)
    found = named_broker(faults.before(place), LIMITS)
    assert found is not None
    assert found.address == "grpc+tls://h:2"
    name(place, swept)
    with pytest.raises(NotFound):
        named_broker(place, LIMITS)


def test_kept_files_are_readable_by_their_user_only(tmp_path: Path) -> None:
    directory = tmp_path / "cache" / "store"
    for secret in (BrokerSecret("first", "a"), SECRET):
        paths = keep_secret(directory, secret)
        assert [path.read_text() for path in paths] == [secret.authority, secret.token]
        assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert sorted(directory.iterdir()) == sorted(paths), "no scratch file is left"
