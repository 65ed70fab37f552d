"""Store for asyncio: `ledger.api.store`, awaited.

async with connect("./ledger-store") as store:
    orders = await store.ledger("orders")
    await orders.append([{"id": 1, "total": 9.5}])
    async for batch in orders.follow(): ...
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, overload

from pyspark_ledger.ledger.aio.calls import Calls, Opening, Twin, awaited
from pyspark_ledger.ledger.aio.cursor import JoinedCursor
from pyspark_ledger.ledger.aio.ledger import Ledger, PartitionedLedger, ledger_of
from pyspark_ledger.ledger.api import store as api
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.ledgers import Policies
from pyspark_ledger.ledger.rows.row_type import Row


def connect(
    store: str | os.PathLike[str] | None = None,
    *,
    create: bool = True,
    ca: str = "",
    certificate: str = "",
    key: str = "",
    token: str = "",
) -> Opening[LedgerStore]:
    """Connect to a store in the running event loop. `pyspark_ledger.connect` explains the arguments.

    async with connect() as store: ...
    store = await connect(); await store.close()
    """
    return Opening(
        _connected(
            partial(api.connect, store, create=create, ca=ca, certificate=certificate, key=key, token=token),
        )
    )


async def _connected(connects: Any) -> LedgerStore:
    calls = Calls()
    try:
        return LedgerStore(calls, await calls.start(connects))
    except BaseException:
        calls.end()
        raise


class LedgerStore(Twin):
    """Store and its ledgers, as `pyspark_ledger.LedgerStore`. It belongs to the event loop that connected it."""

    twin: api.LedgerStore

    names = awaited(api.LedgerStore.names)
    delete = awaited(api.LedgerStore.delete)

    def __repr__(self) -> str:
        return f"<async LedgerStore {self.location}>"

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def location(self) -> str:
        """Directory of the store, or the address of its bucket or its broker."""
        return self.twin.location

    async def close(self) -> None:
        """Close the connection of the store, and all producers that its ledgers have opened. Ends its threads.

        A repeated call has no further effect.
        """
        if self.calls.ended:
            return
        try:
            await self.calls.start(self.twin.close)
        finally:
            self.calls.end()

    async def offload_to(self, address: str | os.PathLike[str], *, check: bool = True, **options: str) -> None:
        """Set the bucket or directory to which the broker copies sealed segments. See docs/tiered-storage.md."""
        await self.calls.start(partial(self.twin.offload_to, address, check=check, **options))

    async def namespace_policy(self, namespace: str, forget: Iterable[str] = (), **values: int) -> Policies:
        """Set and remove policies of a namespace, `tenant/namespace`. Return all its policies."""
        return await self.calls.start(partial(self.twin.namespace_policy, namespace, forget, **values))

    @overload
    def ledger(self, name: str) -> Opening[Ledger]: ...

    @overload
    def ledger(self, name: str, row_class: type[Row]) -> Opening[Ledger[Row]]: ...

    def ledger(self, name: str, row_class: type[Row] | None = None) -> Opening[Ledger[Row]]:
        """Return a ledger, or a `PartitionedLedger` if it has partitions. The first append creates a missing ledger."""
        return Opening(self._ledger(partial(self.twin.ledger, name, row_class)))

    def cursor(
        self,
        name: str,
        ledgers: Iterable[str] | None = None,
        ledgers_pattern: str | None = None,
        start: Position | Mapping[str, Position] = EARLIEST,
    ) -> Opening[JoinedCursor[dict[str, Any]]]:
        """Return the durable cursor of this name in several ledgers, in a list or in all that match a pattern."""
        return Opening(self._cursor(partial(self.twin.cursor, name, ledgers, ledgers_pattern, start)))

    def create(
        self, name: str, *, deduplication: bool = False, durability: Literal["fsync", "os"] = "fsync"
    ) -> Opening[Ledger]:
        """Create a ledger with options that an append cannot set. Raises AlreadyExists if the name is in use."""
        creates = partial(self.twin.create, name, deduplication=deduplication, durability=durability)
        return Opening(self._ledger(creates))

    def create_partitioned(
        self,
        name: str,
        partitions: int,
        *,
        deduplication: bool = False,
        durability: Literal["fsync", "os"] = "fsync",
    ) -> Opening[PartitionedLedger]:
        """Create a ledger with partitions, or return the existing ledger with this number of partitions."""
        creates = partial(
            self.twin.create_partitioned, name, partitions, deduplication=deduplication, durability=durability
        )
        return Opening(self._ledger(creates))

    async def _ledger(self, opens: Any) -> Any:
        return ledger_of(self.calls, await self.calls.start(opens))

    async def _cursor(self, opens: Any) -> JoinedCursor[dict[str, Any]]:
        return JoinedCursor(self.calls, await self.calls.start(opens))
