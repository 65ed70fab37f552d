"""Store without Spark: connect to it, create and list its ledgers, set policies and the bucket for offloads.

A *segment* is one file of a ledger. A *cursor* is the durable position of one reader.

    store = connect("./ledger-store")
    orders = store.ledger("orders")
    orders.append([{"id": 1, "total": 9.5}])
    orders.read()                               # a pyarrow.Table of all rows
    for batch in orders.follow(): ...           # the existing rows, then new rows
    billing = orders.cursor("billing")
    table, position = billing.read()
    billing.acknowledge(position)

    store.offload_to("s3://history/flights", region="eu-central-1")
    store.offload_to("s3://history", endpoint="http://127.0.0.1:9000", profile="history")

Rules of `offload_to`
- A call sets all settings of the bucket. A setting without an argument gets the value of the broker's configuration.
- No argument is a secret, and none names code: a credential provider is set in the broker's settings file only. The
  broker itself reads the credentials, for example from the files of AWS.
- The broker tries the address first: it writes, reads, lists and deletes a small object. `check=False` skips the trial.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from pyspark_ledger.ledger.api.handle import Handle, closed_client, is_closed
from pyspark_ledger.ledger.api.joined_cursor import JoinedCursor, open_cursor, select
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.ledger_admin import change_policy
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.views import store_view
from pyspark_ledger.ledger.client.schemas import require_fits
from pyspark_ledger.ledger.client.unclosed import warn_unclosed
from pyspark_ledger.ledger.consumer.lease import renewals_of
from pyspark_ledger.ledger.display.ledger_picture import store_html, store_text
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import location_text, store_location
from pyspark_ledger.ledger.names import canonical_name, require_partitions
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, CreateLedger, DeleteLedger, ListLedgers
from pyspark_ledger.ledger.protocol.ledgers import AskPartitions, ChangePolicy
from pyspark_ledger.ledger.rows.row_type import Row, RowType

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.protocol.ledgers import Policies


_SETTINGS = {
    "endpoint": "managedLedgerOffloadServiceEndpoint",
    "region": "managedLedgerOffloadRegion",
    "profile": "managedLedgerOffloadProfile",
    "role": "s3ManagedLedgerOffloadRole",
    "encryption": "managedLedgerOffloadEncryption",
    "kms_key": "managedLedgerOffloadKmsKey",
    "bucket_owner": "managedLedgerOffloadBucketOwner",
    "address": "managedLedgerOffloadBucket",
}
_PROVIDER = "managedLedgerOffloadCredentialProvider"


def offload_to(client: Client, address: str | os.PathLike[str], *, check: bool = True, **options: str) -> None:
    """Set the address to which a broker offloads segments. `options` have the names in `_SETTINGS`.

    If the trial fails, raises its error and changes no setting.
    """
    if "credential_provider" in options:
        raise Refused(
            "offload_to() takes no credential_provider: no call names code that the broker runs",
            hint=f"Set {_PROVIDER} in a file, and start the broker with ledger serve --config FILE",
        )
    unknown = sorted(set(options) - set(_SETTINGS))
    if unknown:
        message = f"offload_to() has no options {unknown}, only {sorted(set(_SETTINGS) - {'address'})}"
        raise TypeError(message)
    place = os.fspath(address)
    # A relative path is made absolute, because the broker has another working directory.
    given = {**options, "address": place if "://" in place or not place else str(Path(place).absolute())}
    settings: dict[str, int | str | None] = {setting: given.get(name) or None for name, setting in _SETTINGS.items()}
    address_setting = _SETTINGS["address"]
    request = ChangeSetting(address_setting, settings.pop(address_setting), settings, trial=check)
    client.ask(request)


def connect(
    store: str | os.PathLike[str] | None = None,
    *,
    create: bool = True,
    ca: str = "",
    certificate: str = "",
    key: str = "",
    token: str = "",
) -> LedgerStore:
    """Connect to a store without Spark. Close the store, or use `with`.

        with connect() as store:
            store.ledger("orders").append([{"id": 1}])

    A store that is not closed gives a ResourceWarning when its connection is freed, as a file does.

    `store` is a directory, a bucket `s3://…` or a broker's address. For a directory or a bucket, the call starts a
    broker if none runs. With `create` it also creates a missing store.

    For an address `grpc+tls://…`, `ca` is the file of the authority that has signed the broker's certificate.
    `certificate` and `key` are the client's files. `token` is a reference: `file:/path` or `env:NAME`.
    """
    opened = open_store(store, create=create, ca=ca, certificate=certificate, key=key, token=token)
    opened.client.unclosed = warn_unclosed(opened.client, f"ledger store {opened.location}")
    return opened


def open_store(
    store: str | os.PathLike[str] | None, *, create: bool, ca: str, certificate: str, key: str, token: str
) -> LedgerStore:
    """Connect to a store, as `connect` does, for a process that ends with its use of the store. Gives no warning."""
    from pyspark_ledger.ledger.client.connect import connect_store
    from pyspark_ledger.ledger.client.credentials import Credentials

    credentials = Credentials(ca, certificate, key, token)
    location = store_location(store)
    client = connect_store(location, create=create, start=True, credentials=credentials)
    return LedgerStore(client, location_text(location))


class LedgerStore(Handle):
    """Store and its ledgers. `location` is its directory, or the address of its bucket or its broker."""

    def __init__(self, client: Client, location: str = "") -> None:
        self.client = client
        self.location = location or client.address

    def __repr__(self) -> str:
        return store_text(store_view(self.client, self.location))

    def _repr_html_(self) -> str:
        """Return the picture of the store for a notebook."""
        return store_html(store_view(self.client, self.location))

    def close(self) -> None:
        """Close the connection of the store, and all producers that its ledgers have opened.

        Waits until the messages of the producers are durable, and raises the error of a producer. Ledgers, cursors and
        streams of the store refuse later calls. The broker and its files are not affected.
        """
        client, name = self.client, f"the store {self.location}"
        self.client = closed_client(name)
        if not is_closed(client):
            renewals_of(client).drop_all()  # of loops that nobody closed
            client.retire(name)

    def names(self) -> list[str]:
        """Return the full names of all ledgers, sorted."""
        return self.client.ask(ListLedgers()).names

    def offload_to(self, address: str | os.PathLike[str], *, check: bool = True, **options: str) -> None:
        """Set the bucket or directory to which the broker copies sealed segments. See docs/tiered-storage.md.

        `options` are `endpoint`, `region`, `profile`, `role`, `encryption`, `kms_key` and `bucket_owner`. A missing
        option gets the broker's value. Only the broker's own user may call this, on the broker's host: Unauthenticated
        otherwise.

        With `check` the broker tries the address first. If the trial fails, no setting is changed. The trial raises
        Refused if no server answers, NotFound if there is no such bucket, and Unauthenticated if rights are missing.
        """
        offload_to(self.client, address, check=check, **options)

    @overload
    def ledger(self, name: str) -> Ledger: ...

    @overload
    def ledger(self, name: str, row_class: type[Row]) -> Ledger[Row]: ...

    def ledger(self, name: str, row_class: type[Row] | None = None) -> Ledger[Row]:
        """Return a ledger, or a `PartitionedLedger` if it has partitions. The first append creates a missing ledger.

        With `row_class`, the ledger takes and yields objects of this class: a msgspec Struct, a dataclass, a TypedDict
        or a pydantic model. Raises Refused if the class does not fit the registered columns. See docs/rows.md.
        """
        name = canonical_name(name)
        row_type = None if row_class is None else RowType(row_class)
        if row_type is not None:
            require_fits(self.client.ask, row_type, name)
        if self.client.ask(AskPartitions(name)).partitions:
            return PartitionedLedger(self.client, name, row_type)
        return Ledger(self.client, name, row_type)

    def cursor(
        self,
        name: str,
        ledgers: Iterable[str] | None = None,
        ledgers_pattern: str | None = None,
        start: Position | Mapping[str, Position] = EARLIEST,
    ) -> JoinedCursor:
        """Return the durable cursor of this name in several ledgers. Create those that do not exist, at `start`.

            worker = store.cursor("worker", ledgers=["orders", "rides"])
            worker = store.cursor("worker", ledgers_pattern="orders-.*")

        Give the names of the ledgers, or a regular expression that matches the whole short name. A partitioned ledger
        has one name for all of its partitions. A pattern leaves out the ledgers of the cursor's own dead letters. While
        a loop runs, ledgers that begin to match join it with their first row.

        `start` is EARLIEST, LATEST, or a mapping of a ledger's or partition's name to its position. Raises NotFound for
        a missing ledger, and if none matches.
        """
        return open_cursor(self, select(ledgers, ledgers_pattern), name, start)

    def create(self, name: str, *, deduplication: bool = False, durability: Literal["fsync", "os"] = "fsync") -> Ledger:
        """Create a ledger with options that an append cannot set. Raises AlreadyExists if the name is in use.

        With `deduplication`, a message that a producer sends again is stored once. A producer is identified by its
        name. With `durability="os"`, an append returns before its entry is synced to the device. A loss of power can
        then lose the entries of the open segment.
        """
        name = canonical_name(name)
        self.client.ask(CreateLedger(name, deduplication=deduplication, durability=durability))
        return Ledger(self.client, name)

    def create_partitioned(
        self,
        name: str,
        partitions: int,
        *,
        deduplication: bool = False,
        durability: Literal["fsync", "os"] = "fsync",
    ) -> PartitionedLedger:
        """Create a ledger with partitions, or return the existing ledger with this number of partitions.

        Raises AlreadyExists if a ledger of this name has another number of partitions.
        """
        name = canonical_name(name)
        require_partitions(partitions)
        request = CreateLedger(
            name, exist_ok=True, partitions=partitions, deduplication=deduplication, durability=durability
        )
        self.client.ask(request)
        return PartitionedLedger(self.client, name)

    def delete(self, name: str) -> None:
        """Delete a ledger with its partitions and cursors. This cannot be undone."""
        self.client.ask(DeleteLedger(canonical_name(name)))

    def namespace_policy(self, namespace: str, forget: Iterable[str] = (), **values: int) -> Policies:
        """Set and remove policies of a namespace, `tenant/namespace`. Return all its policies."""
        request = ChangePolicy(namespace, namespace=True, values=values, forget=list(forget))
        return change_policy(self.client, request)
