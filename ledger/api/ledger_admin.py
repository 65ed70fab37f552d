"""Administration of a ledger: retention, properties, offload, termination.

    orders.set_policy(retentionTimeInMinutes=7 * 24 * 60, retentionSizeInMB=10_240)
    orders.trim()                                   # apply the retention now; the broker also does so in the background
    orders.change_properties({"owner": "billing"})
    orders.offload(seal=True)                       # to the store's object storage (`store.offload_to(…)`)
    orders.terminate()                              # readers see the end, and appends are refused

Rules: every call is durable when it returns, and may be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pyspark_ledger.ledger.clock import HOST_ZONE, pause
from pyspark_ledger.ledger.display.amounts import size_words
from pyspark_ledger.ledger.display.progress_bar import progress_bar
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.names import short_name
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
from pyspark_ledger.ledger.times import Time, require_time

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.protocol.ledgers import Policies, TrimReply


_ASK_MS = 100
_ACTIVE = ("waiting", "running")


class LedgerAdmin:
    """Calls about one managed ledger that neither append nor read."""

    client: Client
    name: str

    def policy(self) -> Policies:
        """Return the ledger's policies, those of its namespace, and the effective ones."""
        return change_policy(self.client, ChangePolicy(self.name))

    def set_policy(self, **values: int) -> Policies:
        """Set policies by their names. They override the namespace's and the broker's from now on."""
        return change_policy(self.client, ChangePolicy(self.name, values=values))

    def forget_policy(self, *names: str) -> Policies:
        """Remove policies. The namespace's or the broker's apply again."""
        return change_policy(self.client, ChangePolicy(self.name, forget=list(names)))

    def trim(self) -> TrimReply:
        """Delete the segments that the retention allows and no cursor needs; none without a policy."""
        done: TrimReply = self.client.call("trim", NameLedger(self.name))
        return done

    def offload(
        self, until: Position | None = None, *, seal: bool = False, wait: bool = True, progress: bool = False
    ) -> OffloadStatus:
        """Copy sealed segments before a position to object storage, all without a position; with `seal` the open one
        too. With `progress` a bar is shown while the call waits.

        Raises Refused if no bucket is configured, Unavailable if a segment could not be copied.
        """
        found: OffloadStatus = self.client.call("offload", OffloadPrefix(self.name, until, seal=seal))
        if wait:
            found = await_offload(self.client, found, progress=progress)
        if wait and found.failure:
            raise Unavailable(f"{self.name!r} is not offloaded from {found.first_left} on: {found.failure}")
        return found

    def offload_status(self) -> OffloadStatus:
        """Return the progress of the last offload, and what is in object storage."""
        found: OffloadStatus = self.client.call("offload.status", NameLedger(self.name))
        return found

    def seal(self, older_than_ms: int = 0) -> bool:
        """Seal the open segment if it is old enough. Return False if there is none. Appends continue."""
        found: SealReply = self.client.call("seal", SealLedger(self.name, older_than_ms))
        return found.sealed

    def terminate(self) -> Position:
        """Terminate the ledger. Return the position of its last entry, `(-1, -1)` if it never had one."""
        last: Position = self.client.call("terminate", NameLedger(self.name)).position
        return last

    def change_properties(self, values: Mapping[str, str], remove: Collection[str] = ()) -> dict[str, str]:
        """Set properties and remove others. Return all of them."""
        request = ChangeProperties(self.name, dict(values), list(remove))
        kept: dict[str, str] = self.client.call("properties", request).properties
        return kept

    def position_at(self, time: Time) -> Position:
        """Return the first position whose entry the broker stored at or after a time; the end if there is none.

        The time is milliseconds since 1970, a datetime, or text such as `2026-11-22T10:15:00Z`. Without a zone it is in
        the host's local zone. Raises Refused for any other time.
        """
        milliseconds = require_time("the time", time, HOST_ZONE)
        found: Position = self.client.call("seek", SeekTime(self.name, milliseconds)).position
        return found


def await_offload(client: Client, found: OffloadStatus, *, progress: bool) -> OffloadStatus:
    """Wait until an offload is no more active. Return its status. With `progress` a bar is shown meanwhile."""
    if found.state not in _ACTIVE:
        return found
    with progress_bar(f"offload {short_name(found.name)}", shown=progress) as bar:
        while True:
            segment = f", segment {found.left[0]}" if found.left else ""
            words = f"{size_words(found.bytes_done)} of {size_words(found.bytes_total)}{segment}"
            bar.update(found.bytes_done / found.bytes_total if found.bytes_total else None, words)
            if found.state not in _ACTIVE:
                return found
            pause(_ASK_MS)
            found = client.call("offload.status", NameLedger(found.name))


def change_policy(client: Client, request: ChangePolicy) -> Policies:
    """Set and remove policies of a ledger or namespace. Without either, return them."""
    found: Policies = client.call("policy", request)
    return found
