"""Leases of a store's cursors: the right of one reader to use a cursor for some time.

    free ── acquire ──▶ held ── renew ──▶ held        expired, released or its holder is gone ── acquire ──▶ held

Rules
- A lease is granted if it is free or has expired, or if the reader has it already. It is also granted if the process
  of its holder ran on this host and has ended.
- A renewal is granted only to the reader that has the lease. Reason: a reader that was suspended cannot know whether
  another reader has used the cursor meanwhile, even if the lease is free again.
- A released or expired lease stays with its last holder until another reader acquires it. So this holder can still
  acknowledge rows: nobody has received them again.
- If the host's clock is set back, a lease lasts longer by that time for readers on other hosts. A reader of this host
  acquires the lease of a process that has ended at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.cursor.acknowledgements import AcknowledgementTable
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LeaseLost, NotFound, Refused
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord, Lease
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.names import canonical_name, nearest
from pyspark_ledger.ledger.ownership import is_gone
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.cursors import AcquireLease, LeaseReply, ReleaseLease
from pyspark_ledger.ledger.times import iso_text


class LeaseTable:
    """Leases of a store's cursors. Thread-safe."""

    def __init__(
        self,
        metadata: Metadata,
        clock: Clock,
        snapshot_of: Callable[[str], LogSnapshot],
        acknowledgements: AcknowledgementTable,
    ) -> None:
        self._cursors = metadata.cursors
        self._clock = clock
        self._snapshot_of = snapshot_of
        self._acknowledgements = acknowledgements

    def acquire(self, request: AcquireLease) -> LeaseReply:
        """Acquire or renew a lease. The reply names the current holder. Raises NotFound for a missing cursor."""
        self._require(request)
        return self.acquire_all([request])[0]

    def acquire_all(self, requests: Sequence[AcquireLease]) -> list[LeaseReply]:
        """Acquire all leases or none, in one transaction. Renew each of them by itself, also if others are refused.

        Raises NotFound for a missing cursor, except for a renewal, which is then refused.
        """
        for request in requests:
            if not request.holder or request.ttl_ms <= 0:
                raise Refused(
                    f"a lease of {request.ttl_ms} ms for holder {request.holder!r} was requested, expected a time "
                    "above 0 and a holder's name"
                )
            if not request.renews:
                self._require(request)
        replies: list[LeaseReply] = []

        def acquire(cursors: list[CursorRecord | None]) -> list[CursorRecord | None]:
            changed: list[CursorRecord | None] = []
            for request, cursor in zip(requests, cursors, strict=True):
                leased, granted = cursor, False
                if cursor is not None:
                    leased, granted = cursor.with_lease(
                        request.holder, request.ttl_ms, self._clock(), is_gone, renews=request.renews
                    )
                lease = Lease() if leased is None else leased.lease
                replies.append(LeaseReply(granted, lease.holder, lease.until_ms))
                changed.append(leased)
            refused = any(not to.granted for to, request in zip(replies, requests, strict=True) if not request.renews)
            return cursors if refused else changed

        self._cursors.change_all([_key(request) for request in requests], acquire)
        return replies

    def release(self, request: ReleaseLease) -> None:
        """Release a lease. Does nothing unless `holder` has the lease. Raises NotFound for a missing cursor."""
        self._require(request)
        self.release_all([request])

    def release_all(self, requests: Sequence[ReleaseLease]) -> None:
        """Release leases, in one transaction. Leaves out those that `holder` does not have, and missing cursors."""
        self._cursors.change_all(
            [_key(request) for request in requests],
            lambda cursors: [
                cursor and cursor.without_lease(request.holder)
                for request, cursor in zip(requests, cursors, strict=True)
            ],
        )

    def is_held(self, ledger: str, name: str) -> bool:
        """Return whether a cursor has a valid lease."""
        found = self._cursors.get(ledger, name)
        return found is not None and found.cursor.lease.until_ms > self._clock()

    def held(self, ledger: str) -> list[tuple[str, Position, int]]:
        """Return name, first unacknowledged position and remaining milliseconds of each cursor with a valid lease."""
        all_stored = [self._cursors.get(ledger, name) for name in self._cursors.names(ledger)]
        now = self._clock()
        live = [stored.cursor for stored in all_stored if stored is not None and stored.cursor.lease.until_ms > now]
        return [(cursor.name, self._position(cursor), cursor.lease.until_ms - now) for cursor in live]

    def _position(self, cursor: CursorRecord) -> Position:
        """Return a cursor's first unacknowledged position, for estimates.

        If the cursor's log is damaged, return the position in the metadata.
        """
        try:
            return self._acknowledgements.state(cursor, self._snapshot_of(cursor.ledger)).cursor.next_position
        except (Corrupt, DataLoss):
            return cursor.next_position

    def _require(self, request: AcquireLease | ReleaseLease) -> None:
        """Raise NotFound if there is no such cursor. Opens the ledger."""
        ledger = self._snapshot_of(request.ledger).name
        if self._cursors.get(ledger, request.cursor) is None:
            near = nearest(request.cursor, self._cursors.names(ledger))
            hint = f"Did you mean {near!r}?" if near else ""
            raise NotFound(f"ledger {ledger!r} has no cursor {request.cursor!r}", hint=hint)


def _key(request: AcquireLease | ReleaseLease) -> tuple[str, str]:
    return canonical_name(request.ledger), request.cursor


def require_lease(cursor: CursorRecord, holder: str) -> None:
    """Raise LeaseLost if another reader than `holder` has acquired the cursor's lease since, or nobody has it."""
    lease = cursor.lease
    if not holder or lease.holder != holder:
        now = f"{lease.holder} has the lease until {iso_text(lease.until_ms)}"
        if not lease.until_ms:
            now = f"{lease.holder} has the lease and has released it" if lease.holder else "nobody has the lease"
        raise LeaseLost(
            f"cursor {cursor.name!r} of {cursor.ledger!r}: {now}, this reader is {holder or 'unnamed'}",
            hint="This reader was closed, did not renew its lease in time, or its cursor was deleted. Its rows "
            "that are not acknowledged are redelivered: begin a new loop to receive them",
        )
