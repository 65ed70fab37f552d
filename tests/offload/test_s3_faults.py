"""Goal: an S3 that fails, hangs, truncates or loses answers costs only time. Method: a proxy before a real server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.metrics.counters import OBJECT_REQUESTS
from pyspark_ledger.ledger.objects.factory import open_object_store
from streaming_examples.s3_server import S3Server
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.offload import HOUR, OffloadRig

# Calls of an offload of a file that is put whole: method, and a part of the path.
CALLS = {
    "places": ("PUT", "-entries"),
    "index": ("PUT", "-index"),
    "compare": ("GET", "-index"),
    "look": ("HEAD", "-ledger-0"),
    "whole": ("PUT", "-ledger-0"),
}
# Calls of an offload of a file that is uploaded in parts.
PART_CALLS = {name: call for name, call in CALLS.items() if name != "whole"} | {
    "begin": ("POST", "uploads"),
    "part": ("PUT", "partNumber"),
    "complete": ("POST", "uploadId"),
    "list": ("GET", "uploads"),
}


@pytest.fixture
def rig(
    make_rig: Callable[..., OffloadRig],
    proxy: FaultProxy,
    s3_server: S3Server,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> OffloadRig:
    monkeypatch.setattr("pyspark_ledger.ledger.objects.retry.pause", lambda _: None)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
    monkeypatch.setattr("pyspark_ledger.ledger.objects.s3.pause", lambda _: None)
    options = replace(
        s3_server.options, endpoint=proxy.endpoint, attempts=3, connect_timeout_ms=1000, read_timeout_ms=1000
    )
    return make_rig(bucket, options)


@pytest.fixture(params=["whole", "parts"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    """Return the calls of an offload, once of a file that is put whole, once of a file in parts."""
    if request.param == "whole":
        return CALLS
    monkeypatch.setattr("pyspark_ledger.offload.upload._PARTS_PUT_WHOLE", 0)
    return PART_CALLS


def in_bucket(rig: OffloadRig, server: S3Server) -> tuple[list[str], int]:
    """Return the keys and the unfinished uploads, read without the proxy."""
    store = open_object_store(rig.address, server.options)
    found = [one.key for one in store.objects()], len(list(store.uploads()))
    store.close()
    return found


@pytest.mark.parametrize("kind", [pytest.param("error", marks=pytest.mark.fault), "lost"])
def test_every_call_that_fails_once_is_made_again(
    rig: OffloadRig, proxy: FaultProxy, s3_server: S3Server, calls: dict[str, tuple[str, str]], kind: str
) -> None:
    payloads = rig.fill(1)
    for call in calls.values():
        proxy.on(*call, kind)
    status = rig.offload()
    assert proxy.met == len(calls)
    assert (status.state, status.failure) == ("done", "")
    keys, uploads = in_bucket(rig, s3_server)
    assert (len(keys), uploads) == (3, 0)
    rig.now += 5 * HOUR
    rig.store.ledger("log").trim()
    assert rig.contents() == payloads


@pytest.mark.fault
@pytest.mark.parametrize("failing", ["data", "index"])
def test_call_that_keeps_failing_uploads_nothing_and_keeps_the_local_copy(
    rig: OffloadRig, proxy: FaultProxy, s3_server: S3Server, calls: dict[str, tuple[str, str]], failing: str
) -> None:
    payloads = rig.fill(1)
    data = calls.get("part") or calls["whole"]
    proxy.on(*(data if failing == "data" else calls["index"]), "error", times=1000)
    status = rig.offload()
    assert status.state == "failed"
    assert "503" in status.failure
    assert in_bucket(rig, s3_server) == ([], 0)
    rig.now += 1000 * HOUR
    rig.store.ledger("log").trim()
    assert rig.contents() == payloads
    proxy.heal()
    assert rig.offload().state == "done"
    assert len(in_bucket(rig, s3_server)[0]) == 3


@pytest.mark.fault
def test_a_bucket_that_cannot_be_reached_at_all_is_swept_once_it_can(
    rig: OffloadRig, proxy: FaultProxy, s3_server: S3Server
) -> None:
    payloads = rig.fill(1)
    proxy.on("PUT", "-index", "error", times=1000)
    proxy.on("POST", "delete", "error", times=1000)
    assert rig.offload().state == "failed"
    assert in_bucket(rig, s3_server)[0], "the objects that could not be deleted still exist"
    proxy.heal()
    assert rig.offload().state == "done"
    (attempt,) = rig.attempts().values()
    assert {key.partition("-ledger-")[0] for key in in_bucket(rig, s3_server)[0]} == {str(attempt.attempt)}
    assert rig.contents() == payloads


@pytest.mark.fault
def test_a_read_that_fails_is_made_again_and_every_byte_is_right(rig: OffloadRig, proxy: FaultProxy) -> None:
    payloads = rig.fill(2, 6)
    rig.offload()
    rig.now += 5 * HOUR
    rig.store.ledger("log").trim()
    for kind in ("error", "cut", "slow", "hang", "lost"):
        for segment in rig.store.ledger("log").snapshot.segments:
            if segment.offloaded is not None:
                segment.offloaded.close()
        proxy.on("GET", "-ledger-", kind, times=2)
        assert rig.contents() == payloads, kind
    assert proxy.met == 10


@pytest.mark.fault
def test_a_read_that_goes_on_failing_is_unavailable_and_works_afterwards(rig: OffloadRig, proxy: FaultProxy) -> None:
    payloads = rig.fill(1)
    rig.offload()
    rig.now += 5 * HOUR
    rig.store.ledger("log").trim()
    proxy.on("GET", "-ledger-", "error", times=1000)
    with pytest.raises(Unavailable, match="503"):
        rig.contents()
    proxy.heal()
    assert rig.contents() == payloads


def test_each_request_is_counted_with_its_time(rig: OffloadRig, proxy: FaultProxy) -> None:
    before = {request.name: request for request in OBJECT_REQUESTS.state()}
    rig.fill(1)
    proxy.on(*CALLS["index"], "lost")
    assert rig.offload().state == "done"
    after = {request.name: request for request in OBJECT_REQUESTS.state()}
    assert {"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "PutObject"} <= set(after)
    assert all(request.latency.count == request.count for request in after.values())
    assert after["UploadPart"].latency.total > 0
    failed = {name: request.failed - (before[name].failed if name in before else 0) for name, request in after.items()}
    assert failed["PutObject"] == 1, "the lost answer"
