"""`serve(spark)`: a broker on the driver's host for executors on other hosts. Its store is the session's default.

Rules
- The credentials of executors are created for this broker and deleted with it. Spark ships the certificates to the
  executors, and the driver makes tokens for each read and write. The driver's own token stays in a file on its host.
- An executor that can read the broker's token file is on the broker's host. It reads the store's files itself. The
  broker sends the data to every other executor by Arrow Flight, a network protocol for Arrow's tables.
- The broker lives as long as the session's process, which sends a heartbeat. Without the heartbeat the broker exits
  after its idle time. If the broker is killed, it is restarted at the same port.
- The directory of the store stays when the broker exits. If the platform deletes the disk with the cluster, a warning
  is printed once.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_ledger.connector.read.ledger.subscription import Heartbeat
from pyspark_ledger.connector.session.default_store import DefaultStore, default_store, session_store, set_default_store
from pyspark_ledger.connector.session.ephemeral_disk import dies_with_its_machine
from pyspark_ledger.connector.spark_features import is_connect
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.location import bucket_of, location_text, store_location
from pyspark_ledger.ledger.ownership import run_directory
from pyspark_ledger.ledger.protocol.actions import StopBroker
from pyspark_ledger.ledger.transport.certificates import EphemeralCertificates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_ledger.ledger.api.store import LedgerStore
    from pyspark_ledger.ledger.client.client import Client


_BEAT_SECONDS = 30.0


class ServedStore:
    """Broker that was started for a session. `options` has the options with which the driver reaches the broker."""

    def __init__(
        self,
        client: Client,
        address: str,
        directory: Path,
        tls: EphemeralCertificates,
        before_stop: Callable[[], object] = lambda: None,
    ) -> None:
        self.address = address
        self.directory = directory
        self.options: Mapping[str, str] = {
            "tlsTrustCertsFilePath": str(tls.file("ca.pem")),
            "tlsCertificateFilePath": str(tls.file("client.pem")),
            "tlsKeyFilePath": str(tls.file("client.key")),
            "authParams": f"file:{tls.file('token')}",
        }
        self._client = client
        self._tls = tls
        self._before_stop = before_stop
        self._heartbeat: Heartbeat | None = Heartbeat(lambda: _beat(client), f"broker at {address}", _BEAT_SECONDS)
        atexit.register(self.stop)

    def __repr__(self) -> str:
        return f"Served({self.address!r}, {location_text(self.directory)!r})"

    def connect(self) -> LedgerStore:
        """Return the store without Spark, on this host."""
        from pyspark_ledger.ledger.api.store import connect

        return connect(self.directory)

    def stop(self) -> None:
        """Stop the broker. Queries that use it end with an error. The store stays."""
        if self._heartbeat is None:
            return
        self._heartbeat.stop()
        self._heartbeat = None
        atexit.unregister(self.stop)
        self._before_stop()
        try:
            self._client.ask(StopBroker(), deadline_ms=0)
        except LedgerError as gone:
            print(f"pyspark-ledger: the broker at {self.address} had ended: {gone}", file=sys.stderr)  # noqa: T201
        self._client.close()
        shutil.rmtree(self._tls.directory, ignore_errors=True)


def serve_session(
    spark: SparkSession, store: str | os.PathLike[str] | None, host: str | None, port: int
) -> ServedStore:
    """Start the broker and ship its certificates. The caller sets the default store to `address` and `options`."""
    if is_connect(spark):
        raise Refused(
            "serve() starts a broker on the driver's host, and a client of Spark Connect does not run there",
            hint="Run `ledger serve` on that host, or set the store to a directory of that host",
        )
    location = store_location(session_store(spark, store))
    if "://" in location:
        raise Refused(
            f"{location} is a broker's address already", hint="configure(spark, store=…) makes it the default"
        )
    if not bucket_of(Path(location)):
        warn_of_short_life(Path(location))
    context: Any = spark.sparkContext
    called = host or context.getConf().get("spark.driver.host") or socket.getfqdn()
    directory = Path(tempfile.mkdtemp(prefix="tls-", dir=run_directory()))
    try:
        tls = EphemeralCertificates.make(directory, called)
        address = f"grpc+tls://{called}:{port or _free_port(called)}"
        client = _start(Path(location), address, tls)
    except LedgerError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    for name in ("ca.pem", "client.pem", "client.key"):
        context.addFile(str(tls.file(name)))
    former = default_store(spark)
    return ServedStore(client, address, Path(location), tls, lambda: _leave(spark, former))


def _leave(spark: SparkSession, former: DefaultStore) -> None:
    """Wait for the last acknowledgements, and restore the default store. Called before the broker stops."""
    from pyspark_ledger.connector.session.commit_listener import settle

    with suppress(Exception):  # the session may have stopped already
        settle(spark)
        set_default_store(spark, former)


def warn_of_short_life(store: Path) -> None:
    """Warn once if a store's disk is deleted with its cluster."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    what = dies_with_its_machine(store, mounts)
    if what:
        _say_once(
            f"pyspark-ledger: the store {store} is on {what}, which is deleted with the cluster. Use a store in a "
            "bucket or a volume that stays, run the broker on a separate host, or offload the store before the end "
            "(docs/clusters.md)"
        )


@lru_cache(maxsize=32)
def _say_once(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # a notebook shows standard error


def _start(store: Path, address: str, tls: EphemeralCertificates) -> Client:
    from pyspark_ledger.ledger.client.connect import serve_store

    config = tls.directory / "broker.toml"
    config.write_text(
        f'bindAddress = "{address}"\n'
        f'tlsCertificateFilePath = "{tls.file("broker.pem")}"\n'
        f'tlsKeyFilePath = "{tls.file("broker.key")}"\n'
        f'tlsTrustCertsFilePath = "{tls.file("ca.pem")}"\n'
        f'authenticationTokens = "file:{tls.file("token")}"\n',
        encoding="utf-8",
    )
    return serve_store(store, ["--config", str(config)])


def _beat(client: Client) -> None:
    client.hello()


def _free_port(host: str) -> int:
    """Return a free port. It is chosen before the broker starts, because a restarted broker must use the same port."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
            found: int = probe.getsockname()[1]
    except OSError as error:
        raise Refused(
            f"no broker can listen at {host!r}: {error.strerror}",
            hint="Set `host` to the name by which executors reach this host",
        ) from None
    return found
