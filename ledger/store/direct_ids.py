"""Segment ids for the objects that Spark tasks put into the bucket before the commit of their batch.

The commit makes each object a segment of its ledger. The key of an object contains the segment id (`ledger_id` in the
code, as in Pulsar). So the id must be known before the put. The ids of a ledger's segments must rise, in the order of
the batch's tasks. A *reservation* is a range of segment ids for tasks of one batch in one ledger, with the keys that
contain these ids.

Rules
- The tasks of a batch are divided into groups of `_TASKS` tasks. When the first task of a group asks for a key, the
  broker reserves `_TASKS` ids for the group. Task *n* of the group gets id *n* of the reservation. So the ids of a
  group rise with its tasks.
- One write to the metadata reserves the ids of `_BATCHES_AHEAD` groups. If the ledger has got a segment with a higher
  id meanwhile, these ids are not used, and new ids are reserved.
- No two ledgers get the same id. If the id of an object is not reserved for the object's batch, the object is copied to
  a new id.
- Reservations are in memory only. So after a restart of the broker, the commit copies the objects of a running batch to
  new ids.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.protocol.commits import CommitRun, OpenUpload
from pyspark_ledger.ledger.segment.object_names import ObjectKey

_TASKS = 4_096
_BATCHES_AHEAD = 16
_RESERVATIONS_MAX = 10_000


class _Owner(NamedTuple):
    """Owner of a reservation: a group of tasks of a batch in one ledger.

    `group` is None for the keys that the broker itself makes.
    """

    query: str
    batch: int
    ledger: str
    group: int | None


class _Reservation(NamedTuple):
    ids: range
    keys: list[ObjectKey]


class DirectIds:
    """Reservations of one store. Any thread may call any method."""

    def __init__(self, metadata: Metadata, new_id: Callable[[], str]) -> None:
        self._metadata = metadata
        self._new_id = new_id
        self._lock = threading.Lock()
        self._ahead = range(0)  # ids that are reserved for later groups
        self._reserved: OrderedDict[_Owner, _Reservation] = OrderedDict()

    def of_task(self, request: OpenUpload, ledger: ManagedLedger) -> ObjectKey:
        """Return a new key for a task."""
        group, offset = divmod(request.task, _TASKS)
        owner = _Owner(request.query, request.batch, ledger.name, group)
        with self._lock:
            reservation = self._reserved.get(owner) or self._reserve(owner, ledger)
            key = ObjectKey(uuid.UUID(self._new_id()), reservation.ids[offset])
            reservation.keys.append(key)
        return key

    def of_copies(self, run: CommitRun, ledger: ManagedLedger, count: int) -> list[ObjectKey]:
        """Return new keys for the copies of a batch's objects, with consecutive ids above all ids of the store."""
        first = self._metadata.reserve_ledger_ids(count)
        keys = [ObjectKey(uuid.UUID(self._new_id()), ledger_id) for ledger_id in range(first, first + count)]
        self._add(run, ledger, keys)
        return keys

    def of_joined(self, run: CommitRun, ledger: ManagedLedger, ledger_id: int) -> ObjectKey:
        """Return a new key, with the id `ledger_id`, for an object into which small parts are joined."""
        key = ObjectKey(uuid.UUID(self._new_id()), ledger_id)
        self._add(run, ledger, [key])
        return key

    def of_run(self, run: CommitRun, ledger: ManagedLedger) -> list[range]:
        """Return the ids that this broker has reserved for the tasks of a batch."""
        with self._lock:
            owners = self._owners(run, ledger.name)
            return [self._reserved[owner].ids for owner in owners if owner.batch == run.batch]

    def take(self, run: CommitRun, name: str) -> list[ObjectKey]:
        """Remove the reservations of a committed batch and of earlier batches of its query. Return their keys."""
        with self._lock:
            return [key for owner in self._owners(run, name) for key in self._reserved.pop(owner).keys]

    def _owners(self, run: CommitRun, name: str) -> list[_Owner]:
        """Return the owners of a query's batches in a ledger, up to the batch of `run`. Called with the lock held."""
        wanted = run.query, name
        return [owner for owner in self._reserved if (owner.query, owner.ledger) == wanted and owner.batch <= run.batch]

    def _reserve(self, owner: _Owner, ledger: ManagedLedger) -> _Reservation:
        """Reserve ids above all ids of a log. Called with the lock held."""
        if not self._ahead or self._ahead[0] <= ledger.highest_id:
            first = self._metadata.reserve_ledger_ids(_TASKS * _BATCHES_AHEAD)
            self._ahead = range(first, first + _TASKS * _BATCHES_AHEAD)
        ids, self._ahead = self._ahead[:_TASKS], self._ahead[_TASKS:]
        return self._put(owner, _Reservation(ids, []))

    def _add(self, run: CommitRun, ledger: ManagedLedger, keys: list[ObjectKey]) -> None:
        """Remember keys that the broker makes at the commit."""
        owner = _Owner(run.query, run.batch, ledger.name, None)
        with self._lock:
            made = self._reserved.get(owner) or self._put(owner, _Reservation(range(0), []))
            made.keys.extend(keys)

    def _put(self, owner: _Owner, reservation: _Reservation) -> _Reservation:
        self._reserved[owner] = reservation
        if len(self._reserved) > _RESERVATIONS_MAX:
            self._reserved.popitem(last=False)
        return reservation
