"""Goal: a manifest that is not as its broker wrote it is refused. Method: golden bytes, every bit flipped."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Unsupported
from pyspark_ledger.ledger.wal.manifest import (
    BrokerAddress,
    SnapshotName,
    StoreManifest,
    decode_manifest,
    encode_manifest,
    require_successor,
)

WHOLE = StoreManifest(
    "5e2c8a9e-5d5f-4f4b-8d8e-0f1e2d3c4b5a",
    "nonce",
    epoch=3,
    revision=17,
    first=1200,
    window=8,
    snapshot=SnapshotName("snapshot/1", 1200, 5383, 99),
    broker=BrokerAddress("grpc://host:1", "machine/1/2"),
    acknowledged=1207,
)
GOLDEN = (
    b'{"store_id":"5e2c8a9e-5d5f-4f4b-8d8e-0f1e2d3c4b5a","nonce":"nonce","format":2,"epoch":3,"revision":17,'
    b'"first":1200,"window":8,"snapshot":{"key":"snapshot/1","records_from":1200,"size":5383,"crc32c":99},'
    b'"broker":{"address":"grpc://host:1","process":"machine/1/2","secret":""},"acknowledged":1207,'
    b'"crc32c":1991062397}'
)
FORMAT_1 = (
    b'{"store_id":"5e2c8a9e-5d5f-4f4b-8d8e-0f1e2d3c4b5a","nonce":"nonce","format":1,"epoch":3,"revision":17,'
    b'"first":1200,"window":8,"snapshot":{"key":"snapshot/1","records_from":1200,"size":5383,"crc32c":99},'
    b'"broker":{"address":"grpc://host:1","process":"machine/1/2","secret":""},"crc32c":1882603198}'
)


COPY = replace(WHOLE, home="s3://lake/copy", former=["aa1d7c1e-7a3f-4f61-9b3c-0a1b2c3d4e5f"])
GOLDEN_2 = (
    b'{"store_id":"5e2c8a9e-5d5f-4f4b-8d8e-0f1e2d3c4b5a","nonce":"nonce","format":2,"epoch":3,"revision":17,'
    b'"first":1200,"window":8,"snapshot":{"key":"snapshot/1","records_from":1200,"size":5383,"crc32c":99},'
    b'"broker":{"address":"grpc://host:1","process":"machine/1/2","secret":""},"home":"s3://lake/copy",'
    b'"former":["aa1d7c1e-7a3f-4f61-9b3c-0a1b2c3d4e5f"],"acknowledged":1207,"crc32c":2356157151}'
)


@pytest.mark.parametrize(("manifest", "golden"), [(WHOLE, GOLDEN), (COPY, GOLDEN_2)])
def test_a_manifest_is_decoded_as_it_was_encoded(manifest: StoreManifest, golden: bytes) -> None:
    assert decode_manifest(encode_manifest(manifest), "manifest") == manifest
    assert encode_manifest(manifest) == golden


def test_only_a_copy_may_change_the_id() -> None:
    after = replace(COPY, revision=18, former=[WHOLE.store_id], store_id="new")
    require_successor(WHOLE, after, "manifest")
    for former in (UNSET, ["other"]):
        with pytest.raises(Corrupt, match="cannot replace"):
            require_successor(WHOLE, replace(after, former=former), "manifest")


def test_a_manifest_of_format_1_states_only_the_number_of_its_snapshot() -> None:
    found = decode_manifest(FORMAT_1, "manifest")
    assert found == replace(WHOLE, format=1, acknowledged=0)
    assert (found.stated_end, WHOLE.stated_end) == (1200, 1207)
    assert encode_manifest(replace(found, acknowledged=1207)) == GOLDEN, "each put has the new format"


def test_changed_settings_are_a_field_only_if_there_are_some() -> None:
    assert decode_manifest(GOLDEN, "manifest").settings is UNSET
    changed = replace(WHOLE, settings={"maxConcurrentRequests": 100, "logFormat": "json"})
    data = encode_manifest(changed)
    assert b',"settings":{"maxConcurrentRequests":100,"logFormat":"json"},' in data
    assert decode_manifest(data, "manifest") == changed


def test_every_flipped_bit_of_a_manifest_is_refused() -> None:
    data = encode_manifest(WHOLE)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match="manifest of s3://lake"):
            decode_manifest(bytes(damaged), "manifest of s3://lake")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format":1}', b"\xff" * 20])
def test_other_bytes_are_no_manifest(data: bytes) -> None:
    with pytest.raises(LedgerError, match="manifest of s3://lake"):
        decode_manifest(data, "manifest of s3://lake")


def test_a_newer_format_is_unsupported() -> None:
    newer = encode_manifest(WHOLE).rpartition(b",")[0].replace(b'"format":2', b'"format":3')
    data = newer + b',"crc32c":%d}' % crc32c(newer)
    with pytest.raises(Unsupported, match="has format 3, this version reads formats 1 to 2"):
        decode_manifest(data, "manifest")
