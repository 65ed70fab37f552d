"""Groups of one log: which items are written together, which groups one sync covers, and what is written again.

    waiting ──take──▶ taken ──wrote──▶ written ──begin_sync──▶ syncing ──end_sync──▶ completed
                        ▲                  └──take_back──┐        └── the sync failed ──▶ to retry
                        └────────────────────────────────┴──────────── take_retries ─────────┘

A *group* is appends that fit into the open segment, or one run, or one change (`ledger.log.pending`). This module has
no thread and no lock, and completes no future. The append queue calls it with its lock held.

Invariants
- Items keep the order of their arrival. Appends to retry come before all waiting items.
- If a sync fails, the groups written after its groups are retried too, in order. Reason: their segment is lost.
- Every item is in exactly one of the places above, so `fail` returns all items that are not completed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pyspark_ledger.ledger.log.pending import Group, Item, PendingAppend, PendingChange, PendingRun, Room, Written


class Groups:
    """Items and groups of one log."""

    def __init__(self) -> None:
        self._waiting: deque[Item] = deque()
        self._taken: list[Item] = []  # items that the write stage has taken and not yet passed to the sync stage
        self._written: list[Written] = []
        self._syncing: list[Written] = []
        self._retries: list[PendingAppend] = []

    @property
    def waits(self) -> bool:
        """Whether an item waits or must be retried."""
        return bool(self._waiting or self._retries)

    @property
    def syncing(self) -> list[Written]:
        """The groups that the current sync covers."""
        return self._syncing

    def put(self, item: Item) -> None:
        """Add an item behind all others."""
        self._waiting.append(item)

    def take(self, room: Callable[[], Room]) -> Group:
        """Take the appends to retry. If there are none, take the next run or change, or the waiting appends that fit.

        `room` returns the free room of the open segment. It is asked only if several appends wait. The first append is
        taken in any case. Returns an empty list if nothing waits.
        """
        self._taken = []
        retries = self.take_retries()
        if retries or not self._waiting:
            return retries
        head = self._waiting.popleft()
        self._taken = [head]
        if not isinstance(head, PendingAppend):
            return head
        group, entries, size = [head], len(head.entries), head.size
        if not self._waiting:
            return group
        free = room()
        while self._waiting:
            item = self._waiting[0]
            if not isinstance(item, PendingAppend):
                break
            entries += len(item.entries)
            size += item.size
            if entries > free.entries or size > free.size:
                break
            group.append(item)
            self._waiting.popleft()
        self._taken = list(group)
        return group

    def take_retries(self) -> list[PendingAppend]:
        """Take the appends to retry, before the items that are taken already."""
        retries, self._retries = self._retries, []
        self._taken = retries + self._taken
        return retries

    def take_back(self) -> list[PendingAppend]:
        """Take the written groups whose sync has not started, to write them again."""
        unsynced, self._written = appends_of(self._written), []
        self._taken = unsynced + self._taken
        return unsynced

    def put_back(self, item: PendingRun | PendingChange) -> None:
        """Put a taken item before all waiting items."""
        self._taken = [taken for taken in self._taken if taken is not item]
        self._waiting.appendleft(item)

    def wrote(self, group: Written) -> None:
        """Move the taken appends to the written groups."""
        self._written.append(group)
        self._taken = []

    def completed(self) -> None:
        """Forget the taken items, which are completed."""
        self._taken = []

    def begin_sync(self, sync_bytes: int) -> None:
        """Begin the sync of the first written groups: until they have `sync_bytes` bytes, or all of them with 0."""
        count, size = 0 if sync_bytes else len(self._written), 0
        while count < len(self._written) and size < sync_bytes:
            size += sum(item.size for item in self._written[count].group)
            count += 1
        self._syncing, self._written = self._written[:count], self._written[count:]

    def end_sync(self, retries: list[PendingAppend]) -> None:
        """End the sync. `retries` are the appends of a failed sync that must be written again."""
        if retries:
            self._retries = retries + appends_of(self._written)
            self._written = []
        self._syncing = []

    def fail(self, *, syncing: bool) -> list[Item]:
        """Remove and return the items of a stage that ends after an unexpected error, and all items behind it.

        `syncing` names the sync stage. Otherwise the write stage ends.
        """
        items: list[Item] = [*self._retries, *appends_of(self._written), *self._waiting]
        if syncing:
            items, self._syncing = [*appends_of(self._syncing), *items], []
        else:
            items, self._taken = [*self._taken, *items], []
        self._retries, self._written = [], []
        self._waiting.clear()
        return items


def appends_of(groups: list[Written]) -> list[PendingAppend]:
    """Return the appends of written groups, in order."""
    return [item for part in groups for item in part.group]
