"""The settings of offloading and of what is read back: a part of `ledger.settings.broker`, whose rules they follow."""

from __future__ import annotations

from pyspark_ledger.ledger.settings.setting import Setting, TextSetting

_MB = 1024 * 1024
_SECONDS_MAX = 2**31 - 1

OFFLOAD_SETTINGS: dict[str, Setting] = {
    "managedLedgerOffloadThresholdInSeconds": Setting(
        "seconds",
        -1,
        _SECONDS_MAX,
        "A ledger is offloaded so long after it was sealed; -1: not by its age. Must be below the time of retention.",
    ),
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": Setting(
        "bytes",
        -1,
        2**62,
        "A ledger is offloaded when it and all sealed after it have more bytes than this; 0: as soon as it is sealed; "
        "-1: not by size. Must be below the size of retention.",
    ),
    "managedLedgerOffloadDeletionLagMs": Setting(
        "milliseconds",
        -1,
        10 * 365 * 24 * 3_600_000,
        "So long after it was offloaded the local copy of a ledger is deleted; -1: never.",
    ),
    "managedLedgerOffloadMaxThreads": Setting(
        "threads", 1, 64, "Blocks that are uploaded at once; ledgers go one after another."
    ),
    "managedLedgerOffloadReadThreads": Setting(
        "threads", 1, 256, "Ranges that are fetched from object storage at once, of all readers."
    ),
    "managedLedgerOffloadReadBufferSizeInBytes": Setting(
        "bytes",
        64 * 1024,
        256 * _MB,
        "One range that is fetched. Pulsar's 1 MiB makes sixteen times as many requests; S3 is fastest at 8 to 16 MiB.",
    ),
    "managedLedgerOffloadReadCacheSizeMB": Setting(
        "MiB",
        1,
        1024 * 1024,
        "Ranges that are kept, read ahead and those that readers are at, of all offloaded ledgers together.",
    ),
    "managedLedgerOffloadFineIndex": Setting(
        "switch",
        0,
        1,
        "1: the place of every entry is uploaded as one more object, so that nobody has to scan a block for an entry.",
    ),
}

OFFLOAD_TEXT_SETTINGS: dict[str, TextSetting] = {
    "managedLedgerOffloadBucket": TextSetting(
        "address",
        "Where sealed ledgers are offloaded to: s3://bucket[/prefix], file:///path or a directory. Without it none is.",
        live=True,
    ),
    "managedLedgerOffloadServiceEndpoint": TextSetting(
        "url", "The endpoint of an S3 that is not Amazon's, http:// or https://.", live=True
    ),
    "managedLedgerOffloadRegion": TextSetting("region", "The region of the bucket.", live=True),
    "managedLedgerOffloadPathStyle": TextSetting(
        "true or false",
        "Whether the bucket stands in the path of a request and not in its host. Unless said, where an endpoint is "
        "named.",
        live=True,
        choices=("true", "false"),
    ),
    "managedLedgerOffloadProfile": TextSetting(
        "name", "A profile of the AWS files. Without it boto3 looks for credentials as it does everywhere.", live=True
    ),
    "managedLedgerOffloadCredentialProvider": TextSetting(
        "module:function",
        "A function that answers a session or credentials for an address, called in the broker; before all others.",
        live=True,
    ),
    "s3ManagedLedgerOffloadRole": TextSetting("ARN", "A role to assume with the credentials found.", live=True),
    "s3ManagedLedgerOffloadRoleSessionName": TextSetting("name", "What such a session is called.", live=True),
    "managedLedgerOffloadEncryption": TextSetting(
        "AES256 or aws:kms",
        "How the server is to encrypt objects, where the bucket does not say so.",
        live=True,
        choices=("AES256", "aws:kms"),
    ),
    "managedLedgerOffloadKmsKey": TextSetting("ARN", "The key for aws:kms, if not the bucket's own.", live=True),
    "managedLedgerOffloadBucketOwner": TextSetting(
        "account", "Twelve digits: every request fails if the bucket is not theirs.", live=True
    ),
    "managedLedgerOffloadTransform": TextSetting(
        "module:function",
        "A function of the bytes of an entry to those that are offloaded, called in the broker for each. It must give "
        "an entry for an entry.",
        live=True,
    ),
    "managedLedgerDataReadPriority": TextSetting(
        "bookkeeper-first or tiered-storage-first",
        "Where a ledger is read from that is here and in object storage. Unless said, here: a local disk costs nothing "
        "to read. Pulsar's default is the other.",
        live=True,
        choices=("bookkeeper-first", "tiered-storage-first"),
    ),
}
