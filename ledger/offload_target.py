"""Where a store offloads to, told to its broker: the settings of one bucket, set together.

    store.offload_to("s3://history/flights", region="eu-central-1")
    store.offload_to("s3://history", endpoint="http://127.0.0.1:9000", credential_provider="mine:credentials")

Rules: nothing here is a secret: credentials are named by reference, and found by the broker. What is not given goes
back to what the broker is configured with.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.protocol import ChangeSetting

if TYPE_CHECKING:
    from ledger.broker.client import Client

# The bucket last: with it everything is there that it needs.
_SETTINGS = {
    "endpoint": "managedLedgerOffloadServiceEndpoint",
    "region": "managedLedgerOffloadRegion",
    "profile": "managedLedgerOffloadProfile",
    "role": "s3ManagedLedgerOffloadRole",
    "credential_provider": "managedLedgerOffloadCredentialProvider",
    "encryption": "managedLedgerOffloadEncryption",
    "kms_key": "managedLedgerOffloadKmsKey",
    "bucket_owner": "managedLedgerOffloadBucketOwner",
    "address": "managedLedgerOffloadBucket",
}


def offload_to(client: Client, address: str | os.PathLike[str], **options: str) -> None:
    """Let a broker offload to an address from now on; the names of the options are those above."""
    unknown = sorted(set(options) - set(_SETTINGS))
    if unknown:
        message = f"offload_to() knows no {unknown}, only {sorted(set(_SETTINGS) - {'address'})}"
        raise TypeError(message)
    place = os.fspath(address)
    # A directory is the caller's: the broker has another one of its own.
    given = {**options, "address": place if "://" in place or not place else str(Path(place).absolute())}
    for name, setting in _SETTINGS.items():
        client.call("settings.change", ChangeSetting(setting, given.get(name) or None))
