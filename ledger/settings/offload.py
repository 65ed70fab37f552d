"""Settings of offloads to object storage, and of reads from there."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import (
    AT_ONCE,
    INT_MAX,
    MIB,
    TEN_YEARS_SECONDS,
    switch,
    text,
    whole,
)


@dataclass(frozen=True)
class OffloadSettings:
    """Offloading: when, where to, with which credentials, and how offloaded ledgers are read."""

    managedLedgerOffloadThresholdInSeconds: int = whole(
        -1,
        "seconds",
        -1,
        INT_MAX,
        "A segment is offloaded this long after it was sealed; -1: not by its age. Must be below the time of "
        "retention.",
    )
    managedLedgerOffloadAutoTriggerSizeThresholdBytes: int = whole(
        -1,
        "bytes",
        -1,
        2**62,
        "A segment is offloaded when it and all later sealed ones have more bytes than this; 0: at once; -1: not "
        "by size. Must be below the size of retention.",
    )
    managedLedgerOffloadDeletionLagMs: int = whole(
        4 * 3600 * 1000,
        "milliseconds",
        -1,
        TEN_YEARS_SECONDS * 1000,
        "The local copy of a segment is deleted this long after its offload; -1: never.",
    )
    managedLedgerOffloadMaxThreads: int = whole(
        2, "threads", 1, 64, "Blocks that are uploaded at once. Segments are uploaded one after another."
    )
    managedLedgerOffloadReadThreads: int = whole(
        4, "threads", 1, 256, "Ranges that are fetched from object storage at once, for all readers."
    )
    managedLedgerOffloadReadBufferSizeInBytes: int = whole(
        16 * MIB,
        "bytes",
        64 * 1024,
        256 * MIB,
        "Size of one fetched range. Pulsar's 1 MiB needs sixteen times as many requests; S3 is fastest at 8 to 16 MiB.",
    )
    managedLedgerOffloadReadCacheSizeMB: int = whole(
        256,
        "MiB",
        1,
        1024 * 1024,
        "Fetched ranges that are kept in memory, for all offloaded segments together: prefetched ones and those "
        "in use.",
    )
    managedLedgerOffloadFineIndex: int = switch(
        1,
        "1: the location of every entry is uploaded as one more object, so that no reader scans a block for an entry.",
    )
    managedLedgerOffloadBucket: str = text(
        "address",
        "Target of offloads: s3://bucket[/prefix], file:///path or a directory. Empty: nothing is offloaded.",
        AT_ONCE,
    )
    managedLedgerOffloadServiceEndpoint: str = text(
        "url", "Endpoint of an S3-compatible service, http:// or https://.", AT_ONCE
    )
    managedLedgerOffloadRegion: str = text("region", "Region of the bucket.", AT_ONCE)
    managedLedgerOffloadPathStyle: str = text(
        "true or false",
        "Whether the bucket is part of a request's path instead of its host. Empty: true if an endpoint is set.",
        AT_ONCE,
        choices=("true", "false"),
    )
    managedLedgerOffloadProfile: str = text(
        "name", "Profile of the AWS files. Without it boto3 searches its default chain of credentials.", AT_ONCE
    )
    managedLedgerOffloadCredentialProvider: str = text(
        "module:function",
        "Function that returns a session or credentials for an address. The broker calls it; it precedes all "
        "other sources of credentials.",
        AT_ONCE,
    )
    s3ManagedLedgerOffloadRole: str = text("ARN", "Role to assume with the found credentials.", AT_ONCE)
    s3ManagedLedgerOffloadRoleSessionName: str = text("name", "Session name of that role.", AT_ONCE)
    managedLedgerOffloadEncryption: str = text(
        "AES256 or aws:kms",
        "Server-side encryption of objects. Empty: the bucket's default.",
        AT_ONCE,
        choices=("AES256", "aws:kms"),
    )
    managedLedgerOffloadKmsKey: str = text("ARN", "Key for aws:kms, if not the bucket's own.", AT_ONCE)
    managedLedgerOffloadBucketOwner: str = text(
        "account", "Account of twelve digits: every request fails if another account owns the bucket.", AT_ONCE
    )
    managedLedgerOffloadTransform: str = text(
        "module:function",
        "Function from the bytes of an entry to the offloaded bytes. The broker calls it for each entry. It must "
        "return an entry.",
        AT_ONCE,
    )
    managedLedgerDataReadPriority: str = text(
        "bookkeeper-first or tiered-storage-first",
        "Source of reads for a segment that is both local and in object storage. Empty: the local disk, which "
        "costs no request. Pulsar's default is tiered-storage-first.",
        AT_ONCE,
        choices=("bookkeeper-first", "tiered-storage-first"),
    )
