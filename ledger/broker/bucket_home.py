"""Start and end of the broker of a store in a bucket.

The broker takes the store over from its earlier broker, opens it, and writes its own address to the bucket. When
another broker takes the store over, the log of this broker ends, and so does the broker. The *manifest* is the object
of the bucket that names the store's broker, its address and the changed settings.

    the earlier broker …                       this broker …
    ran on this host and has ended             takes the store over at once
    has no address in the manifest             takes the store over at once
    responds, or is alive on this host         refuses to start, and names the address
    is elsewhere and does not respond          waits `bucketTakeoverMs`, and takes over if the log got no new object

Rules
- Segments are offloaded to the bucket of the store when they are sealed.
- If another broker has taken the store over, this broker writes a mark into the local directory. Then it exits with
  status 0, so that its supervisor does not restart it.
- If the log ends for another reason, the supervisor restarts the broker.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.broker.listening import Listening
from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.broker.own_certificates import OwnCertificates
from pyspark_ledger.ledger.bucket_store.creation import found_or_created
from pyspark_ledger.ledger.bucket_store.home import BucketLimits, BucketStore
from pyspark_ledger.ledger.bucket_store.probe import probe_bucket
from pyspark_ledger.ledger.clock import Clock, monotonic_ms, new_id, pause, system_clock_ms
from pyspark_ledger.ledger.errors import Fenced, LedgerError, Refused
from pyspark_ledger.ledger.location import FENCED, bucket_of
from pyspark_ledger.ledger.objects.from_settings import home_bucket
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.ownership import OwnerChange, is_gone, machine_id, process_identity, restored_hint
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store, Watch
from pyspark_ledger.ledger.tiering.offloader_choice import OffloaderChoice
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.ledger.transport.tokens import is_loopback
from pyspark_ledger.ledger.wal.bucket import LOG_PREFIX, log_key
from pyspark_ledger.ledger.wal.fence import require_served
from pyspark_ledger.ledger.wal.manifest import BrokerAddress
from pyspark_ledger.ledger.wal.requests import FoundManifest, RequestLimits, read_manifest, repeated

_REACH_SECONDS = 2.0
_STEP_MS = 1_000
_OWN_PLACE = ("managedLedgerOffloadBucket", "managedLedgerOffloadServiceEndpoint")
_log = logging.getLogger(__name__)


def limits_of(settings: Settings) -> BucketLimits:
    """Return the limits of a store in a bucket from the settings."""
    requests = RequestLimits(flush_interval_ms=settings.bucketFlushIntervalMs)
    return BucketLimits(requests, cache_bytes=settings.bucketCacheBytes)


def settings_of(settings: Settings, address: str) -> Settings:
    """Return the settings with the bucket of the store as the target of all offloads."""
    return replace(
        settings,
        managedLedgerOffloadBucket=f"{address}/segments",
        managedLedgerOffloadAutoTriggerSizeThresholdBytes=0,
    )


def only_target(address: str, endpoint: str) -> Callable[[Settings], None]:
    """Return a check of the target of offloads.

    It refuses any target but the bucket of the store at its S3 endpoint.
    """

    def check(settings: Settings) -> None:
        wanted = settings_of(settings, address).managedLedgerOffloadBucket
        if settings.managedLedgerOffloadBucket != wanted:
            raise Refused(
                f"the store in {address} offloads to {wanted}, and not to {settings.managedLedgerOffloadBucket!r}",
                hint="Sealed segments of a store in a bucket are part of the store, so they stay in its bucket",
            )
        if settings.managedLedgerOffloadServiceEndpoint != endpoint:
            raise Refused(
                f"the store in {address} is at the endpoint {endpoint or 'of AWS'}, "
                f"and not at {settings.managedLedgerOffloadServiceEndpoint!r}",
                hint="To change the endpoint, stop the broker and start it with another configuration",
            )

    return check


class FoundStore(NamedTuple):
    """Store in a bucket before this broker takes the store over."""

    bucket: ObjectStore
    found: FoundManifest

    @classmethod
    def find(
        cls, bucket: ObjectStore, settings: Settings, change: OwnerChange | None = None, *, create: bool
    ) -> FoundStore:
        """Read the manifest. With `create`, create the store if there is none. Otherwise raises NotFound.

        Raises Refused if the objects were copied from another prefix, unless `change` says why.

        If S3 refuses the credentials, the request is not repeated. Reason: this broker has just read the
        credentials, so they are wrong. Later requests are repeated, because credentials can expire and be renewed.
        """
        limits = limits_of(settings)
        requests = replace(limits.requests, refused_ms=0)
        probe = partial(probe_bucket, encryption=settings.managedLedgerOffloadEncryption)
        found = found_or_created(
            bucket,
            system_clock_ms,
            requests,
            create=create,
            window=limits.window,
            probe=probe,
            of_any_home=change is not None,
        )
        return cls(bucket, found)

    def live_settings(self, configured: Settings) -> LiveSettings:
        """Return the configured settings, overridden by the changed settings in the manifest.

        The manifest cannot move the store's own bucket. Otherwise a writer of the bucket could send rows elsewhere.
        """
        changed = self.found.manifest.settings
        stored = {} if changed is msgspec.UNSET else changed
        return LiveSettings.of(
            configured,
            {name: value for name, value in stored.items() if name not in _OWN_PLACE},
            f"the manifest of {self.bucket.address}",
            "Start a broker of the version that wrote them, and reset them: ledger settings reset",
        )


def open_in_bucket(
    store: FoundStore, directory: Path, settings: Settings, change: OwnerChange | None, **options: Any
) -> BucketStore:
    """Take the store in a bucket over and open it. `options` are passed to `Store.open`.

    Raises Refused if another broker serves the store, unless `change` says why this broker takes it over. A copy gets a
    new id, once: the answer may be given again at the next start.
    """
    disk.skip_syncs()
    bucket, found = store
    limits = limits_of(settings)
    require_served(found.manifest, bucket.address, take_over=change is not None)
    if change is None:
        found = _unserved(bucket, found, limits.requests, settings.bucketTakeoverMs)
    lost: Callable[[LedgerError], None] = lambda error: _leave(directory, error)  # noqa: E731 — the type is stated
    has_own_id = found.manifest.home == bucket.address and found.manifest.former_ids
    if change is OwnerChange.MOVED:
        _log.warning("the store in %s was moved or restored. %s", bucket.address, restored_hint(bucket.address))
    options["is_restored"] = change is OwnerChange.MOVED
    options["new_id"] = new_id() if change is OwnerChange.COPIED and not has_own_id else ""
    return BucketStore(bucket, directory, found, system_clock_ms, limits, lost, settings=settings, **options)


class BucketHome:
    """Home of a store in a bucket. Its directory is a cache, and has no address for clients of other directories."""

    def __init__(
        self, directory: Path, settings: Settings, change: OwnerChange | None, *, create: bool, clock: Clock
    ) -> None:
        self.settings = settings_of(settings, bucket_of(directory))
        self._directory, self._change, self._create, self._clock = directory, change, create, clock
        self._found: FoundStore
        self._opened: BucketStore
        self._own: OwnCertificates | None = None
        self._address = ""

    @property
    def store(self) -> Store:
        return self._opened.store

    def listening(self, address: str) -> Listening | None:
        """Return the address with its credentials.

        The broker makes certificates itself, unless the settings name certificates, or it has no other address than
        its private socket.
        """
        self._own = OwnCertificates.of(address, self.settings, self._directory, self._clock)
        if self._own is not None:
            return self._own.listening
        return Listening.of(address, self.settings) if address else None

    def find(self) -> LiveSettings:
        """Read the manifest, and create a missing store if that is wanted. Return the settings with its changes."""
        bucket = home_bucket(self.settings)
        self._found = FoundStore.find(bucket, self.settings, self._change, create=self._create)
        return self._found.live_settings(self.settings)

    def open(self, live: LiveSettings, offloader: OffloaderChoice, watch: Watch) -> None:
        endpoint = live.now.managedLedgerOffloadServiceEndpoint
        live.before_change(only_target(bucket_of(self._directory), endpoint))
        self._opened = open_in_bucket(
            self._found, self._directory, live.now, self._change, offloader=offloader, watch=watch
        )
        live.keep_by(self._opened.keep_settings)

    def announced(self, record: BrokerRecord, port: int) -> BrokerRecord:
        """Return the record `broker.json` with the address for other hosts.

        If no address is configured, the broker listens at loopback, and the record has no address for other hosts.
        """
        if self._own is None:
            self._address = record.remote or record.address
            return record
        self._address = self._own.address(port)
        return msgspec.structs.replace(record, remote="" if self._own.is_default else self._address)

    def begin(self) -> None:
        """Write the broker's address, token and certificate authority to the bucket.

        Then start to delete objects of the bucket that no broker needs.
        """
        secret = None if self._own is None else self._own.secret()
        self._opened.begin(BrokerAddress(self._address, process_identity()), secret)

    def check_fenced(self) -> None:
        """End the process at once if the manifest names another broker.

        The next broker may use another directory of this host, which has its own lock. So the lock of this directory
        does not keep it from the path of the socket, which the shutdown of this broker removes.
        """
        self._opened.check_fenced()

    def settle(self) -> None:
        self._opened.settle()

    def close(self) -> None:
        self._opened.close()


def _leave(directory: Path, error: LedgerError) -> None:
    """End the process. Reason: after the end of the log, the broker must send no acknowledgement and no reply."""
    status = 1
    try:
        _log.error("the broker exits: %s", error)
        if isinstance(error, Fenced):
            status = 0
            (directory / FENCED).write_text(error.message, encoding="utf-8")
        logging.shutdown()
    finally:  # also if the mark cannot be written: the directory may be deleted, or its disk full
        os._exit(status)


def _unserved(bucket: ObjectStore, found: FoundManifest, limits: RequestLimits, takeover_ms: int) -> FoundManifest:
    """Return the manifest of a store that no other broker serves.

    If the manifest names a broker on another host, wait `takeover_ms` to find out whether that broker still writes.
    Raises Refused if another broker serves the store.
    """
    broker = found.manifest.broker
    if broker is None or is_gone(broker.process):
        return found
    hint = "Use the store from there, stop that broker, or run once: "
    hint += f"ledger serve --take-over broker --store {bucket.address}"
    if broker.process.split("/")[0] == machine_id() or _answers(broker.address):
        raise Refused(f"the store {bucket.address} is served at {broker.address} by {broker.process}", hint=hint)
    _log.info("waiting %d ms for a write of the broker %s at %s", takeover_ms, broker.process, broker.address)
    before, until = _newest(bucket, found, limits), monotonic_ms() + takeover_ms
    while monotonic_ms() < until:
        pause(min(_STEP_MS, takeover_ms))
        now = read_manifest(bucket, limits)
        if now.etag != found.etag or _newest(bucket, now, limits) != before:
            raise Refused(
                f"the store {bucket.address} is in use by {broker.process} at {broker.address}, which this host "
                "cannot reach",
                hint=hint,
            )
    return found


def _newest(bucket: ObjectStore, found: FoundManifest, limits: RequestLimits) -> str:
    """Return the key of the newest log object, or an empty text if there is none."""
    after = log_key(found.manifest.first - 1) if found.manifest.first else ""
    return repeated(lambda: max((listed.key for listed in bucket.objects(LOG_PREFIX, after=after)), default=""), limits)


def _answers(address: str) -> bool:
    """Return whether a broker on another host accepts connections. False for a loopback address of this host."""
    parts = urlsplit(address)
    if not parts.hostname or not parts.port or is_loopback(parts.hostname):
        return False
    try:
        socket.create_connection((parts.hostname, parts.port), _REACH_SECONDS).close()
    except OSError:
        return False
    return True
