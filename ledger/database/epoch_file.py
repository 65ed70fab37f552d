"""The store's epoch where a broker can look at it before every acknowledgement: a file beside the metadata.

    epoch u64, little-endian
    0                       8

The metadata decides who owns a store; this file tells the brokers of the same host without a query. Whoever takes the
store over writes it after the metadata and before it reads any segment.

Invariants
- The file is written in place: a broker that has it open sees what its successor writes.
- Its time of modification is the epoch, in seconds, set by whoever wrote it: no clock says that, so one look at the
  name tells that nobody wrote since. The look is taken before every acknowledgement, and costs one call.
- What is not plainly this broker's epoch (another number, a file that was cut, removed or replaced) is a question for
  the metadata, and never an answer.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from pyspark_ledger.ledger import disk

_EPOCH = struct.Struct("<Q")


class EpochFile:
    """The file, open for as long as its broker lives."""

    def __init__(self, path: Path, epoch: int) -> None:
        """Write `epoch`, which the metadata has already."""
        self._expected = _EPOCH.pack(epoch)
        self._stamp_ns = epoch * 1_000_000_000
        self._name = str(path)  # a look is taken twice for every group of appends: no path object for it
        self._fd = disk.open_or_create(path)
        try:
            disk.write_all(self._fd, [self._expected], 0, path)
            os.utime(self._fd, (epoch, epoch))
            self._file = os.fstat(self._fd)
        except BaseException:
            self.close()
            raise

    def is_current(self) -> bool:
        """Whether nobody has written another epoch, as far as this file can tell."""
        try:
            # By its name: whoever takes the store over writes what is there then.
            return self._fd >= 0 and self._is_untouched(os.stat(self._name))  # noqa: PTH116 — see `_name`
        except OSError:
            return False  # the disk is failing: the metadata knows

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _is_untouched(self, found: os.stat_result) -> bool:
        ours = self._file
        if (found.st_ino, found.st_dev, found.st_size) != (ours.st_ino, ours.st_dev, _EPOCH.size):
            return False
        # A file system that does not keep the time, or somebody who touched the file: what it holds tells.
        return found.st_mtime_ns == self._stamp_ns or os.pread(self._fd, _EPOCH.size, 0) == self._expected
