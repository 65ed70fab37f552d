"""Lease of one reader on one cursor, and the thread that renews the leases of a client's loops.

Rules
- A lease lasts `LEASE_MS` and is renewed at a third of this time. One thread renews all leases of a client, up to
  `CURSORS_MAX` in one request. It runs while the client has leases.
- A renewal only prolongs a lease that the reader still has. If another reader has acquired it, the renewals end, and
  the broker refuses the loop's next request with LeaseLost.
- A lease that is not released expires. So a release that fails is no error. The broker grants the lease of a process of
  its own host at once after the end of this process.
- `drop` takes no lock. So a signal handler and the garbage collector may call it at any time.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from pyspark_ledger.ledger.clock import monotonic_ms, new_id
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.ownership import process_identity
from pyspark_ledger.ledger.protocol.cursors import (
    CURSORS_MAX,
    AcquireLease,
    AcquireLeases,
    LeaseReply,
    ReleaseLease,
    ReleaseLeases,
)
from pyspark_ledger.ledger.times import iso_text

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client

LEASE_MS = 30_000
_RENEW_MS = LEASE_MS // 3
_RELEASE_MS = 2_000  # the longest wait for a broker that does not answer
_log = logging.getLogger(__name__)


def _new_holder() -> str:
    return f"{process_identity()}/{new_id()}"


@dataclass(frozen=True, slots=True)
class CursorLease:
    """Lease of one reader on the cursor of a ledger. `holder` is the name of the reader."""

    ledger: str
    cursor: str
    holder: str = field(default_factory=_new_holder)

    def acquisition(self, *, renews: bool = False) -> AcquireLease:
        """Return the request that acquires the lease, or with `renews` the one that prolongs it."""
        return AcquireLease(self.ledger, self.cursor, self.holder, LEASE_MS, renews)

    def end(self) -> ReleaseLease:
        """Return the request that releases the lease."""
        return ReleaseLease(self.ledger, self.cursor, self.holder)

    def refusal(self, reply: LeaseReply) -> Refused:
        """Return the error for a reader that finds the lease in other hands."""
        host, pid, *_ = [*reply.holder.split("/"), "", ""]
        same_host = self.holder.startswith(f"{host}/")
        return Refused(
            f"cursor {self.cursor!r} of {short_name(self.ledger)} is in use by process {pid or reply.holder} of "
            f"{'this host' if same_host else f'host {host}'} until {iso_text(reply.until_ms)} (reader {reply.holder}), "
            f"this reader is {self.holder}",
            hint="Close that loop or end that process, or use another cursor. The lease of a process that ended on "
            "another host expires at the stated time",
        )


class LeaseRenewals:
    """Leases of one client's loops. Any thread may call any method."""

    def __init__(self, client: Client) -> None:
        self._client = weakref.proxy(client)
        self._leases: dict[str, CursorLease] = {}
        self._dropped: deque[CursorLease] = deque()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._releasing = threading.RLock()  # a signal handler may close a loop while its thread has the lock
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def acquire(self, leases: Sequence[CursorLease]) -> None:
        """Acquire all leases or none, and renew them until they are dropped.

        Raises Refused, with the ledger and the holder, if one of them is in use.
        """
        self.release_dropped()  # perhaps of a loop over the same cursor that nobody closed
        try:
            for part in _parts(leases):
                replies = self._client.ask(AcquireLeases([lease.acquisition() for lease in part])).leases
                _require_granted(part, replies)
        except BaseException:
            self._dropped.extend(leases)  # the broker may have granted them before the interrupt
            self.release_dropped()
            raise
        with self._starting:
            self._leases |= {lease.holder: lease for lease in leases}
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ledger-leases", daemon=True)
                self._thread.start()

    def drop(self, lease: CursorLease) -> None:
        """End the renewals of a lease. `release_dropped` or the thread releases it."""
        if self._leases.pop(lease.holder, None) is not None:
            self._dropped.append(lease)
            self._wakes.put(None)

    def drop_all(self) -> None:
        """Release all leases, because the client is closed."""
        for lease in list(self._leases.values()):
            self.drop(lease)
        self.release_dropped()

    def release_dropped(self) -> None:
        """Release all dropped leases now. Returns when also those are released that another thread releases."""
        with self._releasing:
            while self._dropped:
                part = list(islice(self._dropped, CURSORS_MAX))
                if not self._release(part):
                    self._dropped.clear()  # not one wait for each thousand of leases
                for lease in part:
                    if self._dropped and self._dropped[0] is lease:  # not if a signal handler released it meanwhile
                        self._dropped.popleft()

    def _release(self, leases: list[CursorLease]) -> bool:
        """Release leases. Return whether the broker can be asked for the next ones."""
        request = ReleaseLeases([lease.end() for lease in leases])
        try:
            self._client.ask(request, deadline_ms=_RELEASE_MS, attempt_seconds=_RELEASE_MS / 1000)
        except (LedgerError, ReferenceError) as error:
            _log.debug("the leases of %s cursors expire by themselves: %s", len(leases), error)
            return not isinstance(error, (Unavailable, ReferenceError))
        return True

    def _run(self) -> None:
        renew_at = monotonic_ms() + _RENEW_MS
        while True:
            with suppress(queue.Empty):
                self._wakes.get(timeout=max(renew_at - monotonic_ms(), 0) / 1000)
            self.release_dropped()
            if monotonic_ms() >= renew_at:
                renew_at = monotonic_ms() + _RENEW_MS
                self._renew()
            with self._starting:
                if not self._leases and not self._dropped:
                    self._thread = None
                    return

    def _renew(self) -> None:
        """Renew all leases. If no broker answers, the next beat retries."""
        for part in _parts(list(self._leases.values())):
            request = AcquireLeases([lease.acquisition(renews=True) for lease in part])
            try:
                replies = self._client.ask(request, deadline_ms=_RENEW_MS).leases
            except ReferenceError:  # nobody has the client any more
                self._leases.clear()
                return
            except LedgerError as error:
                _log.warning("the leases of %s cursors, such as %s, were not renewed: %s", len(part), part[0], error)
                return
            for lease, reply in zip(part, replies, strict=True):
                if not reply.granted:  # another reader has it, or the cursor was deleted
                    self._leases.pop(lease.holder, None)


def _require_granted(leases: Sequence[CursorLease], replies: Sequence[LeaseReply]) -> None:
    for lease, reply in zip(leases, replies, strict=True):
        if not reply.granted:
            raise lease.refusal(reply)


def _parts(leases: Sequence[CursorLease]) -> Iterator[Sequence[CursorLease]]:
    """Yield the leases in parts of one request."""
    return (leases[first : first + CURSORS_MAX] for first in range(0, len(leases), CURSORS_MAX))


_renewals: weakref.WeakKeyDictionary[Client, LeaseRenewals] = weakref.WeakKeyDictionary()
_renewals_lock = threading.Lock()


def renewals_of(client: Client) -> LeaseRenewals:
    """Return the renewals of a client's leases. Every call for a client returns the same object."""
    with _renewals_lock:
        if client not in _renewals:
            _renewals[client] = LeaseRenewals(client)
        return _renewals[client]
