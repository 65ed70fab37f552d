"""Direct sink of a store in a bucket: tasks put large parts into the bucket, and the commit lists them as segments.

    place      returns the key of a data object for a task: an id of the upload (attempt), and a segment id
    commit     HEAD of each object ─▶ small parts joined, and put by the broker ─▶ the log lists all (`ledger.log`)
    sweep      objects that no segment and no later commit needs are recorded as unwanted, and then deleted

A *part* has the rows that one task writes for one ledger. A *run* is the entries of one batch in one ledger. An *index
object* states where the entries of a segment are in its data object.

Ids
- Segment ids of a batch rise in the order of its tasks. For this, the broker reserves `_TASKS` ids for a batch and a
  ledger when the first task asks. Task *n* gets the id with offset *n*. So a committed object keeps its key.
- One write to the metadata reserves the ids of several batches. If the log has meanwhile listed a higher id, the batch
  gets new ids.
- Reservations are in memory. After a restart of the broker, the commit copies objects with older ids.

Rules
- A batch becomes segments if at least one of its parts is an object. Consecutive small parts are then joined to one
  object.
- The commit refuses an object that is older than half of `stagingRetentionSeconds`. The sweep deletes objects that are
  older than the whole time. So no broker deletes an object that another broker may still list.
- After a commit, all other objects of this batch and of earlier batches are unwanted. They come from repeated tasks, or
  were copied. Reason: a later commit of such a batch is a repetition and needs no object.
- Objects become unwanted by a transaction in the log of the store. A broker that lost the store cannot commit there, so
  it deletes nothing.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.staging.area import StagingArea
from pyspark_ledger.ledger.log.staging.direct_run import DirectRun, StagedObject
from pyspark_ledger.ledger.message.entry import entry_rows, parse_entry
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metadata.unwanted_files import UnwantedObjects
from pyspark_ledger.ledger.metrics.part_counter import PartCounter
from pyspark_ledger.ledger.protocol.commits import CommitRun, OpenUpload, PartRun, PutObject, StagedPart, UploadTarget
from pyspark_ledger.ledger.segment.index import Integers
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.direct_objects import DirectKey, DirectObjects
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader
from pyspark_ledger.ledger.tiering.recorded_segment import extra_metadata

_TASKS = 4_096
_BATCHES_AHEAD = 16
_BATCHES_MAX = 10_000
_THREADS = 16


class _Batch(NamedTuple):
    """Group of at most `_TASKS` tasks of one batch that write to the same ledger."""

    query: str
    batch: int
    ledger: str
    group: int


class _Reservation(NamedTuple):
    """Ids of a batch from `first` on, and the keys that tasks have got."""

    first: int
    keys: list[DirectKey]


class DirectParts:
    """Direct sink of one store. Any thread may call any method."""

    def __init__(
        self,
        metadata: Metadata,
        settings: Settings,
        clock: Clock,
        *,
        epoch: int,
        offloader: Callable[[], LedgerOffloader] | None,
        ledger: Callable[[str], ManagedLedger],
        staging: StagingArea,
        put_indexes: Callable[[str], None],
        new_id: Callable[[], str],
    ) -> None:
        """`offloader` is None for a store that takes no data objects from tasks.

        `put_indexes` starts the put of the index objects of a ledger's newest segments, and does not wait for its end.
        """
        self._metadata = metadata
        self._settings = settings
        self._clock = clock
        self._epoch = epoch
        self._offloader = offloader
        self._ledger = ledger
        self._staging = staging
        self._put_indexes = put_indexes
        self._new_id = new_id
        self.counter = PartCounter()
        self._reserving = threading.Lock()
        self._next = self._end = 0  # ids that are reserved for later batches
        self._reserved: OrderedDict[_Batch, _Reservation] = OrderedDict()

    @property
    def upload_from(self) -> int:
        """The smallest size in bytes of a part that a task puts into the bucket; -1 if tasks put no parts there."""
        return -1 if self._objects is None else self._settings.stagedPartPromotionMinBytes

    @property
    def _objects(self) -> DirectObjects | None:
        return None if self._offloader is None else self._offloader().direct

    def _present(self) -> DirectObjects:
        objects = self._objects
        if objects is None:
            raise Refused("the store takes no data objects from tasks", hint="Run the batch again")
        return objects

    def place(self, request: OpenUpload) -> UploadTarget:
        """Return a new key for a task. Returns an empty target if the part must go through the broker."""
        objects = self._objects
        if objects is None or self.upload_from < 0:
            return UploadTarget()
        ledger = self._ledger(request.ledger)
        group, offset = divmod(request.task, _TASKS)
        batch = _Batch(request.query, request.batch, ledger.name, group)
        with self._reserving:
            reservation = self._reserved.get(batch) or self._reserve(batch, ledger)
            key = DirectKey(uuid.UUID(self._new_id()), reservation.first + offset)
            reservation.keys.append(key)
        return UploadTarget(objects.access, str(key.attempt), key.ledger_id, self._user_metadata(objects, ledger))

    def _user_metadata(self, objects: DirectObjects, ledger: ManagedLedger) -> dict[str, str]:
        return objects.metadata(extra_metadata(self._metadata, ledger.name), self._epoch)

    def _reserve(self, batch: _Batch, ledger: ManagedLedger) -> _Reservation:
        """Reserve ids above all ids of a log. Called with the lock held."""
        if self._next >= self._end or self._next <= ledger.highest_id:
            self._next = self._metadata.reserve_ledger_ids(_TASKS * _BATCHES_AHEAD)
            self._end = self._next + _TASKS * _BATCHES_AHEAD
        reservation = self._reserved[batch] = _Reservation(self._next, [])
        self._next += _TASKS
        if len(self._reserved) > _BATCHES_MAX:
            self._reserved.popitem(last=False)
        return reservation

    def open_run(self, run: CommitRun) -> DirectRun | None:
        """Check the objects of a run, and join its small parts. Returns None for a run without an object.

        Raises NotFound for a missing object, and Refused for an object that is too old.
        """
        if all(part.object is None for part in run.parts):
            return None
        self.check(run)
        objects, ledger = self._present(), self._ledger(run.ledger)
        reservations, segments = self._reservations(run, ledger), list[StagedObject]()
        reserved = {key for reservation in reservations for key in reservation.keys}
        parts = [part for part in run.parts if part.entries]
        for is_object, group in groupby(parts, key=lambda part: part.object is not None):
            some = list(group)
            if is_object:
                segments += [self._segment(part, reserved) for part in some]
            else:
                # The joined object gets the id after the previous object, or the id before the first object. This id is
                # free, because the small parts had no object.
                first = next(part.object.ledger_id for part in parts if part.object is not None)
                key = DirectKey(uuid.UUID(self._new_id()), segments[-1].ledger_id + 1 if segments else first - 1)
                if reservations:
                    reservations[0].keys.append(key)
                segments.append(self._joined(objects, ledger, run, some, key))
        copy = partial(self._copied, objects, ledger)
        return DirectRun(segments, self._offloader().driver, copy)  # type: ignore[misc]  # `_present` has checked it

    def check(self, run: CommitRun) -> None:
        """Compare the objects of a run with what their tasks have reported. Changes nothing."""
        parts = [part for part in run.parts if part.object is not None]
        if parts:
            objects = self._present()
            with ThreadPoolExecutor(min(_THREADS, len(parts)), thread_name_prefix="head") as pool:
                list(pool.map(lambda part: self._require_put(objects, part), parts))

    def committed(self, run: CommitRun) -> None:
        """Start the put of a committed batch's index objects, and the deletion of the other objects of its tasks."""
        name = self._ledger(run.ledger).name
        self._put_indexes(name)
        with self._reserving:
            over = [
                batch
                for batch in self._reserved
                if (batch.query, batch.ledger) == (run.query, name) and batch.batch <= run.batch
            ]
            keys = [key for batch in over for key in self._reserved.pop(batch).keys]
        self._put_unwanted(name, [key for key in keys if not self._is_listed(name, key)])

    def list_unneeded(self, kept: Callable[[], set[uuid.UUID]]) -> None:
        """Record old objects that belong to no segment as unwanted. `kept` returns the attempts to keep."""
        objects = self._objects
        if objects is None:
            return
        until_ms = self._clock() - self._settings.stagingRetentionSeconds * 1000
        found = list(objects.put_before(until_ms, kept()))
        needed = kept()  # read after the listing
        self._put_unwanted("", [key for key in found if key.attempt not in needed])

    def _is_listed(self, name: str, key: DirectKey) -> bool:
        row = self._metadata.segments.get(name, key.ledger_id)
        attempt = None if row is None else OffloadAttempt.of(row.listed())
        return attempt is not None and attempt.attempt == key.attempt

    def _put_unwanted(self, name: str, keys: Iterable[DirectKey]) -> None:
        if self._offloader is not None:
            driver = self._offloader().driver
            unwanted = [UnwantedObjects(name, key.ledger_id, key.attempt, driver) for key in keys]
            self._metadata.unwanted.put(unwanted)
            self.counter.sweep(len(unwanted))

    @staticmethod
    def _segment(part: StagedPart, reserved: Collection[DirectKey]) -> StagedObject:
        put = _put_of(part)
        lengths, rows = numbers(put.lengths), numbers(put.rows)
        if (len(lengths), len(rows), int(rows.sum())) != (part.entries + 1, part.entries + 1, part.rows) or rows[-1]:
            raise Corrupt(
                f"part {part.part} states {part.entries} entries with {part.rows} rows, and lists {len(lengths) - 1} "
                f"entries with {int(rows.sum())} rows"
            )
        key = DirectKey(uuid.UUID(put.attempt), put.ledger_id)
        return StagedObject(*key, part.block_bytes, part.length, lengths, rows, reserved=key in reserved)

    def _reservations(self, run: CommitRun, ledger: ManagedLedger) -> list[_Reservation]:
        with self._reserving:
            return [
                reservation
                for batch, reservation in self._reserved.items()
                if (batch.query, batch.batch, batch.ledger) == (run.query, run.batch, ledger.name)
            ]

    def _require_put(self, objects: DirectObjects, part: StagedPart) -> None:
        put = _put_of(part)
        try:
            found = objects.head(DirectKey(uuid.UUID(put.attempt), put.ledger_id))
        except NotFound:
            raise NotFound(
                f"the data object {part.part} with {part.entries} entries is missing in {objects.access.address}",
                hint="A sweep after stagingRetentionSeconds or another tool deleted it. Run the batch again",
            ) from None
        if found.size != part.length:
            raise Corrupt(f"the data object {part.part} has {found.size} bytes, its task reported {part.length}")
        age_s, most_s = (self._clock() - found.put_ms) // 1000, self._settings.stagingRetentionSeconds // 2
        if age_s > most_s:
            raise Refused(
                f"the data object {part.part} was put {age_s} s before its commit, at most {most_s} s are allowed",
                hint="Run the batch again, or set a larger stagingRetentionSeconds, of which half is allowed",
            )

    def _joined(
        self, objects: DirectObjects, ledger: ManagedLedger, run: CommitRun, parts: Sequence[StagedPart], key: DirectKey
    ) -> StagedObject:
        """Put the entries of small parts as one object."""
        opened = [self._staging.open(part) for part in parts]
        ledger.require_run(run, opened)
        block_bytes = ledger.block_bytes
        part_run = PartRun(run.query, run.batch, run.txn_most, run.txn_least, block_bytes, self._clock())

        def entries() -> Iterable[tuple[Buffer, int]]:
            for part in opened:
                for entry in part.entries:
                    yield entry, entry_rows(parse_entry(entry, f"an entry of {part.path}").metadata)

        put = objects.put(key, self._user_metadata(objects, ledger), part_run, entries())
        described = _put_of(put)
        lengths, rows = numbers(described.lengths), numbers(described.rows)
        return StagedObject(*key, block_bytes, put.length, lengths, rows, reserved=True)

    def _copied(
        self, objects: DirectObjects, ledger: ManagedLedger, segments: Sequence[StagedObject], first_id: int
    ) -> list[StagedObject]:
        metadata = self._user_metadata(objects, ledger)

        def copy(numbered: tuple[int, StagedObject]) -> StagedObject:
            ledger_id, segment = numbered
            key = DirectKey(uuid.UUID(self._new_id()), ledger_id)
            objects.copy(DirectKey(segment.attempt, segment.ledger_id), key, metadata)
            return replace(segment, attempt=key.attempt, ledger_id=ledger_id, reserved=True)

        with ThreadPoolExecutor(min(_THREADS, len(segments)), thread_name_prefix="copy") as pool:
            copies = list(pool.map(copy, enumerate(segments, start=first_id)))
        self.counter.copy([copied.size for copied in copies])
        return copies


def numbers(data: bytes) -> Integers:
    """Return the numbers that a task has reported for each entry."""
    return np.frombuffer(data, dtype="<u4").astype(np.int64)


def _put_of(part: StagedPart) -> PutObject:
    assert part.object is not None  # noqa: S101 — the caller has selected such parts
    return part.object
