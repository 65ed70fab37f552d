"""Limit of the local directory of a store in a bucket. All uploaded segments are expendable there.

    used ≤ 8/10 of the limit    nothing happens
    used > 8/10 of the limit    local copies of uploaded segments are deleted, oldest first. If this is not enough,
                                large open segments are sealed, so that they are uploaded
    used > the limit            appends wait, too, until copies were deleted

Rules
- An append waits as long as the bucket takes uploads. If no upload makes progress for `patience_ms`, it fails with
  Unavailable, which names the setting.
- The limit is the setting `bucketCacheBytes`, but at most 8/10 of the space that the directory uses and that is free on
  its disk. So the disk also keeps room for the entries that are being written, and for other programs.
- The directory is measured again after the log has grown, or the free space has shrunk, by a part of the limit.
- Staged parts are not counted, because they cannot be deleted before their commit.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Unavailable
from pyspark_ledger.ledger.store.store import Store

SETTING = "bucketCacheBytes"
_STEP_SECONDS = 0.25
_GROWTH_PART = 64  # the directory is measured again after a change by this part of the limit
_SEALED_PART = 16  # below the limit, smaller open segments stay open
_log = logging.getLogger(__name__)


class CacheUse(NamedTuple):
    """Bytes that the segment files use on the disk, by segment id, and the limit of their sum."""

    files: dict[int, int]
    limit: int

    @property
    def used(self) -> int:
        return sum(self.files.values())

    @property
    def wanted(self) -> int:
        """The sum above which copies are deleted."""
        return self.limit * 8 // 10


def cache_use(directory: Path, limit: int) -> CacheUse:
    """Measure the directory of the segments. `limit` is the setting."""
    files = dict[int, int]()
    for entry in os.scandir(directory):
        stem, _, suffix = entry.name.partition(".")
        if suffix == "ledger" and stem.isdecimal():
            try:
                files[int(stem)] = entry.stat().st_blocks * 512
            except FileNotFoundError:  # deleted after the listing
                continue
    return CacheUse(files, _limit(directory, limit, sum(files.values())))


def _limit(directory: Path, limit: int, used: int) -> int:
    share = (shutil.disk_usage(directory).free + used) * 8 // 10
    return min(limit or share, share)


class LocalCache:
    """Limit of one open store's directory. Any thread may call any method."""

    def __init__(
        self,
        store: Store,
        address: str,
        limit: int,
        *,
        written: Callable[[], int],
        roll_over: Callable[[int], object],
        patience_ms: int,
    ) -> None:
        """Create the limit. `written` returns the bytes of the log. `roll_over` seals a segment if it is open."""
        self._store = store
        self._directory = store.path / "ledgers"
        self._address = address
        self._limit = limit
        self._written = written
        self._roll_over = roll_over
        self._patience_ms = patience_ms
        self._use = CacheUse({}, limit or 1)
        self._measured_at = -1
        self._progress: tuple[int, ...] = ()
        self._progress_ms = monotonic_ms()
        self._deleted = 0
        self._has_room, self._stopped = threading.Event(), threading.Event()
        self._has_room.set()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="local cache", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and all waits."""
        self._stopped.set()
        self._has_room.set()
        if self._thread is not None:
            self._thread.join()

    def wait_for_room(self) -> None:
        """Wait while the directory exceeds its limit. Raises Unavailable if the bucket takes no uploads."""
        while not self._has_room.wait(_STEP_SECONDS):
            waited_ms = monotonic_ms() - self._progress_ms
            if waited_ms >= self._patience_ms:
                raise Unavailable(
                    f"the local directory of {self._address} has {self._use.used} bytes, its limit {SETTING} is "
                    f"{self._use.limit}, and no segment was uploaded for {waited_ms // 1000} s",
                    hint=f"See broker.log for the error of the uploads. Raise {SETTING} or free space on the disk",
                )

    def round(self) -> None:
        """Measure the directory. If it is above its limit, delete copies, and seal open segments."""
        self._measured_at = self._written()
        self._use = use = cache_use(self._directory, self._limit)
        excess = use.used - use.wanted
        if excess > 0:
            excess -= self._delete_copies(use, excess)
            if excess > 0:
                self._upload(use, excess)
                self._use = use = cache_use(self._directory, self._limit)
        self._note_progress()
        if use.used <= use.limit or excess <= 0:
            self._has_room.set()
        elif not self._stopped.is_set():
            if self._has_room.is_set():
                _log.warning("%s: appends wait for uploads, %d bytes of %d are used", SETTING, use.used, use.limit)
                self._progress_ms = monotonic_ms()
            self._has_room.clear()

    def _delete_copies(self, use: CacheUse, excess: int) -> int:
        """Delete copies of uploaded segments, oldest first, until `excess` bytes are free. Return the bytes."""
        freed = 0
        for name, ledger_id, attempt in self._store.metadata.segments.attempts():
            if freed >= excess:
                break
            if attempt.complete and not attempt.local_deleted:
                try:
                    self._store.ledger(name).delete_local([ledger_id])
                except NotFound:  # the ledger was deleted meanwhile
                    continue
                freed += use.files.get(ledger_id, 0)
                self._deleted += 1
        return freed

    def _upload(self, use: CacheUse, excess: int) -> None:
        """Seal open segments, the largest first, and queue the upload of all sealed segments."""
        segments = self._store.metadata.segments
        least = 0 if use.used > use.limit else use.limit // _SEALED_PART
        local = segments.only_local()
        for ledger_id in sorted(local & use.files.keys(), key=lambda ledger_id: -use.files[ledger_id]):
            name = segments.owner(ledger_id)
            if excess <= 0 or use.files[ledger_id] < least or name is None:
                continue
            self._roll_over(ledger_id)
            self._store.offloads.consider(name)
            excess -= use.files[ledger_id]

    def _note_progress(self) -> None:
        figures = self._store.offloads.metrics()
        progress = (self._deleted, figures.segments, figures.running_bytes)
        if progress != self._progress:
            self._progress, self._progress_ms = progress, monotonic_ms()

    def _run(self) -> None:
        while not self._stopped.wait(_STEP_SECONDS):
            try:
                if self._is_due():
                    self.round()
            except (LedgerError, OSError) as error:
                _log.warning("the local directory of %s cannot be limited now: %s", self._address, error)
            except Exception:  # noqa: BLE001 — logged, and the next step tries again
                _log.exception("the local directory of %s cannot be limited now", self._address)

    def _is_due(self) -> bool:
        if self._measured_at < 0 or not self._has_room.is_set():
            return True
        shrunk = self._use.limit - _limit(self._directory, self._limit, self._use.used)
        return max(self._written() - self._measured_at, shrunk) * _GROWTH_PART >= self._use.limit
