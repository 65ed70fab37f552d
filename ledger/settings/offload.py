"""Settings of offloads (copies of sealed segments in object storage), and of reads from object storage.

A segment is one file of a ledger; a sealed segment never changes.
"""

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
    """Offloading: when, to which bucket, with which credentials, and how offloaded segments are read."""

    managedLedgerOffloadThresholdInSeconds: int = whole(
        -1,
        "seconds",
        -1,
        INT_MAX,
        "A segment is offloaded this long after it was sealed. -1: no segment is offloaded by age. The value must be "
        "below defaultRetentionTimeInMinutes, unless that setting is -1. Reason: retention would otherwise delete a "
        "segment before its offload.",
    )
    managedLedgerOffloadAutoTriggerSizeThresholdBytes: int = whole(
        -1,
        "bytes",
        -1,
        2**62,
        "The newest sealed segments, up to this many bytes together, are not offloaded. All older segments are "
        "offloaded. 0: a segment is offloaded when it is sealed. -1: no segment is offloaded by size. The value must "
        "be below defaultRetentionSizeInMB, unless that setting is -1. Reason: retention would otherwise delete a "
        "segment before its offload.",
    )
    managedLedgerOffloadDeletionLagMs: int = whole(
        4 * 3600 * 1000,
        "milliseconds",
        -1,
        TEN_YEARS_SECONDS * 1000,
        "The local copy of a segment is deleted this long after its offload. -1: it is not deleted.",
    )
    managedLedgerOffloadMaxThreads: int = whole(
        2, "threads", 1, 64, "Number of blocks that are uploaded at once. Segments are uploaded one after another."
    )
    managedLedgerOffloadReadThreads: int = whole(
        4, "threads", 1, 256, "Number of ranges that are fetched from object storage at once, for all readers together."
    )
    managedLedgerOffloadReadBufferSizeInBytes: int = whole(
        16 * MIB,
        "bytes",
        64 * 1024,
        256 * MIB,
        "Size of one range that is fetched from object storage. S3 is fastest at 8 to 16 MiB. Pulsar's default of 1 "
        "MiB needs sixteen times as many requests.",
    )
    managedLedgerOffloadReadCacheSizeMB: int = whole(
        256,
        "MiB",
        1,
        1024 * 1024,
        "Limit of the memory for ranges that were fetched from object storage: prefetched ranges, and ranges in use.",
    )
    managedLedgerOffloadFineIndex: int = switch(
        1,
        "1: an additional object with the location of every entry is uploaded. A reader then finds an entry without a "
        "scan of its block.",
    )
    managedLedgerOffloadBucket: str = text(
        "address",
        "Bucket or directory to which segments are offloaded: s3://bucket[/prefix], file:///path or a path. Empty: "
        "nothing is offloaded.",
        AT_ONCE,
        risk="sends the rows of ledgers to another bucket, or writes them into another directory",
    )
    managedLedgerOffloadServiceEndpoint: str = text(
        "url",
        "Endpoint of an S3-compatible service, http:// or https://.",
        AT_ONCE,
        risk="sends rows and signed requests to another service",
    )
    managedLedgerOffloadRegion: str = text(
        "region", "Region of the bucket.", AT_ONCE, risk="sends rows and signed requests to another host"
    )
    managedLedgerOffloadPathStyle: str = text(
        "true or false",
        "true: the bucket is in the path of a request's URL. false: it is in the host name. Empty: true if an "
        "endpoint is set.",
        AT_ONCE,
        choices=("true", "false"),
        risk="sends rows and signed requests to another host",
    )
    managedLedgerOffloadProfile: str = text(
        "name",
        "Profile in the AWS configuration files. Empty: boto3 searches its default chain of credentials.",
        AT_ONCE,
        risk="uses another identity of the owner, or runs another `credential_process` of the owner's files",
    )
    managedLedgerOffloadCredentialProvider: str = text(
        "module:function",
        "Function that the broker calls with the address. It returns a boto3 session or credentials, which replace "
        "all other sources of credentials.",
        risk="runs code as the owner",
    )
    s3ManagedLedgerOffloadRole: str = text(
        "ARN",
        "Role that the broker assumes with its credentials.",
        AT_ONCE,
        risk="uses another identity that the owner may assume",
    )
    s3ManagedLedgerOffloadRoleSessionName: str = text(
        "name",
        "Name of the session with which the broker assumes s3ManagedLedgerOffloadRole.",
        AT_ONCE,
        risk="appears as another session in the logs of AWS, and may meet other rules of the role",
    )
    managedLedgerOffloadEncryption: str = text(
        "AES256 or aws:kms",
        "Server-side encryption of objects. Empty: the bucket's default.",
        AT_ONCE,
        choices=("AES256", "aws:kms"),
        risk="stores rows without the encryption that the owner chose",
    )
    managedLedgerOffloadKmsKey: str = text(
        "ARN", "Key for aws:kms. Empty: the bucket's key.", AT_ONCE, risk="encrypts rows with a key of another account"
    )
    managedLedgerOffloadBucketOwner: str = text(
        "account",
        "AWS account of twelve digits that owns the bucket. A request fails if another account owns the bucket.",
        AT_ONCE,
        risk="sends rows to the bucket of another account",
    )
    managedLedgerOffloadTransform: str = text(
        "module:function",
        "Function that the broker calls with the bytes of each entry before the upload. It returns the bytes of the "
        "entry to upload.",
        risk="runs code as the owner",
    )
    managedLedgerDataReadPriority: str = text(
        "bookkeeper-first or tiered-storage-first",
        "Source of reads of a segment that is both on the local disk and in object storage. bookkeeper-first and "
        "empty: the local disk, which costs no request. Pulsar's default is tiered-storage-first.",
        AT_ONCE,
        choices=("bookkeeper-first", "tiered-storage-first"),
    )
