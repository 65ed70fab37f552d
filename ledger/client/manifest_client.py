"""Client of a store in a bucket whose broker runs with another local directory, on this host or another host.

Rules
- The *manifest* is the object that names the store's broker. The client reads it only if the directory's own broker
  does not answer. So a client of the directory's own broker sends nothing to the bucket.
- The client does not try a broker of this host whose process has ended. It does not try a broker of another host that
  accepts only clients of its own host.
- A broker that makes its own certificate puts a *secret* into the bucket: an object with a token and the certificate.
  The client then uses this object. Otherwise it uses the credentials that the caller gave.
- A Spark task starts no broker. If its broker does not answer, the task reads the manifest if it can. It then uses the
  broker that the manifest names, with the token of that broker.
- An error of the bucket is only logged. The caller then starts a broker, and the broker reports the same error.
"""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unauthenticated, Unavailable
from pyspark_ledger.ledger.location import bucket_directory, bucket_of
from pyspark_ledger.ledger.ownership import is_gone, machine_id
from pyspark_ledger.ledger.transport.bucket_discovery import NamedBroker, keep_secret, named_broker, opened_bucket
from pyspark_ledger.ledger.transport.tokens import is_loopback
from pyspark_ledger.ledger.wal.requests import RequestLimits

_PROBE_MS, _PAUSE_MS = 2_000, 200
_TAKING_OVER_MS = 3_000
_REQUESTS = RequestLimits(deadline_ms=5_000, refused_ms=0)
_log = logging.getLogger(__name__)


def manifest_client(
    directory: Path, credentials: Credentials | None, deadline_ms: int, wait_ms: int = 0
) -> Client | None:
    """Return a client of the broker that the manifest names. Return None if no broker answers within `wait_ms`.

    Raises Unauthenticated if the broker answers, and does not trust the client.
    """
    started = monotonic_ms()
    while True:
        named = _named(directory, credentials)
        client = None if named is None else _answering(named, directory, credentials, deadline_ms)
        # If the manifest names no broker, the last broker has ended. Another broker may be starting.
        most_ms = wait_ms if named is not None else min(wait_ms, _TAKING_OVER_MS)
        if client is not None or monotonic_ms() - started >= most_ms:
            return client
        pause(_PAUSE_MS)


def follow_broker(client: Client, bucket: str) -> None:
    """Let the client of a task continue with the next broker of a store in a bucket.

    If the task cannot read the bucket, or no next broker answers, the client keeps its address.
    """
    credentials = client.credentials

    def revive() -> str:
        try:
            found = manifest_client(bucket_directory(bucket), credentials, client.deadline_ms)
        except (LedgerError, OSError) as error:
            _log.info("the next broker of %s is not found: %s", bucket, error)
            return client.address
        if found is None or found.address == client.address:
            return client.address
        _log.info("the broker of %s has moved from %s to %s", bucket, client.address, found.address)
        return client.follow(found)

    client.can_move, client.revive = True, revive


def _answering(
    named: NamedBroker | None, directory: Path, credentials: Credentials | None, deadline_ms: int
) -> Client | None:
    last: NamedBroker | None = None
    while named is not None and _is_reachable(named):
        client = _client_of(named, directory, credentials, deadline_ms)
        try:
            client.hello(deadline_ms=_PROBE_MS)
        except (Unavailable, Refused):  # no broker, or the broker of another store
            return None
        except Unauthenticated:
            if named == last:
                raise
            # The next broker at the same address may have put another secret into the bucket.
            last, named = named, _named(directory, credentials)
        else:
            return client
    return None


def _named(directory: Path, credentials: Credentials | None) -> NamedBroker | None:
    try:
        with opened_bucket(bucket_of(directory), (credentials or Credentials()).bucket) as bucket:
            return named_broker(bucket, _REQUESTS)
    except LedgerError as error:
        _log.info("the broker of %s is not found by its manifest: %s", bucket_of(directory), error)
        return None


def _is_reachable(named: NamedBroker) -> bool:
    here = named.process.split("/")[0] == machine_id()
    if here:
        return not is_gone(named.process)
    return not named.address.startswith("grpc+unix://") and not is_loopback(urlsplit(named.address).hostname or "")


def _client_of(named: NamedBroker, directory: Path, credentials: Credentials | None, deadline_ms: int) -> Client:
    if named.secret is not None:
        authority, token = keep_secret(directory, named.secret)
        credentials = Credentials(str(authority), token=f"file:{token}", bucket=(credentials or Credentials()).bucket)
    elif named.address.startswith("grpc+unix://"):
        credentials = Credentials(bucket=(credentials or Credentials()).bucket)
    place = bucket_of(directory)
    return Client(named.address, named.store_id, credentials=credentials, deadline_ms=deadline_ms, place=place)
