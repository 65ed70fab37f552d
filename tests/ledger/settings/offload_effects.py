"""Effects of the offload settings: objects in a folder, and the requests that an S3 server receives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from urllib.parse import parse_qs

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.offload import upload
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from tests.rigs.driven_broker import Drive, DrivenBroker, Drives, Value
from tests.rigs.entry import entry, parsed
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


def upload_threads(broker: DrivenBroker) -> object:
    """Threads of an upload, and connections to S3."""
    seen, pool = list[int](), upload.ThreadPoolExecutor
    with broker.patch.context() as patch:
        patch.setattr(upload, "_PARTS_PUT_WHOLE", 0)  # a small segment has one part, which needs no thread
        patch.setattr(upload, "ThreadPoolExecutor", lambda n, **rest: seen.append(n) or pool(n, **rest))
        broker.offloaded()
    return seen, connections(broker)


def read_threads(broker: DrivenBroker) -> object:
    return (
        copies(broker).windows._pool._max_workers,
        broker.source.prefetch_planner.prefetcher._threads_max(),
        connections(broker),
    )


def connections(broker: DrivenBroker) -> int:
    size: int = copies(broker)._options.client("s3://bucket").meta.config.max_pool_connections
    return size


def objects(broker: DrivenBroker) -> object:
    before = len(list(copies(broker).store.objects()))
    broker.offloaded()
    return len(list(copies(broker).store.objects())) - before


def louder(data: memoryview) -> bytes:
    """A transformation."""
    return entry(bytes(parse_entry(data, "here").payload).upper())


def payload_there(broker: DrivenBroker) -> object:
    log = broker.offloaded(gone=True, payload=b"quiet")
    (block,) = log.blocks(PositionRange(EARLIEST, LATEST), 1000)
    return [bytes(found.payload) for _, found in parsed(block)]


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


def session_names(broker: DrivenBroker) -> object:
    copies(broker).store.put("object", b"x")
    return {found for request in broker.s3.requests for found in parse_qs(request.body).get("RoleSessionName", [])}


def host(request: Request) -> tuple[str, str]:
    return request.host.partition(":")[0], request.path


DRIVES: Drives = {
    "managedLedgerOffloadThresholdInSeconds": [Drive(offloaded_by_itself, 0, {1: 2}, FOLDER)],
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": [Drive(offloaded_by_itself, 0, {0: 2}, FOLDER)],
    "managedLedgerOffloadDeletionLagMs": [Drive(local_copies, 1, {1000: 0}, FOLDER)],
    "managedLedgerOffloadMaxThreads": [Drive(upload_threads, ([2], 10), {5: ([5], 13)}, FOLDER)],
    "managedLedgerOffloadReadThreads": [Drive(read_threads, (4, 4, 10), {7: (7, 7, 13)}, FOLDER)],
    "managedLedgerOffloadReadBufferSizeInBytes": [
        Drive(lambda b: copies(b).windows._window_bytes, 16 << 20, {1 << 20: 1 << 20}, FOLDER)
    ],
    "managedLedgerOffloadReadCacheSizeMB": [Drive(lambda b: copies(b).windows._windows_max, 16, {32: 2}, FOLDER)],
    "managedLedgerOffloadFineIndex": [Drive(objects, 3, {0: 2}, FOLDER)],
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
    "s3ManagedLedgerOffloadRoleSessionName": [Drive(session_names, {"ledger-offload"}, {"mine": {"mine"}}, ROLE)],
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
    "managedLedgerOffloadTransform": [
        Drive(payload_there, [b"quiet"], {"tests.ledger.settings.offload_effects:louder": [b"QUIET"]}, FOLDER)
    ],
    "managedLedgerDataReadPriority": [Drive(read_from, [False], {"tiered-storage-first": [True]}, FOLDER)],
}
