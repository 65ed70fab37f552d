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
        "A ledger is offloaded so long after it was sealed; -1: not by its age. Must be below the time of retention.",
    )
    managedLedgerOffloadAutoTriggerSizeThresholdBytes: int = whole(
        -1,
        "bytes",
        -1,
        2**62,
        "A ledger is offloaded when it and all sealed after it have more bytes than this; 0: as soon as it is sealed; "
        "-1: not by size. Must be below the size of retention.",
    )
    managedLedgerOffloadDeletionLagMs: int = whole(
        4 * 3600 * 1000,
        "milliseconds",
        -1,
        TEN_YEARS_SECONDS * 1000,
        "The local copy of a ledger is deleted so long after it was offloaded; -1: never.",
    )
    managedLedgerOffloadMaxThreads: int = whole(
        2, "threads", 1, 64, "Blocks that are uploaded at once. Ledgers are uploaded one after another."
    )
    managedLedgerOffloadReadThreads: int = whole(
        4, "threads", 1, 256, "Ranges that are fetched from object storage at once, for all readers."
    )
    managedLedgerOffloadReadBufferSizeInBytes: int = whole(
        16 * MIB,
        "bytes",
        64 * 1024,
        256 * MIB,
        "Size of one range that is fetched. Pulsar's 1 MiB makes sixteen times as many requests; S3 is fastest at 8 to "
        "16 MiB.",
    )
    managedLedgerOffloadReadCacheSizeMB: int = whole(
        256,
        "MiB",
        1,
        1024 * 1024,
        "Fetched ranges that are kept, for all offloaded ledgers together: those ahead of readers and those that "
        "readers are at.",
    )
    managedLedgerOffloadFineIndex: int = switch(
        1,
        "1: the place of every entry is uploaded as one more object, so that no reader scans a block for an entry.",
    )
    managedLedgerOffloadBucket: str = text(
        "address",
        "Where sealed ledgers are offloaded to: s3://bucket[/prefix], file:///path or a directory. Empty: nothing is "
        "offloaded.",
        AT_ONCE,
    )
    managedLedgerOffloadServiceEndpoint: str = text(
        "url", "The endpoint of an S3 that is not Amazon's, http:// or https://.", AT_ONCE
    )
    managedLedgerOffloadRegion: str = text("region", "The region of the bucket.", AT_ONCE)
    managedLedgerOffloadPathStyle: str = text(
        "true or false",
        "Whether the bucket stands in the path of a request and not in its host. Empty: true if an endpoint is named.",
        AT_ONCE,
        choices=("true", "false"),
    )
    managedLedgerOffloadProfile: str = text(
        "name", "A profile of the AWS files. Without it boto3 looks for credentials as it does everywhere.", AT_ONCE
    )
    managedLedgerOffloadCredentialProvider: str = text(
        "module:function",
        "A function that returns a session or credentials for an address. The broker calls it; it goes before all "
        "other sources of credentials.",
        AT_ONCE,
    )
    s3ManagedLedgerOffloadRole: str = text("ARN", "A role to assume with the credentials found.", AT_ONCE)
    s3ManagedLedgerOffloadRoleSessionName: str = text("name", "The name of the session of that role.", AT_ONCE)
    managedLedgerOffloadEncryption: str = text(
        "AES256 or aws:kms",
        "How the server encrypts objects. Empty: as the bucket says.",
        AT_ONCE,
        choices=("AES256", "aws:kms"),
    )
    managedLedgerOffloadKmsKey: str = text("ARN", "The key for aws:kms, if not the bucket's own.", AT_ONCE)
    managedLedgerOffloadBucketOwner: str = text(
        "account", "Twelve digits: every request fails if another account owns the bucket.", AT_ONCE
    )
    managedLedgerOffloadTransform: str = text(
        "module:function",
        "A function from the bytes of an entry to the bytes that are offloaded. The broker calls it for each entry. It "
        "must return an entry.",
        AT_ONCE,
    )
    managedLedgerDataReadPriority: str = text(
        "bookkeeper-first or tiered-storage-first",
        "Where a ledger is read from that is both local and in object storage. Empty: the local disk, which costs "
        "nothing to read. Pulsar's default is tiered-storage-first.",
        AT_ONCE,
        choices=("bookkeeper-first", "tiered-storage-first"),
    )
