"""Blocks in shared memory: data from object storage, in files that readers on this host map.

    /dev/shm/ledger-<user>-<store>-<epoch>/       one directory for each broker, which it holds locked
        lock
        <number>.block      head, 256 bytes: "LEDGERSHM1 <store> <epoch> <number> <ledger> <first entry> <length>" and
                            zeros, then the frames

Invariants
- A name is never used twice: epochs rise with every broker of the store, numbers within one.
- A file has its memory before any process maps it. Without free memory the block is not created, and no process is
  killed.
- A process that maps a block has a shared lock on the open file. The kernel keeps the lock until the mapping ends or
  the process dies.
- An evicted block loses its name. Its memory is freed when no such lock exists. The file is then truncated, so that a
  process that opened it too early detects that it is gone.
- The broker tests for such locks by taking the lock exclusively for a moment. A reader that finds it taken tries again.
- Every reader that maps a block compares its head with the broker's answer.
- The next broker removes the blocks of dead brokers. Exception: a block of another store that readers still map keeps
  its name. The next broker of that store unlinks the block and counts it until readers release it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import pyarrow as pa

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.transport.mapped_block import HEAD_BYTES, SharedPlace, map_shared, try_lock

_ROOT = Path("/dev/shm")  # noqa: S108 — its own directory in it is this user's alone
_log = logging.getLogger(__name__)


class SharedMemoryReference:
    """Reference to a block of shared memory, which keeps its name as long as the reference exists."""

    def __init__(self, storage: SharedMemoryStorage) -> None:
        self._storage = storage
        self._frames: pa.Buffer | None = None

    @property
    def place(self) -> SharedPlace:
        return self._storage.place

    @property
    def frames(self) -> pa.Buffer:
        """Bytes, mapped on first use."""
        if self._frames is None:
            self._frames = self._storage.frames
        return self._frames


class SharedMemoryStorage:
    """Storage of one block. `release` releases it, `is_pinned` tells whether its memory is still referenced."""

    def __init__(self, fd: int, place: SharedPlace, size: int) -> None:
        self.place = place
        self.size = size
        self._fd = fd
        self._helds = weakref.WeakSet[SharedMemoryReference]()
        self._released = False
        self._named = True
        self._lock = threading.Lock()

    @property
    def frames(self) -> pa.Buffer:
        """Bytes, mapped. Raises NotFound if they are gone."""
        return map_shared(self.place, 0, self.size)

    def acquire(self) -> SharedMemoryReference:
        held = SharedMemoryReference(self)
        with self._lock:
            self._helds.add(held)
        return held

    def release(self) -> None:
        self._released = True
        self.is_pinned()

    def is_pinned(self) -> bool:
        with self._lock:
            if self._fd < 0 or not self._released:
                return False
            if len(self._helds):
                return True
            if self._named:
                Path(self.place.path).unlink(missing_ok=True)
                self._named = False
            if not try_lock(self._fd, fcntl.LOCK_EX):
                return True
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1
            return False

    def is_referenced(self) -> bool:
        with self._lock:
            if self._fd < 0:
                return False
            if not try_lock(self._fd, fcntl.LOCK_EX):
                return True
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            return False

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class SharedBlocks:
    """Maker of blocks in the directory of one broker; makes none without shared memory."""

    def __init__(
        self, directory: Path | None, name: str, lock: int = -1, left: Sequence[SharedMemoryStorage] = ()
    ) -> None:
        self._directory = directory
        self._name = name
        self._lock = lock
        self.left = left
        """Blocks of this store's dead brokers that readers have still: without a name, let go of."""
        self._numbers = count(1)

    @classmethod
    def begin(cls, store_id: str, epoch: int, root: Path = _ROOT) -> SharedBlocks:
        """Remove the blocks of dead brokers, and create a directory for this one."""
        name = f"ledger-{os.getuid()}-{store_id}-{epoch}"
        directory, making = root / name, root / f".{name}"
        try:
            left = _sweep(root, f"ledger-{os.getuid()}-", store_id)
            shutil.rmtree(directory, ignore_errors=True)
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(mode=0o700)
            lock = disk.create_file(making / "lock")
            disk.hold(lock)
            making.rename(directory)  # locked already: an unlocked directory is swept
        except (OSError, LedgerError) as error:
            _log.info("no blocks in shared memory: %s", error)
            return cls(None, "")
        return cls(directory, f"{store_id} {epoch}", lock, left)

    def __bool__(self) -> bool:
        return self._directory is not None

    def put(self, ledger_id: int, first_entry: int, frames: pa.Buffer) -> SharedMemoryStorage | None:
        """Create a block of these frames; None without room for it, or without shared memory."""
        if self._directory is None:
            return None
        number = next(self._numbers)
        head = f"LEDGERSHM1 {self._name} {number} {ledger_id} {first_entry} {frames.size}"
        path = self._directory / f"{number}.block"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            _log.info("no block in shared memory: %s", error)
            return None
        storage = SharedMemoryStorage(fd, SharedPlace(str(path), head), frames.size)
        try:
            os.posix_fallocate(fd, 0, HEAD_BYTES + frames.size)
            disk.write_all(fd, [head.encode().ljust(HEAD_BYTES, b"\0"), memoryview(frames)], 0, path)
        except (OSError, LedgerError) as error:
            storage.release()
            if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.ENOMEM):
                _log.warning("no block in shared memory: %s", error)
            return None
        return storage

    def close(self) -> None:
        """Remove all of it. Readers keep their mapped blocks."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            os.close(self._lock)
            self._directory = None


def _sweep(root: Path, prefix: str, store_id: str) -> list[SharedMemoryStorage]:
    """Remove blocks of dead brokers. Return those of this store that readers still map."""
    left = list[SharedMemoryStorage]()
    for directory in root.glob(f"{prefix}*"):
        # A directory that is alive, or that another broker removes now, is skipped; an empty one has no memory.
        with suppress(OSError, LedgerError):
            if directory.stat().st_uid != os.getuid():
                continue
            with disk.opened(directory / "lock", writable=True) as fd:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = list(filter(None, map(_held_block, directory.glob("*.block"))))
                if directory.name.startswith(f"{prefix}{store_id}-"):
                    for storage in held:
                        storage.release()
                    left += [storage for storage in held if storage.is_pinned()]
                elif held:
                    continue
                shutil.rmtree(directory, ignore_errors=True)
    return left


def _held_block(path: Path) -> SharedMemoryStorage | None:
    """Return a dead broker's block that a reader still maps; free the memory of any other."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    storage = SharedMemoryStorage(fd, SharedPlace(str(path), ""), max(os.fstat(fd).st_size - HEAD_BYTES, 0))
    if storage.is_referenced():
        return storage
    storage.release()
    return None
