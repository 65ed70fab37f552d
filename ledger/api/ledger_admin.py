"""Administration of a ledger: policies, properties, offload, sealing and termination.

    orders.set_policy(retentionTimeInMinutes=7 * 24 * 60, retentionSizeInMB=10_240)
    orders.trim()                                   # apply retention now; the broker also does this regularly
    orders.change_properties({"owner": "billing"})
    orders.offload(seal=True)                       # to the store's object storage (`store.offload_to(…)`)
    orders.terminate()                              # readers see the end, and appends are refused

A *segment* is one file of a ledger. A sealed segment never changes. To *offload* is to copy sealed segments to object
storage.

Rule: a change is durable when the call returns. A repeated call has no second effect.
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
from pyspark_ledger.ledger.protocol.ledgers import (
    AskOffload,
    ChangePolicy,
    ChangeProperties,
    OffloadPrefix,
    OffloadStatus,
    SealLedger,
    TerminateLedger,
    TrimLedger,
)
from pyspark_ledger.ledger.protocol.reads import SeekTime
from pyspark_ledger.ledger.times import Time, require_time

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.protocol.ledgers import Policies, TrimReply


_ASK_MS = 100
_ACTIVE = ("waiting", "running")


class LedgerAdmin:
    """Administrative calls about one managed ledger. `Ledger` inherits them."""

    client: Client
    name: str

    def policy(self) -> Policies:
        """Return the policies of the ledger, the policies of its namespace, and the effective policies."""
        return change_policy(self.client, ChangePolicy(self.name))

    def set_policy(self, **values: int) -> Policies:
        """Set policies of the ledger by name. They override the namespace's policies and the broker's settings."""
        return change_policy(self.client, ChangePolicy(self.name, values=values))

    def forget_policy(self, *names: str) -> Policies:
        """Remove policies of the ledger. The policies of the namespace or the broker's settings apply again."""
        return change_policy(self.client, ChangePolicy(self.name, forget=list(names)))

    def trim(self) -> TrimReply:
        """Delete the segments that no cursor needs and that retention does not keep. By default retention keeps all."""
        return self.client.ask(TrimLedger(self.name))

    def offload(
        self, until: Position | None = None, *, seal: bool = False, wait: bool = True, progress: bool = False
    ) -> OffloadStatus:
        """Copy the sealed segments before `until` to object storage. Without `until`, copy all sealed segments.

        With `seal`, first seal the open segment, so that it is copied too. With `wait`, return when all segments are
        copied. With `progress`, show a progress bar while the call waits.

        Raises Refused if no bucket is configured, and Unavailable if the broker could not copy a segment.
        """
        status = self.client.ask(OffloadPrefix(self.name, until, seal=seal))
        if wait:
            status = await_offload(self.client, status, progress=progress)
        if wait and status.failure:
            raise Unavailable(f"{self.name!r} is not offloaded from {status.first_left} on: {status.failure}")
        return status

    def offload_status(self) -> OffloadStatus:
        """Return the progress of the last offload, and the number of segments in object storage."""
        return self.client.ask(AskOffload(self.name))

    def seal(self, older_than_ms: int = 0) -> bool:
        """Seal the open segment if it has an entry and is at least `older_than_ms` old. Return whether it was sealed.

        The next append opens a new segment.
        """
        found = self.client.ask(SealLedger(self.name, older_than_ms))
        return found.sealed

    def terminate(self) -> Position:
        """Terminate the ledger: nobody can append to it any more. Return the position of its last entry.

        Returns `(-1, -1)` if the ledger never had an entry.
        """
        return self.client.ask(TerminateLedger(self.name)).position

    def change_properties(self, values: Mapping[str, str], remove: Collection[str] = ()) -> dict[str, str]:
        """Set and remove properties of the ledger. Return all its properties."""
        request = ChangeProperties(self.name, dict(values), list(remove))
        return self.client.ask(request).properties

    def position_at(self, time: Time) -> Position:
        """Return the position of the first entry that the broker stored at or after a time.

        Returns the end of the log if there is no such entry. A time is the number of milliseconds since 1970 (UTC), a
        datetime, a date, or a text such as `2026-11-22T10:15:00Z`. A time without a zone is in the host's local zone.
        Raises Refused for any other time.
        """
        milliseconds = require_time("the time", time, HOST_ZONE)
        return self.client.ask(SeekTime(self.name, milliseconds)).position


def await_offload(client: Client, found: OffloadStatus, *, progress: bool) -> OffloadStatus:
    """Wait until an offload has ended. Return its status. With `progress`, show a progress bar while it waits."""
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
            found = client.ask(AskOffload(found.name))


def change_policy(client: Client, request: ChangePolicy) -> Policies:
    """Set and remove policies of a ledger or namespace, as the request says. Return the policies."""
    return client.ask(request)
