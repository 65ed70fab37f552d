"""The store's epoch where a broker can look at it before every acknowledgement: a file beside the metadata.

    epoch u64, little-endian
    0                       8

The metadata decides who owns a store; this file tells the brokers of the same host without a query. Whoever takes the
store over writes it after the metadata and before it reads any segment.

Invariants
- The file is written in place: a broker that has it open sees what its successor writes.
- What is not plainly this broker's epoch (another number, a file that was cut, removed or replaced) is a question for
  the metadata, and never an answer.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from ledger import disk

_EPOCH = struct.Struct("<Q")


class EpochFile:
    """The file, open for as long as its broker lives."""

    def __init__(self, path: Path, epoch: int) -> None:
        """Write `epoch`, which the metadata has already."""
        self._expected = _EPOCH.pack(epoch)
        self._path = path
        self._fd = disk.open_or_create(path)
        self._file = os.fstat(self._fd)
        try:
            disk.write_all(self._fd, [self._expected], 0, path)
        except BaseException:
            self.close()
            raise

    def is_current(self) -> bool:
        """Whether nobody has written another epoch, as far as this file can tell."""
        fd = self._fd
        try:
            # By its name, too: whoever takes the store over writes what is there then.
            return os.pread(fd, _EPOCH.size + 1, 0) == self._expected and os.path.samestat(
                self._path.stat(), self._file
            )
        except OSError:
            return False  # closed, or the disk is failing: the metadata knows

    def close(self) -> None:
        """Let go of the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
