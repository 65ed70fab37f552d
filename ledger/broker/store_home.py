"""Home of a store: where its broker finds the store, keeps it, and leaves it for the next broker.

    home          kept in                                  announced in
    directory     <store>/metadata.sqlite and ledgers/     <store>/broker.json
    bucket        manifest, snapshot, write-ahead log      the same file of the local cache, and the manifest

The *manifest* is the object of a bucket that names the store's broker. A broker goes one way through its home:

    settings, listening ─▶ find ─▶ open ─▶ announced ─▶ begin ─▶ check_fenced ─▶ settle ─▶ close
    nothing is changed     │       │                    │        └ the broker leaves
                           │       └ the earlier broker loses the store
                           └ changed settings; a bucket: a missing store is created

Invariants
- Nothing of an earlier broker ends before `open`. So a broker with wrong settings or addresses leaves it running.
- `begin` comes after the servers answer calls. So a client that reads the address elsewhere reaches a broker.
- Entries become durable through the durability (`ledger.log.durability`) that the home gives its store at `open`.
- Nobody but the home asks where the store is kept.

What a crash leaves, after
- `find`: a bucket may have a new, empty store without a broker.
- `open`: a raised epoch. The next broker raises it again, and finds every acknowledged entry.
- `begin`: an address that nobody serves. The next broker sees that this process is gone; on another host, it waits.
- `close`: nothing. The next broker of a bucket takes the store over at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pyspark_ledger.ledger.broker.bucket_home import BucketHome
from pyspark_ledger.ledger.broker.listening import Listening
from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.location import bucket_of
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store, Watch
from pyspark_ledger.ledger.tiering.offloader_choice import OffloaderChoice
from pyspark_ledger.ledger.transport.discovery import BrokerRecord


class StoreHome(Protocol):
    """Home of one store. A broker calls the methods in the order in which they stand here."""

    @property
    def settings(self) -> Settings:
        """The configured settings, with those that follow from the home."""

    def listening(self, address: str) -> Listening | None:
        """Return the address for calls with its credentials. Raises Refused if the broker must not listen there.

        None: the broker listens only at its private socket.
        """

    def find(self) -> LiveSettings:
        """Return the settings with the changes that clients made. Raises Refused if the stored changes are invalid."""

    def open(self, live: LiveSettings, offloader: OffloaderChoice, watch: Watch) -> None:
        """Take the store over from an earlier broker, and open it. See `Store.open` for `watch` and the errors."""

    @property
    def store(self) -> Store:
        """The open store."""

    def announced(self, record: BrokerRecord, port: int) -> BrokerRecord:
        """Return the record `broker.json` with the address for other hosts. `port` is the port of the first server."""

    def begin(self) -> None:
        """Name the broker to clients that do not read `broker.json`, and start the tasks that the home needs."""

    def check_fenced(self) -> None:
        """End the process if a broker of another directory has taken the store over. Called before the end."""

    def settle(self) -> None:
        """Accept no further appends, and complete the queued appends."""

    def close(self) -> None:
        """Close the store, and let the next broker take it over at once."""


class DirectoryHome:
    """Home of a store that is its directory. The lock of the directory keeps other brokers out."""

    def __init__(
        self, directory: Path, settings: Settings, change: OwnerChange | None, *, create: bool, clock: Clock
    ) -> None:
        self.settings = settings
        self.store: Store
        self._directory, self._change, self._create, self._clock = directory, change, create, clock

    def listening(self, address: str) -> Listening | None:
        return Listening.of(address, self.settings) if address else None

    def find(self) -> LiveSettings:
        return LiveSettings.load(self._directory, self.settings)

    def open(self, live: LiveSettings, offloader: OffloaderChoice, watch: Watch) -> None:
        self.store = Store.open(
            self._directory,
            settings=live.now,
            clock=self._clock,
            create=self._create,
            take_over=self._change,
            offloader=offloader,
            watch=watch,
        )

    def announced(self, record: BrokerRecord, port: int) -> BrokerRecord:  # noqa: ARG002 — the record has the port
        return record

    def begin(self) -> None:
        """Do nothing: clients read `broker.json`."""

    def check_fenced(self) -> None:
        """Do nothing: the lock of the directory keeps other brokers out."""

    def settle(self) -> None:
        self.store.settle()

    def close(self) -> None:
        self.store.close()


def home_of(
    directory: Path, settings: Settings, change: OwnerChange | None, *, create: bool, clock: Clock
) -> StoreHome:
    """Return the home of the store with this local directory.

    `change` says why the store belongs to another broker, host or place. With `create`, a missing store is created.
    """
    kind = BucketHome if bucket_of(directory) else DirectoryHome
    return kind(directory, settings, change, create=create, clock=clock)
