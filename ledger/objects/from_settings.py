"""Object storage that the settings of a broker name: its options, the home bucket of a store, the check of an address.

A store in a bucket has its log and its segments in its *home bucket*. A segment is one file of a ledger.

Rules
- The offload settings also apply to the home bucket: endpoint, region, profile, role, encryption.
- boto3 does not retry requests of the write-ahead log. Reason: only the log knows which requests may be repeated.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark_ledger.ledger.objects.address import ObjectAddress
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.settings.broker import Settings

CONNECTIONS = 64
"""Connections to a home bucket. The probe of a new store uses all of them at once."""
_READ_MS = 20_000
_ADVICE = (
    "The broker has the environment of the process that started it, and that process's options of Spark: "
    "offloadEndpoint, offloadRegion, offloadProfile and credentialProvider=file:/path. To give it another environment, "
    "run `ledger stop`, and use the store from a process with that environment, which then starts a broker"
)


def require_address(settings: Settings) -> None:
    """Raise Refused if the settings name an address for offloads that is no address of object storage."""
    if settings.managedLedgerOffloadBucket:
        ObjectAddress.parse(settings.managedLedgerOffloadBucket)


def s3_options_of(settings: Settings) -> S3Options:
    """Return the options of S3 access from the broker's settings for offloads."""
    style = settings.managedLedgerOffloadPathStyle
    return S3Options(
        endpoint=settings.managedLedgerOffloadServiceEndpoint,
        region=settings.managedLedgerOffloadRegion,
        path_style=None if not style else style == "true",
        profile=settings.managedLedgerOffloadProfile,
        role=settings.s3ManagedLedgerOffloadRole,
        credential_provider=settings.managedLedgerOffloadCredentialProvider,
        encryption=settings.managedLedgerOffloadEncryption,  # type: ignore[arg-type]  # S3Options refuses other values
        kms_key=settings.managedLedgerOffloadKmsKey,
        bucket_owner=settings.managedLedgerOffloadBucketOwner,
        advice=_ADVICE,
    )


def home_bucket(settings: Settings, access: S3Options | None = None) -> ObjectStore:
    """Return the bucket of the store. Segments are offloaded to the folder `segments` of this bucket.

    `access` replaces the access that the settings name.
    """
    address = settings.managedLedgerOffloadBucket.removesuffix("/segments")
    options = access or s3_options_of(settings)
    return open_object_store(address, replace(options, connections=CONNECTIONS, attempts=1, read_timeout_ms=_READ_MS))
