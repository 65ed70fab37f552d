"""Settings of offloads (copies of sealed segments in object storage), and of reads from object storage.

A segment is one file of a ledger; a sealed segment never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import (
    AT_ONCE,
    INT_MAX,
    TEN_YEARS_SECONDS,
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
        "below defaultRetentionTimeInMinutes, unless that setting is -1.",
        user="everybody who offloads",
    )
    managedLedgerOffloadAutoTriggerSizeThresholdBytes: int = whole(
        -1,
        "bytes",
        -1,
        2**62,
        "All sealed segments are offloaded, except the newest, up to this many bytes together. 0: a segment is "
        "offloaded when it is sealed. -1: no segment is offloaded by size. The value must be below "
        "defaultRetentionSizeInMB, unless that setting is -1.",
        user="everybody who offloads when a disk fills",
    )
    managedLedgerOffloadDeletionLagMs: int = whole(
        4 * 3600 * 1000,
        "milliseconds",
        -1,
        TEN_YEARS_SECONDS * 1000,
        "The local copy of a segment is deleted this long after its offload. -1: it is not deleted.",
        user="operators of a small disk, or of readers that come late",
    )
    managedLedgerOffloadReadCacheSizeMB: int = whole(
        256,
        "MiB",
        1,
        1024 * 1024,
        "Limit of the memory for ranges that were fetched from object storage.",
        user="operators of a host with little or much memory",
    )
    managedLedgerOffloadBucket: str = text(
        "address",
        "Bucket or directory to which segments are offloaded: s3://bucket[/prefix], file:///path or a path. Empty: "
        "nothing is offloaded.",
        AT_ONCE,
        risk="sends the rows of ledgers to another bucket, or writes them into another directory",
        user="everybody who offloads",
    )
    managedLedgerOffloadServiceEndpoint: str = text(
        "url",
        "Endpoint of an S3-compatible service, http:// or https://.",
        AT_ONCE,
        risk="sends rows and signed requests to another service",
        user="users of MinIO, Ceph or another S3 service",
    )
    managedLedgerOffloadRegion: str = text(
        "region",
        "Region of the bucket.",
        AT_ONCE,
        risk="sends rows and signed requests to another host",
        user="users of a bucket in another region",
    )
    managedLedgerOffloadPathStyle: str = text(
        "true or false",
        "true: the bucket is in the path of a request's URL. false: it is in the host name. Empty: true if an "
        "endpoint is set.",
        AT_ONCE,
        choices=("true", "false"),
        risk="sends rows and signed requests to another host",
        user="users of a service that refuses one of the two styles",
    )
    managedLedgerOffloadProfile: str = text(
        "name",
        "Profile in the AWS configuration files. Empty: boto3 searches its default chain of credentials.",
        AT_ONCE,
        risk="uses another identity of the owner, or runs another `credential_process` of the owner's files",
        user="users with several identities of AWS",
    )
    managedLedgerOffloadCredentialProvider: str = text(
        "module:function",
        "Function that the broker calls with the address. It returns a boto3 session or credentials, and replaces all "
        "other sources.",
        risk="runs code as the owner",
        user="companies with credentials of their own",
    )
    s3ManagedLedgerOffloadRole: str = text(
        "ARN",
        "Role that the broker assumes with its credentials.",
        AT_ONCE,
        risk="uses another identity that the owner may assume",
        user="users of a bucket that another role reaches",
    )
    managedLedgerOffloadEncryption: str = text(
        "AES256 or aws:kms",
        "Server-side encryption of objects. Empty: the bucket's default.",
        AT_ONCE,
        choices=("AES256", "aws:kms"),
        risk="stores rows without the encryption that the owner chose",
        user="owners of a bucket whose default is too weak",
    )
    managedLedgerOffloadKmsKey: str = text(
        "ARN",
        "Key for aws:kms. Empty: the bucket's key.",
        AT_ONCE,
        risk="encrypts rows with a key of another account",
        user="owners of a key for these rows",
    )
    managedLedgerOffloadBucketOwner: str = text(
        "account",
        "AWS account of twelve digits that owns the bucket. A request fails if another account owns the bucket.",
        AT_ONCE,
        risk="sends rows to the bucket of another account",
        user="operators who guard against a bucket of the same name",
    )
    managedLedgerDataReadPriority: str = text(
        "bookkeeper-first or tiered-storage-first",
        "Source of reads of a segment that is on the local disk and in object storage. bookkeeper-first and empty: "
        "the local disk. Pulsar's default is tiered-storage-first.",
        AT_ONCE,
        choices=("bookkeeper-first", "tiered-storage-first"),
        user="operators whose disk is slower than object storage",
    )
