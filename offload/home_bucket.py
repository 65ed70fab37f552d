"""Access to the home bucket of a store: the bucket that contains the store's log and segments.

The package `ledger` must not depend on `offload`. So the broker imports this module only when it needs a bucket, by the
module's name. A segment is one file of a ledger.

Rules
- The offload settings also apply to this bucket: endpoint, region, profile, role, encryption.
- boto3 does not retry requests of the write-ahead log. Reason: only the log knows which requests may be repeated.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark_ledger.ledger.bucket_store.probe import CONNECTIONS
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.offload.offloader import s3_options_of
from pyspark_ledger.offload.storage.factory import open_object_store
from pyspark_ledger.offload.storage.object_store import ObjectStore

_READ_MS = 20_000


def home_bucket(settings: Settings) -> ObjectStore:
    """Return the bucket of the store. Segments are offloaded to the folder `segments` of this bucket."""
    address = settings.managedLedgerOffloadBucket.removesuffix("/segments")
    options = s3_options_of(settings)
    connections = max(options.connections + 2 * settings.bucketPutsInFlight, CONNECTIONS)
    return open_object_store(address, replace(options, connections=connections, attempts=1, read_timeout_ms=_READ_MS))
