"""Collector of a store in a bucket: deletes objects of the write-ahead log that no broker needs any more.

A *snapshot* is an object with all records of the metadata. A log object is *live* if the next broker needs it. Such an
object has records that the newest snapshot lacks, or bytes of a segment that is not uploaded. The *manifest* is the
object that names the broker of the store. It contains the *first live number*, the number of the oldest live object.

    snapshot ─▶ manifest (snapshot, first live number) ─▶ objects below the first live number are deleted

An open segment that gets few appends keeps an old object live. The collector *carries* such a segment: it writes the
bytes of the segment to the log again. Then the old object is not needed any more.

Rules
- An object is deleted only after a manifest that does not need it is in the bucket (`ledger.wal.fence`).
- While the log does not grow, the collector sends no request.
- If another broker has taken the store over, the collector closes the log. It deletes nothing afterwards.
- If a deletion fails, only the deletion is repeated, and not the whole round.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

from pyspark_ledger.ledger.bucket_store.live_files import LiveFile, LiveFiles, oldest, to_carry
from pyspark_ledger.ledger.bucket_store.manifest_holder import ManifestHolder
from pyspark_ledger.ledger.bucket_store.probe import PROBE_PREFIX
from pyspark_ledger.ledger.bucket_store.snapshots import put_snapshot
from pyspark_ledger.ledger.clock import Clock, monotonic_ms
from pyspark_ledger.ledger.errors import Fenced, LedgerError
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import LOG_PREFIX, SECRET_PREFIX, SNAPSHOT_PREFIX, epoch_of, log_key, number_of
from pyspark_ledger.ledger.wal.fence import first_live, may_sweep
from pyspark_ledger.ledger.wal.requests import RequestLimits, repeated

_log = logging.getLogger(__name__)
_DELETE_AT_ONCE = 1000
_STEP_SECONDS = 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CollectorLimits:
    """Limits of the log.

    - A snapshot is due when the log has grown by `objects_max` objects since the last snapshot. It is also due when the
      log has grown by `snapshot_bytes` and, if the last snapshot was larger, by the size of that snapshot.
    - If the live objects exceed `live_bytes` or `objects_max`, segments with few appends are carried. A segment above
      `carry_bytes` is rolled over and uploaded instead.
    - Snapshots and secrets that no manifest names are deleted when they are older than `age_min_ms`.
    """

    snapshot_bytes: int = 64 * 1024 * 1024
    objects_max: int = 1_000
    live_bytes: int = 512 * 1024 * 1024
    carry_bytes: int = 8 * 1024 * 1024
    age_min_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class CollectedLog:
    """Functions of the open store that the collector calls."""

    end: Callable[[], int]
    """The lowest number that is not acknowledged."""
    needed: Callable[[], int]
    """The lowest number of an object with a part of an unacknowledged batch."""
    size: Callable[[], int]
    """Bytes of the objects that were live at the start of the broker or were acknowledged since then."""
    snapshot: Callable[[], tuple[bytes, int]]
    """Returns a snapshot, and the number of the first object whose records the snapshot lacks."""
    needed_files: Callable[[], Collection[str]]
    """Returns the names of all files whose bytes must stay in the log."""
    carry: Callable[[Mapping[str, LiveFile]], Mapping[str, int]]
    """Writes the bytes of files to the log again. Returns the first object with these bytes for each file.

    Files that were deleted in the meantime are left out.
    """
    roll_over: Callable[[str], bool]
    """Seals the segment in a file, so that it is uploaded. Returns False if the file is not a ledger's segment."""
    fail: Callable[[LedgerError], None]
    """Closes the log after an error."""


class _Mark(NamedTuple):
    """End and size of the log at one time."""

    end: int
    size: int


class Collector:
    """Collector of one open store."""

    def __init__(
        self,
        bucket: ObjectStore,
        holder: ManifestHolder,
        files: LiveFiles,
        log: CollectedLog,
        limits: CollectorLimits,
        requests: RequestLimits,
        clock: Clock,
    ) -> None:
        self._bucket = bucket
        self._holder = holder
        self._files = files
        self._log = log
        self._limits = limits
        self._requests = requests
        self._clock = clock
        named = holder.manifest.snapshot
        self._collected = _Mark(holder.manifest.first if named is None else named.records_from, 0)
        self._marks = deque([self._collected, _Mark(log.end(), log.size())])
        self._deleted_to = holder.manifest.first
        self._snapshots = set[str]() if named is None else {named.key}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for the end of a running round, and start no further round."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def is_due(self) -> bool:
        """Whether the log has grown enough for a round."""
        manifest, limits = self._holder.manifest, self._limits
        last = 0 if manifest.snapshot is None else manifest.snapshot.size
        grown = self._log.size() - self._collected.size
        objects = self._log.end() - self._collected.end
        return grown >= max(limits.snapshot_bytes, last) or objects >= limits.objects_max

    def collect(self) -> None:
        """Put a snapshot, raise the first live number, and delete the objects below it.

        Raises Fenced if another broker has taken the store over.
        """
        mark = _Mark(self._log.end(), self._log.size())
        self._carry(mark)
        manifest = self._holder.manifest
        # This must come before the call of `needed_files`. So the objects of a batch that is acknowledged between the
        # two calls still count as needed.
        needed = self._log.needed()
        data, records_from = self._log.snapshot()
        snapshot = put_snapshot(
            self._bucket,
            data,
            records_from=records_from,
            epoch=manifest.epoch,
            nonce=f"{manifest.nonce}-{manifest.revision}",
            limits=self._requests,
        )
        self._snapshots.add(snapshot.key)
        files = self._files.keep(self._log.needed_files)
        first = max(first_live(records_from, oldest(files.values()), needed, needed), manifest.first)
        self._holder.change(snapshot=snapshot, first=first)
        self._collected = mark
        self._marks.append(mark)
        self.delete_old()

    def delete_old(self) -> None:
        """Delete the log objects below the first live number, and the snapshots of earlier rounds."""
        first, old = self._holder.manifest.first, self._old_snapshots
        self._delete([*map(log_key, range(self._deleted_to, first)), *old])
        self._deleted_to = first
        self._snapshots -= old

    @property
    def _old_snapshots(self) -> set[str]:
        named = self._holder.manifest.snapshot
        return self._snapshots - {"" if named is None else named.key}

    def sweep(self) -> bool:
        """Delete objects that crashes left.

        The method deletes log objects below the first live number, and snapshots and secrets that the manifest does not
        name. It also deletes objects of `probe`, the test of a new bucket. Return whether some objects are too young to
        be deleted.
        """
        manifest, now_ms = self._holder.manifest, self._clock()
        gone, young = [], False
        for found in self._bucket.objects(LOG_PREFIX):
            if number_of(found.key) >= manifest.first:
                break
            gone.append(found.key)
        names = {"" if manifest.snapshot is None else manifest.snapshot.key}
        names.add("" if manifest.broker is None else manifest.broker.secret)
        for found in chain(self._bucket.objects(SNAPSHOT_PREFIX), self._bucket.objects(SECRET_PREFIX)):
            named = found.key in names
            age_ms = now_ms - found.modified_ms
            if not named and may_sweep(epoch_of(found.key), manifest.epoch, age_ms, self._limits.age_min_ms):
                gone.append(found.key)
            young |= not named and epoch_of(found.key) < manifest.epoch and age_ms <= self._limits.age_min_ms
        for found in self._bucket.objects(PROBE_PREFIX):
            old = now_ms - found.modified_ms > self._limits.age_min_ms
            gone += [found.key] * old
            young |= not old
        self._delete(gone)
        return young

    def _carry(self, now: _Mark) -> None:
        """Carry slow segments if the live objects exceed their limit."""
        limits = self._limits
        wanted = max(now.end - limits.objects_max, self._live_from(now.size))
        if wanted <= self._holder.manifest.first:
            return
        files = self._files.keep(self._log.needed_files)
        slow = to_carry(files, wanted, limits.carry_bytes)
        large = [name for name, file in files.items() if file.first < wanted and file.length > limits.carry_bytes]
        slow += [name for name in large if not self._log.roll_over(name)]
        for name, number in self._log.carry({name: files[name] for name in slow}).items():
            self._files.carried(name, number)

    def _live_from(self, size: int) -> int:
        """Return a number so that the objects from this number on have at most `live_bytes`.

        The number is where the log ended at an earlier round: the oldest round that fits, or else the newest round.
        """
        while len(self._marks) > 1 and size - self._marks[0].size > self._limits.live_bytes:
            self._marks.popleft()
        return self._marks[0].end

    def _delete(self, keys: list[str]) -> None:
        for at in range(0, len(keys), _DELETE_AT_ONCE):
            some = keys[at : at + _DELETE_AT_ONCE]
            repeated(lambda: self._bucket.delete(some), self._requests)  # noqa: B023 — called at once

    def _run(self) -> None:
        young = self._guarded(self.sweep) is not False
        again_ms = monotonic_ms() + self._limits.age_min_ms
        while not self._stopped.wait(_STEP_SECONDS):
            if self.is_due:
                self._guarded(self.collect)
            elif self._deleted_to < self._holder.manifest.first or self._old_snapshots:
                self._guarded(self.delete_old)
            if young and monotonic_ms() > again_ms:
                young = self._guarded(self.sweep) is None
                again_ms = monotonic_ms() + self._limits.age_min_ms

    def _guarded(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work`, or None after an error, which is logged."""
        try:
            return work()
        except Fenced as fenced:
            self._log.fail(fenced)
            self._stopped.set()
        except (LedgerError, OSError) as error:
            _log.warning(
                "old objects of the log of %s could not be deleted, the broker tries again: %s",
                self._bucket.address,
                error,
            )
        except Exception:  # noqa: BLE001 — the log grows until a later round succeeds
            _log.exception("old objects of the log of %s could not be deleted", self._bucket.address)
        return None
