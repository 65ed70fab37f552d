"""Direct sink of a store in a bucket: tasks put large parts into the bucket, and the commit lists them as segments.

A *part* has the rows that one Spark task writes for one ledger. A large part never passes through the broker: the task
puts it into the bucket as a *data object*. A *run* is the entries of one batch in one ledger. An *index object* states
where the entries of a segment are in its data object.

    place      returns the key of a data object for a task: an id of the upload (attempt), and a segment id
    commit     HEAD of each object ─▶ small parts joined, and put by the broker ─▶ the log lists all (`ledger.log`)
    sweep      objects that no segment and no later commit needs are recorded as unwanted, and then deleted

Rules
- A batch becomes segments if at least one of its parts is an object. Consecutive small parts are then joined to one
  object.
- The commit refuses an object that is older than half of `stagingRetentionSeconds`. The sweep deletes objects that are
  older than the whole time. So no broker deletes an object that another broker may still list.
- A commit refuses an object that is a segment of any ledger already. For example, a repeated batch write is refused in
  this way if the record of the first write has expired. No commit deletes an object that is a segment.
- After a commit, all other objects of this batch and of earlier batches of the query are unwanted. They come from
  repeated tasks, or the broker has copied them. A later commit of such a batch is a repetition and needs no object.
- Objects become unwanted by a transaction in the metadata. The transactions of a broker that lost the store fail, so
  this broker deletes nothing.
- A sweep leaves out the objects of a commit in progress, however long the commit takes. It also leaves out the objects
  that the broker makes for a commit, until the commit succeeds or the broker ends.
- The ids of a ledger's segments must rise. If the ledger has got a higher id meanwhile, the objects are copied to new
  ids, and the run is queued again. Appends to the ledger wait for a queued run, but not for the copies.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

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
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.direct_ids import DirectIds
from pyspark_ledger.ledger.tiering.direct_objects import DirectObjects, direct_metadata
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader
from pyspark_ledger.ledger.tiering.recorded_segment import extra_metadata

_THREADS = 16


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
        self.counter = PartCounter()
        self._ids = DirectIds(metadata, new_id)

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
        """Return the place in the bucket for a task's part. An empty place: the part must go through the broker."""
        objects = self._objects
        if objects is None or self.upload_from < 0:
            return UploadTarget()
        ledger = self._ledger(request.ledger)
        key = self._ids.of_task(request, ledger)
        return UploadTarget(objects.access, str(key.attempt), key.ledger_id, self._user_metadata(ledger))

    def _user_metadata(self, ledger: ManagedLedger) -> dict[str, str]:
        return direct_metadata(extra_metadata(self._metadata, ledger.name), self._epoch)

    @contextmanager
    def withheld(self, *runs: CommitRun) -> Iterator[None]:
        """Exclude the objects of these runs from sweeps while the runs are committed.

        Raises NotFound if an object is being deleted.
        """
        attempts = {part.object.attempt for run in runs for part in run.parts if part.object is not None}
        if not attempts:
            yield
            return
        with self._metadata.unwanted.withheld({uuid.UUID(attempt) for attempt in attempts}):
            yield

    def open_run(self, run: CommitRun, *, decided: bool = False) -> DirectRun | None:
        """Check the objects of a run, and join its small parts. Returns None for a run without an object.

        Raises NotFound for a missing object, and Refused for an object that is too old. `decided` means that the
        metadata have the commit of the batch already. Then no sweep deletes the objects, so their age is not checked.
        """
        groups = segment_parts(run.parts)
        if not groups:
            return None
        self.check(run, decided=decided)
        objects, ledger = self._present(), self._ledger(run.ledger)
        first = next(part.object.ledger_id for part in run.parts if part.object is not None)
        segments, reserved = list[StagedObject](), self._ids.of_run(run, ledger)
        for parts in groups:
            part = parts[0]
            if part.object is None:
                # The joined object gets the id after the previous object, or the id before the first object.
                key = self._ids.of_joined(run, ledger, segments[-1].ledger_id + 1 if segments else first - 1)
                self._metadata.unwanted.withhold([key.attempt])
                part = self._joined(objects, ledger, run, parts, key)
            segments.append(_segment(part, reserved))
        copy = partial(self._copied, objects, ledger, run)
        return DirectRun(segments, self._offloader().driver, copy)  # type: ignore[misc]  # `_present` has checked it

    def check(self, run: CommitRun, *, decided: bool = False) -> None:
        """Compare the size of each object of a run with the size that its task reported. Changes nothing."""
        parts = _object_parts(run)
        if parts:
            objects = self._present()
            if not decided:
                self._require_unlisted(run, parts)
            with ThreadPoolExecutor(min(_THREADS, len(parts)), thread_name_prefix="head") as pool:
                list(pool.map(lambda part: self._require_put(objects, part, decided=decided), parts))

    def committed(self, run: CommitRun) -> None:
        """Start the put of the index objects of a committed batch, and the deletion of the batch's other objects.

        Also called for a repeated commit. Reason: after a crash of the broker, only `run` names the objects.
        """
        parts = _object_parts(run)
        if not parts:
            return
        name = self._ledger(run.ledger).name
        self._put_indexes(name)
        keys = self._ids.take(run, name)
        over = [key for key in {*keys, *map(_key, parts)} if self._ledger_of(key) is None]
        self.counter.sweep(self._metadata.unwanted.put(self._unwanted(name, over) if over else []))
        self._metadata.unwanted.release([key.attempt for key in keys])

    def list_unneeded(self, kept: Callable[[], set[uuid.UUID]]) -> None:
        """Record old objects of tasks that belong to no segment as unwanted. `kept` returns the attempts to keep."""
        objects = self._objects
        if objects is None:
            return
        until_ms = self._clock() - self._settings.stagingRetentionSeconds * 1000
        found = list(objects.put_before(until_ms, kept()))
        self.counter.sweep(self._metadata.unwanted.put_unneeded(self._unwanted("", found), kept))

    def _ledger_of(self, key: ObjectKey) -> str | None:
        """Return the ledger whose segment is this object. Returns None if the object is no segment of the store."""
        name = self._metadata.segments.owner(key.ledger_id)
        row = None if name is None else self._metadata.segments.get(name, key.ledger_id)
        attempt = None if row is None else OffloadAttempt.of(row.listed())
        return name if attempt is not None and attempt.attempt == key.attempt else None

    def _unwanted(self, name: str, keys: Iterable[ObjectKey]) -> list[UnwantedObjects]:
        driver = self._offloader().driver  # type: ignore[misc]  # only a store with data objects has keys
        return [UnwantedObjects(name, key.ledger_id, key.attempt, driver) for key in keys]

    def _require_unlisted(self, run: CommitRun, parts: Sequence[StagedPart]) -> None:
        """Raise Refused if an object is a segment already, of this or another ledger."""
        for part in parts:
            name = self._ledger_of(_key(part))
            if name is not None:
                raise Refused(
                    f"the data object {part.part} is segment {_put_of(part).ledger_id} of ledger {name!r} already, so "
                    f"batch {run.batch} of query {run.query!r} cannot add it to {run.ledger!r}",
                    hint="The rows are in the ledger. Do not commit them again",
                )

    def _require_put(self, objects: DirectObjects, part: StagedPart, *, decided: bool) -> None:
        try:
            found = objects.head(_key(part))
        except NotFound:
            raise NotFound(
                f"the data object {part.part} with {part.entries} entries is missing in {objects.access.address}",
                hint="A sweep after stagingRetentionSeconds or another tool deleted it. Run the batch again",
            ) from None
        if found.size != part.length:
            raise Corrupt(f"the data object {part.part} has {found.size} bytes, its task reported {part.length}")
        age_s, most_s = (self._clock() - found.modified_ms) // 1000, self._settings.stagingRetentionSeconds // 2
        if age_s > most_s and not decided:
            raise Refused(
                f"the data object {part.part} was put {age_s} s before its commit, at most {most_s} s are allowed",
                hint="Run the batch again, or set a larger stagingRetentionSeconds, of which half is allowed",
            )

    def _joined(
        self, objects: DirectObjects, ledger: ManagedLedger, run: CommitRun, parts: Sequence[StagedPart], key: ObjectKey
    ) -> StagedPart:
        """Put the entries of small parts as one object."""
        opened = [self._staging.open(part) for part in parts]
        ledger.require_run(run, opened)
        part_run = PartRun(run.query, run.batch, run.txn_most, run.txn_least, ledger.block_bytes, self._clock())

        def entries() -> Iterable[tuple[Buffer, int]]:
            for part in opened:
                for entry in part.entries:
                    yield entry, entry_rows(parse_entry(entry, f"an entry of {part.path}").metadata)

        return objects.put(key, self._user_metadata(ledger), part_run, entries())

    def _copied(
        self, objects: DirectObjects, ledger: ManagedLedger, run: CommitRun, segments: Sequence[StagedObject]
    ) -> list[StagedObject]:
        metadata, keys = self._user_metadata(ledger), self._ids.of_copies(run, ledger, len(segments))
        self._metadata.unwanted.withhold([key.attempt for key in keys])

        def copy(segment: StagedObject, key: ObjectKey) -> StagedObject:
            objects.copy(ObjectKey(segment.attempt, segment.ledger_id), key, metadata)
            return replace(segment, attempt=key.attempt, ledger_id=key.ledger_id, reserved=True)

        with ThreadPoolExecutor(min(_THREADS, len(segments)), thread_name_prefix="copy") as pool:
            copies = list(pool.map(copy, segments, keys))
        self.counter.copy([copied.size for copied in copies])
        return copies


def segment_parts(parts: Sequence[StagedPart]) -> list[list[StagedPart]]:
    """Return for each segment of a run the parts that it contains.

    An object is a segment of its own. Consecutive small parts become one segment. Returns nothing for a run without an
    object: its rows go into the open segment.
    """
    if all(part.object is None for part in parts):
        return []
    found: list[list[StagedPart]] = []
    for part in parts:
        if found and part.object is None and found[-1][0].object is None:
            found[-1].append(part)
        elif part.entries:
            found.append([part])
    return found


def numbers(data: bytes) -> Integers:
    """Decode the numbers (lengths or rows) that a task has reported, one for each entry."""
    return np.frombuffer(data, dtype="<u4").astype(np.int64)


def _put_of(part: StagedPart) -> PutObject:
    assert part.object is not None  # noqa: S101 — the caller has selected such parts
    return part.object


def _object_parts(run: CommitRun) -> list[StagedPart]:
    return [part for part in run.parts if part.object is not None]


def _key(part: StagedPart) -> ObjectKey:
    put = _put_of(part)
    return ObjectKey(uuid.UUID(put.attempt), put.ledger_id)


def _segment(part: StagedPart, reserved: Sequence[range]) -> StagedObject:
    put = _put_of(part)
    lengths, rows = numbers(put.lengths), numbers(put.rows)
    if (len(lengths), len(rows), int(rows.sum())) != (part.entries + 1, part.entries + 1, part.rows) or rows[-1]:
        raise Corrupt(
            f"part {part.part} states {part.entries} entries with {part.rows} rows, and lists {len(lengths) - 1} "
            f"entries with {int(rows.sum())} rows"
        )
    is_reserved = any(put.ledger_id in ids for ids in reserved)
    return StagedObject(
        uuid.UUID(put.attempt), put.ledger_id, part.block_bytes, part.length, lengths, rows, is_reserved
    )
