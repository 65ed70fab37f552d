"""Epoch of the store in a file beside the metadata, which a broker checks before every acknowledgement.

    epoch u64, little-endian
    0                       8

The metadata decide who owns a store. This file tells the brokers of the same host without a query. A new owner writes
it after the metadata and before it reads any segment.

Invariants
- The file is written in place: a broker that has it open sees what its successor writes.
- Its modification time is the epoch, in seconds, set by the writer. No clock produces that value, so one `stat` by name
  tells whether another broker wrote. The check precedes every acknowledgement, and costs one call.
- Any other finding (another number, a truncated, removed or replaced file) is decided by the metadata.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from pyspark_ledger.ledger import disk

_EPOCH = struct.Struct("<Q")


class EpochFile:
    """File of the epoch, open as long as its broker lives."""

    def __init__(self, path: Path, epoch: int) -> None:
        """Write `epoch`, which the metadata have already."""
        self._expected = _EPOCH.pack(epoch)
        self._stamp_ns = epoch * 1_000_000_000
        self._name = str(path)  # checked twice for every group of appends, so without a path object
        self._fd = disk.open_or_create(path)
        try:
            disk.write_all(self._fd, [self._expected], 0, path)
            os.utime(self._fd, (epoch, epoch))
            self._file = os.fstat(self._fd)
        except BaseException:
            self.close()
            raise

    def is_current(self) -> bool:
        """Return whether no other broker has written its epoch, as far as this file shows."""
        try:
            # By its name: a new owner writes to the file of that name.
            return self._fd >= 0 and self._is_untouched(os.stat(self._name))  # noqa: PTH116 — see `_name`
        except OSError:
            return False  # the disk is failing: the metadata decide

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _is_untouched(self, found: os.stat_result) -> bool:
        ours = self._file
        if (found.st_ino, found.st_dev, found.st_size) != (ours.st_ino, ours.st_dev, _EPOCH.size):
            return False
        # The file system does not keep the time, or another program touched the file: its content decides.
        return found.st_mtime_ns == self._stamp_ns or os.pread(self._fd, _EPOCH.size, 0) == self._expected
