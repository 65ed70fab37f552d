"""Discovery of the broker of a store in a bucket: its address in the manifest, its token in a secret object.

The *manifest* names the present broker of a store in a bucket. Each new broker raises a number in it, the *epoch*.

    manifest                    {"broker": {"address": "grpc+tls://HOST:PORT", "process": …, "secret": "secret/…"}}
    secret/<epoch>-<nonce>      {"token": …, "authority": PEM, "crc32c": …}, put once by a broker with own certificates
    <directory>/remote.token    the token, in the local directory of a client; mode 0600
    <directory>/remote.ca.pem   the certificate of the authority that signed the broker's certificate

Rules
- A process that can read the bucket can read the secret, and can use the store through its broker.
- A broker puts its secret before the manifest names it. A client that does not find the secret reads the manifest
  again.
- No log line, error or `repr` contains a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt, NotFound
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.objects.from_settings import home_bucket
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.ownership import require_trusted
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.wal.bucket import secret_key
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.requests import RequestLimits, read_manifest, repeated

TOKEN_FILE, AUTHORITY_FILE = "remote.token", "remote.ca.pem"
OWN_CERTIFICATES = "tls"
"""Folder in a broker's local directory with the certificates, the key and the token that the broker made."""
_SECRET_BYTES_MAX = 64 * 1024
_READS = 3


class BrokerSecret(msgspec.Struct, frozen=True):
    """Token of a broker, and the certificate of the authority that signed the broker's certificate."""

    token: str
    authority: str
    crc32c: int | None = None

    def __repr__(self) -> str:
        return "BrokerSecret(…)"


class NamedBroker(NamedTuple):
    """Broker that the manifest names. `secret` is None if the broker made no certificates of its own."""

    store_id: str
    address: str
    process: str
    secret: BrokerSecret | None


_SECRET = msgspec.json.Decoder(BrokerSecret)


def encode_secret(secret: BrokerSecret) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(secret, crc32c=_sum_of(secret)))


def decode_secret(data: bytes, where: str) -> BrokerSecret:
    """Return the secret. Raises Corrupt with the object's name only."""
    try:
        secret = _SECRET.decode(data)
    except JSON_FAULTS:
        secret = None
    if secret is None or secret.crc32c != _sum_of(secret):
        raise Corrupt(f"{where} is no secret of a broker, or is damaged", hint="Restart the broker: it puts another")
    return secret


def put_secret(bucket: ObjectStore, manifest: StoreManifest, secret: BrokerSecret, limits: RequestLimits) -> str:
    """Put the secret of the broker that has this manifest. Return the key of the object."""
    key, data = secret_key(manifest.epoch, manifest.nonce), encode_secret(secret)

    def put() -> None:
        try:
            bucket.put(key, data, only_new=True)
        except AlreadyExists:  # an earlier attempt succeeded, and its answer was lost
            if bucket.get(key, _SECRET_BYTES_MAX).data != data:
                raise

    repeated(put, limits)
    return key


def named_broker(bucket: ObjectStore, limits: RequestLimits) -> NamedBroker | None:
    """Return the broker that the manifest names. Raises NotFound without a store, and Corrupt for a wrong object."""
    for attempt in range(_READS):
        manifest = read_manifest(bucket, limits).manifest
        broker = manifest.broker
        if broker is None:
            return None
        if not broker.secret:
            return NamedBroker(manifest.store_id, broker.address, broker.process, None)
        key = broker.secret
        try:
            found = repeated(lambda: bucket.get(key, _SECRET_BYTES_MAX), limits)  # noqa: B023 — called at once
        except NotFound:
            if attempt + 1 == _READS:
                raise
            continue
        secret = decode_secret(found.data, f"{key} of {bucket.address}")
        return NamedBroker(manifest.store_id, broker.address, broker.process, secret)
    return None


def keep_secret(directory: Path, secret: BrokerSecret) -> tuple[Path, Path]:
    """Write the authority and the token to files that only this user can read. Return both paths."""
    require_trusted(directory)
    disk.make_directory(directory)
    authority, token = directory / AUTHORITY_FILE, directory / TOKEN_FILE
    disk.replace_file(authority, secret.authority.encode())
    disk.replace_file(token, secret.token.encode())
    return authority, token


@contextmanager
def opened_bucket(address: str, access: S3Options) -> Iterator[ObjectStore]:
    """Open the bucket of a store. boto3 searches for what `access` does not name, as for the credentials."""
    settings = Settings(managedLedgerOffloadBucket=f"{address}/segments")
    with closing(home_bucket(settings, access)) as bucket:
        yield bucket


def _sum_of(secret: BrokerSecret) -> int:
    return crc32c(msgspec.json.encode(msgspec.structs.replace(secret, crc32c=None)))
