"""The ledger without Spark: append rows, read them, follow them, keep a place among them.

store = connect("./ledger-store")
orders = store.ledger("orders")
orders.append([{"id": 1, "total": 9.5}])
orders.read()                               # a pyarrow.Table of everything
for table in orders.tail(): ...             # what is there, then what comes
billing = orders.cursor("billing")
table, position = billing.read()
billing.acknowledge(position)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ledger.errors import Refused
from ledger.ledger import Ledger
from ledger.ledger_life import change_policy
from ledger.life_calls import ChangePolicy
from ledger.names import canonical_name
from ledger.offload_target import offload_to
from ledger.partitioned_ledger import PartitionedLedger
from ledger.partitions import require_partitions
from ledger.protocol import CreateLedger, Empty, NameLedger
from ledger.store_location import is_address, store_location

if TYPE_CHECKING:
    from ledger.broker.client import Client
    from ledger.life_calls import Policies


def connect(
    store: str | os.PathLike[str] | None = None,
    *,
    create: bool = True,
    ca: str = "",
    certificate: str = "",
    key: str = "",
    token: str = "",
) -> LedgerStore:
    """A store: a directory (its broker started if need be, itself made if `create`) or a broker's address.

    With an address `grpc+tls://…`: `ca` is the file of the authority that the broker's certificate is checked with,
    `certificate` and `key` are the client's files, `token` says where its token is, `file:/path` or `env:NAME`.
    """
    from ledger.broker.credentials import Credentials
    from ledger.broker.embedded import connect_store

    credentials = Credentials(ca, certificate, key, token)
    return LedgerStore(connect_store(store_location(store), create=create, start=True, credentials=credentials))


def open_read_only(store: str | os.PathLike[str] | None = None) -> LedgerStore:
    """A store's directory on this host, for reading: no broker is needed and none is started, nothing is changed."""
    from ledger.read_only_store import ReadOnlyStore

    location = store_location(store)
    if is_address(location):
        raise Refused(f"{location!r} is a broker's address", hint="Name the store's directory to read it without one")
    return LedgerStore(ReadOnlyStore(Path(location)))  # type: ignore[arg-type]  # the calls that read, no others


class LedgerStore:
    """A store and the ledgers in it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __repr__(self) -> str:
        return f"LedgerStore({self.client.address})"

    def names(self) -> list[str]:
        """The canonical names of all ledgers, sorted."""
        names: list[str] = self.client.call("list", Empty()).names
        return names

    def offload_to(self, address: str | os.PathLike[str], **options: str) -> None:
        """Let sealed ledgers be offloaded to a bucket or directory from now on: see `ledger.offload_target`."""
        offload_to(self.client, address, **options)

    def ledger(self, name: str) -> Ledger:
        """A ledger, the whole of it if it is partitioned. Nothing is created before its first append."""
        name = canonical_name(name)
        if self.client.call("partitions", NameLedger(name)).partitions:
            return PartitionedLedger(self.client, name)
        return Ledger(self.client, name)

    def create(self, name: str, *, deduplication: bool = False, durability: Literal["fsync", "os"] = "fsync") -> Ledger:
        """Create a ledger that has what an append would not give it; refused when there is one of the name.

        With `deduplication` a message that a producer of the same name sends again is not written again. With a
        `durability` of "os" an append returns before the device has it: a loss of power loses what is not sealed.
        """
        name = canonical_name(name)
        self.client.call("create", CreateLedger(name, deduplication=deduplication, durability=durability))
        return Ledger(self.client, name)

    def create_partitioned(
        self,
        name: str,
        partitions: int,
        *,
        deduplication: bool = False,
        durability: Literal["fsync", "os"] = "fsync",
    ) -> PartitionedLedger:
        """Create a ledger with partitions; one that has as many already is answered as it is."""
        name = canonical_name(name)
        require_partitions(partitions)
        request = CreateLedger(
            name, exist_ok=True, partitions=partitions, deduplication=deduplication, durability=durability
        )
        self.client.call("create", request)
        return PartitionedLedger(self.client, name)

    def delete(self, name: str) -> None:
        """Delete a ledger with its partitions and cursors, for good."""
        self.client.call("delete", NameLedger(canonical_name(name)))

    def namespace_policy(self, namespace: str, forget: Iterable[str] = (), **values: int) -> Policies:
        """Set and forget policies for every ledger of a namespace, `tenant/namespace`; without either, look."""
        request = ChangePolicy(namespace, namespace=True, values=values, forget=list(forget))
        return change_policy(self.client, request)
