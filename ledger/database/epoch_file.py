"""Epoch of the store in a file beside the metadata, which a broker checks before every acknowledgement.

    epoch u64, little-endian
    0                       8

The epoch is a number that rises with each start of a broker. The epoch in the metadata decides which broker owns the
store. This file makes the check cheap: it needs no query of the metadata. A new broker first raises the epoch in the
metadata, then writes the file, and only then reads the files of ledgers.

Invariants
- The file is written in place. So a broker that has the file open can read the epoch of a later broker.
- The writer sets the file's modification time to the epoch, as seconds since 1970. No clock shows such an early time.
  So one `stat`, a call that returns the file's time and size, shows whether another broker has written the file.
- If the file is not as this broker wrote it (another number, truncated, removed, replaced), the metadata are read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

from pyspark_ledger.ledger import disk

_EPOCH = struct.Struct("<Q")


class EpochFile:
    """File of the epoch. The broker keeps the file open until the broker ends."""

    def __init__(self, path: Path, epoch: int, compare: Callable[[int], None]) -> None:
        """Write `epoch`, after the metadata have it. `compare` raises Fenced if the metadata have another epoch."""
        self._epoch = epoch
        self._compare = compare
        self._expected = _EPOCH.pack(epoch)
        self._stamp_ns = epoch * 1_000_000_000
        self._name = str(path)  # a text, because `stat` of a path object is slower
        self._fd = disk.open_or_create(path)
        try:
            disk.write_all(self._fd, [self._expected], 0, path)
            os.utime(self._fd, (epoch, epoch))
            self._file = os.fstat(self._fd)
        except BaseException:
            self.close()
            raise

    def require(self) -> None:
        """Raise Fenced if another broker has raised the epoch. Reads the metadata only if the file has changed."""
        if not self.is_current():
            self._compare(self._epoch)

    def is_current(self) -> bool:
        """Return whether the file is as this broker wrote it. If not, the metadata must be read."""
        try:
            # `stat` of the name, not of `_fd`: if the file was replaced, a new owner writes to the new file.
            found, ours = os.stat(self._name), self._file  # noqa: PTH116 — see `_name`
            if self._fd < 0 or (found.st_ino, found.st_dev, found.st_size) != (ours.st_ino, ours.st_dev, _EPOCH.size):
                return False
            # If the file system or another program has changed the time, the content is compared.
            return found.st_mtime_ns == self._stamp_ns or os.pread(self._fd, _EPOCH.size, 0) == self._expected
        except OSError:
            return False  # the file is missing or the disk fails

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
