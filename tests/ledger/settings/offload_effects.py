"""Effects of the offload settings: objects in a folder, and the requests that an S3 server receives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from tests.rigs.driven_broker import Drive, DrivenBroker, Drives, Value
from tests.rigs.log import contents
from tests.rigs.recording_s3 import Request

FOLDER: dict[str, Value] = {"managedLedgerOffloadBucket": "{folder}"}
S3: dict[str, Value] = {"managedLedgerOffloadBucket": "s3://bucket"}
ROLE: dict[str, Value] = {**S3, "s3ManagedLedgerOffloadRole": "arn:aws:iam::123456789012:role/writer"}
OTHER = "http://other.localhost:{port}"


def copies(broker: DrivenBroker) -> ObjectStoreOffloader:
    found = broker.store._context.offloader()
    assert isinstance(found, ObjectStoreOffloader)
    return found


def offloaded_by_itself(broker: DrivenBroker) -> object:
    log = broker.filled(2)
    broker.pass_ms(5_000)
    broker.store.upkeep.round()
    broker.store.offloads.round()
    return broker.store.offloads.status(log.name).offloaded


def local_copies(broker: DrivenBroker) -> object:
    log = broker.offloaded()
    broker.pass_ms(5_000)
    log.trim()
    return broker.store.offloads.status(log.name).local


def objects(broker: DrivenBroker) -> object:
    before = len(list(copies(broker).store.objects()))
    broker.offloaded()
    return len(list(copies(broker).store.objects())) - before


def read_from(broker: DrivenBroker) -> object:
    log = broker.offloaded()
    assert contents(log)
    return [not getattr(block.source, "mappable", True) for block in log.blocks(PositionRange(EARLIEST, LATEST), 1000)]


def put(show: Callable[[Request], object]) -> Callable[[DrivenBroker], object]:
    """Return a part of the request that uploads an object."""

    def observe(broker: DrivenBroker) -> object:
        copies(broker).store.put("object", b"x")
        return show(broker.s3.requests[-1])

    return observe


def has_target(broker: DrivenBroker) -> object:
    """Whether sealed ledgers are offloaded, and where an object would go."""
    with suppress(Refused):
        return broker.store.upkeep._offloading(), copies(broker).store.address
    return broker.store.upkeep._offloading(), ""


def host(request: Request) -> tuple[str, str]:
    return request.host.partition(":")[0], request.path


DRIVES: Drives = {
    "managedLedgerOffloadThresholdInSeconds": [Drive(offloaded_by_itself, 0, {1: 2}, FOLDER)],
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": [Drive(offloaded_by_itself, 0, {0: 2}, FOLDER)],
    "managedLedgerOffloadDeletionLagMs": [Drive(local_copies, 1, {1000: 0}, FOLDER)],
    "managedLedgerOffloadReadCacheSizeMB": [Drive(lambda b: copies(b).windows._windows_max, 16, {32: 2}, FOLDER)],
    "managedLedgerOffloadBucket": [Drive(has_target, (False, ""), {"s3://other": (True, "s3://other")})],
    "managedLedgerOffloadServiceEndpoint": [
        Drive(put(host), ("localhost", "/bucket/object"), {OTHER: ("other.localhost", "/bucket/object")}, S3)
    ],
    "managedLedgerOffloadRegion": [Drive(put(lambda r: r.region), "us-east-1", {"eu-north-1": "eu-north-1"}, S3)],
    "managedLedgerOffloadPathStyle": [
        Drive(
            put(host),
            ("other.localhost", "/bucket/object"),
            {"false": ("bucket.other.localhost", "/object")},
            {**S3, "managedLedgerOffloadServiceEndpoint": OTHER},
        )
    ],
    "managedLedgerOffloadProfile": [Drive(put(lambda r: r.signed_by), "ENVIRONMENT", {"other": "PROFILE"}, S3)],
    "managedLedgerOffloadCredentialProvider": [
        Drive(put(lambda r: r.signed_by), "ENVIRONMENT", {"tests.rigs.recording_s3:keys_of": "PROVIDED"}, S3)
    ],
    "s3ManagedLedgerOffloadRole": [
        Drive(put(lambda r: r.signed_by), "ENVIRONMENT", {"arn:aws:iam::123456789012:role/writer": "ASSUMED"}, S3)
    ],
    "managedLedgerOffloadEncryption": [
        Drive(put(lambda r: r.headers.get("x-amz-server-side-encryption")), None, {"AES256": "AES256"}, S3)
    ],
    "managedLedgerOffloadKmsKey": [
        Drive(
            put(lambda r: r.headers.get("x-amz-server-side-encryption-aws-kms-key-id")),
            None,
            {"arn:key": "arn:key"},
            {**S3, "managedLedgerOffloadEncryption": "aws:kms"},
        )
    ],
    "managedLedgerOffloadBucketOwner": [
        Drive(put(lambda r: r.headers.get("x-amz-expected-bucket-owner")), None, {"123456789012": "123456789012"}, S3)
    ],
    "managedLedgerDataReadPriority": [Drive(read_from, [False], {"tiered-storage-first": [True]}, FOLDER)],
}
