"""Goal: a passing answer of S3 costs only time, at each request of a store. Method: a proxy before a real S3 server."""

from __future__ import annotations

import pytest

from pyspark_ledger.ledger.bucket_store.probe import probe_bucket
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.transport.bucket_discovery import BrokerSecret, named_broker
from pyspark_ledger.ledger.wal.manifest import BrokerAddress
from tests.rigs.bucket_store import REQUESTS, BucketRig, append, numbered, payloads
from tests.rigs.fault_proxy import FaultProxy

CONFLICT, THROTTLED = "409 ConditionalRequestConflict", "503 SlowDown"


@pytest.mark.parametrize("answer", [CONFLICT, THROTTLED])
def test_store_is_made_and_kept_through_passing_answers(rig: BucketRig, proxy: FaultProxy, answer: str) -> None:
    for part in ("/probe-", "/snapshot/", "/manifest", "/wal/"):
        proxy.on("PUT", part, answer)
    proxy.on("GET", "list-type", answer)
    first = rig.host("a")
    append(first, numbered(3))
    proxy.on("PUT", "/secret/", answer)
    proxy.on("PUT", "/manifest", answer)
    address = BrokerAddress("grpc://host:1", "process")
    first.begin(address, BrokerSecret("token", "authority"))
    for part in ("/snapshot/", "/manifest", "/wal/"):
        proxy.on("PUT", part, answer)
    append(first, numbered(3, 3))
    first.collector.collect()
    proxy.on("PUT", "/manifest", answer)  # the manifest of the next epoch
    second = rig.host("b")
    assert payloads(second) == numbered(6)
    assert not [fault for fault in proxy.faults if fault.left], "each fault was met"
    assert named_broker(rig.bucket, REQUESTS) is None


@pytest.mark.parametrize("round_of", ["create-0000", "replace"])
def test_round_of_refused_puts_is_repeated(rig: BucketRig, proxy: FaultProxy, round_of: str) -> None:
    bucket = open_object_store(rig.address, rig.through)
    proxy.on("PUT", f"/{round_of}", THROTTLED, times=9)  # one put begins the rounds of replacements
    probe_bucket(bucket, create_rounds=1, replace_rounds=1, limits=REQUESTS)
    assert proxy.met == 9
    assert rig.keys() == []


def test_server_that_stores_nothing_is_refused(rig: BucketRig, proxy: FaultProxy) -> None:
    proxy.on("PUT", "/create-0000", "412 PreconditionFailed", times=8)
    with pytest.raises(Refused, match=r"in round 0 .* the object has 'no bytes'"):
        probe_bucket(open_object_store(rig.address, rig.through), create_rounds=1, replace_rounds=0, limits=REQUESTS)
    assert rig.keys() == []
