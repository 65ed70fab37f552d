"""What is done to a ledger as a whole: how long it is kept, what it is called to mind by, its end.

    orders.set_policy(retentionTimeInMinutes=7 * 24 * 60, retentionSizeInMB=10_240)
    orders.trim()                                   # what the policy lets go, now; the broker does it by itself, too
    orders.change_properties({"owner": "billing"})
    orders.offload(seal=True)                       # to object storage, where the store says (`store.offload_to(…)`)
    orders.terminate()                              # readers see the end, nothing is appended any more

Rules: every call is durable when it returns, and may be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import NameLedger
from pyspark_ledger.ledger.protocol.ledgers import (
    ChangePolicy,
    ChangeProperties,
    OffloadPrefix,
    OffloadStatus,
    SealLedger,
    SealReply,
)
from pyspark_ledger.ledger.protocol.reads import SeekTime

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.protocol.ledgers import Policies, TrimReply


_ASK_MS = 100


class LedgerAdmin:
    """The calls about one managed ledger that neither append nor read."""

    client: Client
    name: str

    def policy(self) -> Policies:
        """The policies that it states, those of its namespace, and what counts."""
        return change_policy(self.client, ChangePolicy(self.name))

    def set_policy(self, **values: int) -> Policies:
        """Set policies by their names; they go before the namespace's and the broker's, from now on."""
        return change_policy(self.client, ChangePolicy(self.name, values=values))

    def forget_policy(self, *names: str) -> Policies:
        """Go by the namespace, or else the broker, again."""
        return change_policy(self.client, ChangePolicy(self.name, forget=list(names)))

    def trim(self) -> TrimReply:
        """Delete what the policy lets go and no cursor needs; without a policy that is nothing."""
        done: TrimReply = self.client.call("trim", NameLedger(self.name))
        return done

    def offload(self, until: Position | None = None, *, seal: bool = False, wait: bool = True) -> OffloadStatus:
        """Copy sealed ledgers before a position, all without one, to object storage; with `seal` the open one, too.

        Raises Refused when no bucket is configured, Unavailable when one of them could not be copied.
        """
        found: OffloadStatus = self.client.call("offload", OffloadPrefix(self.name, until, seal=seal))
        while wait and found.state in ("waiting", "running"):
            pause(_ASK_MS)
            found = self.offload_status()
        if wait and found.failure:
            raise Unavailable(f"{self.name!r} is not offloaded from {found.first_left} on: {found.failure}")
        return found

    def offload_status(self) -> OffloadStatus:
        """How far the last offload is, and what is in object storage."""
        found: OffloadStatus = self.client.call("offload.status", NameLedger(self.name))
        return found

    def seal(self, older_than_ms: int = 0) -> bool:
        """Seal what is being written, if it is at least so old; False where there is nothing. Appends go on."""
        found: SealReply = self.client.call("seal", SealLedger(self.name, older_than_ms))
        return found.sealed

    def terminate(self) -> Position:
        """End it for good. The position of its last entry, `(-1, -1)` when it never had one."""
        last: Position = self.client.call("terminate", NameLedger(self.name)).position
        return last

    def change_properties(self, values: Mapping[str, str], remove: Collection[str] = ()) -> dict[str, str]:
        """Set properties and remove others; answers all there are then."""
        request = ChangeProperties(self.name, dict(values), list(remove))
        kept: dict[str, str] = self.client.call("properties", request).properties
        return kept

    def position_at(self, timestamp_ms: int) -> Position:
        """The first position whose entry the broker took at or after a time; the end when there is none."""
        found: Position = self.client.call("seek", SeekTime(self.name, timestamp_ms)).position
        return found


def change_policy(client: Client, request: ChangePolicy) -> Policies:
    """Set and forget policies of a ledger or namespace; without either, look at them."""
    found: Policies = client.call("policy", request)
    return found
