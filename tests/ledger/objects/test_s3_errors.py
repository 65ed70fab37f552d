"""Goal: each answer of S3 has one reaction, at every request. Method: a proxy before a real S3 server answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pyspark_ledger.ledger.errors import (
    AlreadyExists,
    Archived,
    Corrupt,
    LedgerError,
    NotFound,
    Refused,
    Unauthenticated,
    Unavailable,
)
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import ObjectStore, Upload, UploadedPart
from pyspark_ledger.ledger.objects.retry import retry
from pyspark_ledger.ledger.objects.s3_errors import REACTIONS, s3_error
from pyspark_ledger.ledger.wal.requests import RequestLimits, repeated
from streaming_examples.s3_server import S3Server
from tests.rigs.fault_proxy import FaultProxy

# Answer, class, what the hint says, whether the same request is sent again.
ANSWERS = [
    ("409 ConditionalRequestConflict", Unavailable, "", True),
    ("409 OperationAborted", Unavailable, "", True),
    ("409", Unavailable, "", True),
    ("503 SlowDown", Unavailable, "", True),
    ("503 ServiceUnavailable", Unavailable, "", True),
    ("503 Throttling", Unavailable, "", True),
    ("400 ThrottlingException", Unavailable, "", True),
    ("400 RequestLimitExceeded", Unavailable, "", True),
    ("400 BandwidthLimitExceeded", Unavailable, "", True),
    ("429 TooManyRequests", Unavailable, "", True),
    ("429", Unavailable, "", True),
    ("400 RequestTimeout", Unavailable, "", True),
    ("408", Unavailable, "", True),
    ("400 IncompleteBody", Unavailable, "", True),
    ("400 BadDigest", Unavailable, "", True),
    ("400 KMS.ThrottlingException", Unavailable, "", True),
    ("500 InternalError", Unavailable, "", True),
    ("502 BadGateway", Unavailable, "", True),
    ("504", Unavailable, "", True),
    ("403 InvalidObjectState GLACIER", Archived, "Restore it, for example with `aws s3api restore-object`", False),
    ("403 AccessDenied", Unauthenticated, "Check the credentials and the policy", True),
    ("403 SignatureDoesNotMatch", Unauthenticated, "Check the credentials and the policy", True),
    ("401", Unauthenticated, "Check the credentials and the policy", True),
    ("403", Unauthenticated, "Check the credentials and the policy", True),
    ("400 ExpiredToken", Unauthenticated, "Renew the credentials", True),
    ("400 ExpiredTokenException", Unauthenticated, "Renew the credentials", True),
    ("400 InvalidToken", Unauthenticated, "Renew the credentials", True),
    ("400 TokenRefreshRequired", Unauthenticated, "Renew the credentials", True),
    ("403 RequestTimeTooSkewed", Unauthenticated, "Correct the clock of this host", True),
    ("404 NoSuchKey", NotFound, "", False),
    ("404 NoSuchUpload", NotFound, "", False),
    ("404 NoSuchVersion", NotFound, "", False),
    ("404 NotFound", NotFound, "", False),
    ("404", NotFound, "", False),
    ("404 NoSuchBucket", NotFound, "Create the bucket", False),
    ("412 PreconditionFailed", AlreadyExists, "", False),
    ("412", AlreadyExists, "", False),
    ("416 InvalidRange", Corrupt, "The object is shorter than its index says", False),
    ("416", Corrupt, "The object is shorter than its index says", False),
    ("301 PermanentRedirect", Refused, "Set the region of the bucket", False),
    ("301", Refused, "Set the region of the bucket", False),
    ("307", Refused, "Set the region of the bucket", False),
    ("400 AuthorizationHeaderMalformed", Refused, "Set the region of the bucket", False),
    ("501 NotImplemented", Refused, "Use a server that supports this request", False),
    ("501", Refused, "Use a server that supports this request", False),
    ("400 KMS.DisabledException", Refused, "Check the key managedLedgerOffloadKmsKey", False),
    ("400 KMS.NotFoundException", Refused, "Check the key managedLedgerOffloadKmsKey", False),
    ("400 KMS.KMSInvalidStateException", Refused, "Check the key managedLedgerOffloadKmsKey", False),
    ("400 KeyTooLongError", Refused, "", False),
]
UPLOAD = Upload("key", "upload")
# Name of a request: its method, and the call that sends it.
REQUESTS: dict[str, tuple[str, Callable[[ObjectStore], Any]]] = {
    "put": ("PUT", lambda store: store.put("key", b"x")),
    "create": ("PUT", lambda store: store.put("key", b"x", only_new=True)),
    "replace": ("PUT", lambda store: store.put("key", b"x", if_match="e")),
    "get": ("GET", lambda store: store.get("key", 10)),
    "range": ("GET", lambda store: store.get_range("key", 0, 1)),
    "list": ("GET", lambda store: list(store.objects())),
    "delete": ("POST", lambda store: store.delete(["key"])),
    "begin": ("POST", lambda store: store.begin_upload("key")),
    "part": ("PUT", lambda store: store.put_part(UPLOAD, 1, b"x", 1)),
    "parts": ("GET", lambda store: store.parts(UPLOAD)),
    "complete": ("POST", lambda store: store.complete(UPLOAD, [UploadedPart(1, "e", 1)])),
    "abort": ("DELETE", lambda store: store.abort(UPLOAD)),
    "uploads": ("GET", lambda store: list(store.uploads())),
    "copy": ("PUT", lambda store: store.copy("source", "key")),
}
# Answers that are given to every request. The other answers are given to a put and a get.
EVERYWHERE = {"409 ConditionalRequestConflict", "503 SlowDown", "403 InvalidObjectState GLACIER", "400 KeyTooLongError"}


@pytest.fixture
def store(proxy: FaultProxy, s3_server: S3Server, bucket: str) -> Iterator[ObjectStore]:
    store = open_object_store(bucket, replace(s3_server.options, endpoint=proxy.endpoint, attempts=1))
    store.put("source", b"x")
    yield store
    store.close()


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ledger.wal.requests", "ledger.objects.retry", "ledger.objects.s3"):
        monkeypatch.setattr(f"pyspark_ledger.{module}.pause", lambda _: None)


def test_answer_has_one_class_and_hint(store: ObjectStore, proxy: FaultProxy) -> None:
    for answer, kind, hint, _ in ANSWERS:
        for name, (method, call) in REQUESTS.items():
            if answer not in EVERYWHERE and name != "put":
                continue
            proxy.on(method, "", answer)
            with pytest.raises(LedgerError) as raised:
                call(store)
            case = (answer, name, raised.value)
            assert type(raised.value) is kind, case
            assert raised.value.hint.startswith(hint), case
            assert bool(hint) or not raised.value.hint, case


def test_request_is_repeated_only_if_a_repetition_can_help(store: ObjectStore, proxy: FaultProxy) -> None:
    limits = RequestLimits(deadline_ms=600_000, refused_ms=600_000)
    for answer, kind, _, again in ANSWERS:
        proxy.heal()
        proxy.on("GET", "source", answer, times=2)
        met = proxy.met
        if again:
            assert repeated(lambda: store.get("source", 10), limits).data == b"x"
        else:
            with pytest.raises(kind):
                repeated(lambda: store.get("source", 10), limits)
        assert proxy.met - met == (2 if again else 1), answer


def test_answer_without_a_body_is_found_by_its_status(store: ObjectStore, proxy: FaultProxy) -> None:
    expected = {
        403: Unauthenticated,
        404: NotFound,
        409: Unavailable,
        412: AlreadyExists,
        429: Unavailable,
        503: Unavailable,
    }
    for status, kind in expected.items():
        proxy.on("HEAD", "", str(status))
        with pytest.raises(LedgerError) as raised:
            store.head("source")
        assert type(raised.value) is kind, status


def test_every_code_of_the_table_is_answered_once() -> None:
    assert {answer.split()[min(answer.count(" "), 1)] for answer, *_ in ANSWERS} >= set(REACTIONS)


def test_archived_object_is_named_with_its_tier_and_not_tried_again(store: ObjectStore, proxy: FaultProxy) -> None:
    proxy.on("GET", "source", "403 InvalidObjectState DEEP_ARCHIVE", times=10)
    message = r"get s3://tests/.*/source: the object is in the archive tier DEEP_ARCHIVE .*Restore it"
    with pytest.raises(Unavailable, match=message):
        retry(lambda: store.get("source", 10))
    assert proxy.met == 1
    proxy.on("PUT", "copied", "403 InvalidObjectState GLACIER")
    with pytest.raises(Unavailable, match=r"copy s3://tests/.*/source to .* archive tier GLACIER"):
        store.copy("source", "copied")


def test_error_of_one_deleted_object_has_the_class_of_its_code() -> None:
    expected = {
        "AccessDenied": Unauthenticated,
        "SlowDown": Unavailable,
        "InternalError": Unavailable,
        "Odd": Unavailable,
    }
    for code, kind in expected.items():
        error = s3_error({"Code": code, "Message": "Text of S3."}, "1 of 2 objects were not deleted")
        assert type(error) is kind
        assert code in error.message
