"""Blocks in shared memory: entries from object storage, in files that readers on this host map.

    /dev/shm/ledger-<user>-<store>-<epoch>/       one directory for each broker, which keeps its `lock` locked. <store>
                                                  is id and live name, because a copy may have the same id and epoch
        lock
        <number>.block      head, 256 bytes: "LEDGERSHM1 <store> <epoch> <number> <segment> <first entry> <length>" and
                            zeros, then the frames, which are the entries with their headers

Invariants
- A name is never used twice: the epoch rises with each broker of the store, and the number with each block of a broker.
- The memory of a file is reserved before a process maps the file. If memory is short, the block is not created. So the
  operating system kills no process for lack of memory.
- A process that maps a block has a shared lock on the open file. The kernel keeps the lock until the mapping ends or
  the process dies.
- The file of an evicted block is unlinked (its name is deleted). Once no process has a shared lock, the broker
  truncates the file, which frees its memory. Then a process that has opened the file and not locked it yet finds an
  empty file. So it detects that the block is gone.
- To test for shared locks, the broker takes an exclusive lock for a moment. A reader that meets this lock tries again.
- Every reader that maps a block compares the block's head with the broker's reply.
- A broker removes the blocks of dead brokers when it starts. Exception: a block of another store that readers still map
  stays. The next broker of that store unlinks the block, and counts the memory of the block until readers release it.
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

_ROOT = Path("/dev/shm")  # noqa: S108 — the broker's directory in it is private
_log = logging.getLogger(__name__)


class SharedMemoryReference:
    """Reference to a block of shared memory. The file keeps its name while the reference exists."""

    def __init__(self, storage: SharedMemoryStorage) -> None:
        self._storage = storage
        self._frames: pa.Buffer | None = None

    @property
    def place(self) -> SharedPlace:
        return self._storage.place

    @property
    def frames(self) -> pa.Buffer:
        """The bytes of the block, mapped at the first use."""
        if self._frames is None:
            self._frames = self._storage.frames
        return self._frames


class SharedMemoryStorage:
    """Storage of one block in a file of shared memory."""

    def __init__(self, fd: int, place: SharedPlace, size: int) -> None:
        self.place = place
        self.size = size
        self._fd = fd
        self._references = weakref.WeakSet[SharedMemoryReference]()
        self._released = False
        self._named = True
        self._lock = threading.Lock()

    @property
    def frames(self) -> pa.Buffer:
        """The bytes of the block, mapped. Raises NotFound if the file was removed."""
        return map_shared(self.place, 0, self.size)

    def acquire(self) -> SharedMemoryReference:
        reference = SharedMemoryReference(self)
        with self._lock:
            self._references.add(reference)
        return reference

    def release(self) -> None:
        self._released = True
        self.is_pinned()

    def is_pinned(self) -> bool:
        with self._lock:
            if self._fd < 0 or not self._released:
                return False
            if len(self._references):
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
    """Blocks in the directory of one broker. On a host without shared memory, no block is created."""

    def __init__(
        self, directory: Path | None, name: str, lock: int = -1, left: Sequence[SharedMemoryStorage] = ()
    ) -> None:
        self._directory = directory
        self._name = name
        self._lock = lock
        self.left = left
        """Blocks of this store's dead brokers that readers still map. They are unlinked and released."""
        self._numbers = count(1)

    @classmethod
    def begin(cls, store: str, epoch: int, root: Path = _ROOT) -> SharedBlocks:
        """Remove the blocks of dead brokers, and create a directory for this broker."""
        name = f"ledger-{os.getuid()}-{store}-{epoch}"
        directory, making = root / name, root / f".{name}"
        try:
            left = _sweep(root, f"ledger-{os.getuid()}-", store)
            shutil.rmtree(directory, ignore_errors=True)
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(mode=0o700)
            lock = disk.create_file(making / "lock")
            disk.hold(lock)
            making.rename(directory)  # locked already, because other brokers remove an unlocked directory
        except (OSError, LedgerError) as error:
            _log.info("blocks in shared memory are not available: %s", error)
            return cls(None, "")
        return cls(directory, f"{store} {epoch}", lock, left)

    def __bool__(self) -> bool:
        return self._directory is not None

    def put(self, ledger_id: int, first_entry: int, frames: pa.Buffer) -> SharedMemoryStorage | None:
        """Create a block with these frames. Returns None if shared memory is missing or too small."""
        if self._directory is None:
            return None
        number = next(self._numbers)
        head = f"LEDGERSHM1 {self._name} {number} {ledger_id} {first_entry} {frames.size}"
        path = self._directory / f"{number}.block"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            _log.info("a block in shared memory cannot be created: %s", error)
            return None
        storage = SharedMemoryStorage(fd, SharedPlace(str(path), head), frames.size)
        try:
            os.posix_fallocate(fd, 0, HEAD_BYTES + frames.size)
            disk.write_all(fd, [head.encode().ljust(HEAD_BYTES, b"\0"), memoryview(frames)], 0, path)
        except (OSError, LedgerError) as error:
            storage.release()
            if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.ENOMEM):
                _log.warning("a block in shared memory cannot be created: %s", error)
            return None
        return storage

    def close(self) -> None:
        """Remove the directory with all blocks. Readers can still read the blocks that they have mapped."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            os.close(self._lock)
            self._directory = None


def _sweep(root: Path, prefix: str, store: str) -> list[SharedMemoryStorage]:
    """Remove the blocks of dead brokers. Return the blocks of this store that readers still map."""
    left = list[SharedMemoryStorage]()
    for directory in root.glob(f"{prefix}*"):
        # An error skips the directory: its broker is alive, or another broker is removing the directory.
        with suppress(OSError, LedgerError):
            if directory.stat().st_uid != os.getuid():
                continue
            with disk.opened(directory / "lock", writable=True) as fd:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mapped = list(filter(None, map(_mapped_block, directory.glob("*.block"))))
                if directory.name.startswith(f"{prefix}{store}-"):
                    for storage in mapped:
                        storage.release()
                    left += [storage for storage in mapped if storage.is_pinned()]
                elif mapped:
                    continue
                shutil.rmtree(directory, ignore_errors=True)
    return left


def _mapped_block(path: Path) -> SharedMemoryStorage | None:
    """Return a dead broker's block if a reader still maps it. Free the memory of any other block, and return None."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    storage = SharedMemoryStorage(fd, SharedPlace(str(path), ""), max(os.fstat(fd).st_size - HEAD_BYTES, 0))
    if storage.is_referenced():
        return storage
    storage.release()
    return None
