"""Live files: files of the local directory whose bytes the bucket has only in objects of the write-ahead log.

For each live file, this module records the number of the oldest log object that a new broker needs to restore the file.
This object and later objects must not be deleted.

Invariants
- A file is recorded before its bytes are appended to the log. The number of the object that will contain the bytes is
  not known yet. So the recorded number may be lower, but never higher.
- A file is forgotten when its bytes in the log are not needed any more. The bytes of a segment (a file of a ledger) are
  needed until the segment is uploaded or removed from the metadata. The bytes of a staged part (a file with rows of one
  Spark task) are needed until the part is deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import NamedTuple


class LiveFile(NamedTuple):
    """Live file: the number of the oldest log object that is needed for it, and its length in the log."""

    first: int
    length: int


class LiveFiles:
    """Live files of one store. Any thread may call any method."""

    def __init__(self) -> None:
        self._files: dict[str, LiveFile] = {}
        self._lock = threading.Lock()

    def record(self, name: str, number: int, end: int) -> None:
        """Record that bytes up to `end` of a file are in objects from `number` on."""
        with self._lock:
            known = self._files.get(name)
            first = number if known is None else min(known.first, number)
            self._files[name] = LiveFile(first, end if known is None else max(end, known.length))

    def length(self, name: str) -> int:
        """Return the length of a file in the log, 0 for a file that is not live."""
        with self._lock:
            known = self._files.get(name)
            return 0 if known is None else known.length

    def carried(self, name: str, number: int) -> None:
        """Record that all bytes of a file were written to the log again, in objects from `number` on."""
        with self._lock:
            known = self._files.get(name)
            if known is not None:
                self._files[name] = known._replace(first=number)

    def names(self) -> set[str]:
        """Return the names of all live files."""
        with self._lock:
            return set(self._files)

    def keep(self, needed: Callable[[], Collection[str]]) -> dict[str, LiveFile]:
        """Keep the files whose names `needed` returns, forget all others, and return the kept files.

        A file that is recorded during the call is kept, because `needed` may not know the file yet.
        """
        gone = self.names() - set(needed())
        with self._lock:
            for name in gone:
                del self._files[name]
            return dict(self._files)


def to_carry(files: dict[str, LiveFile], first_wanted: int, bytes_max: int) -> list[str]:
    """Return the names of files to carry, so that all log objects below `first_wanted` can be deleted.

    To carry a file is to write its bytes to the log again. A file above `bytes_max` is left out, because its segment is
    rolled over and uploaded instead.
    """
    return sorted(name for name, file in files.items() if file.first < first_wanted and file.length <= bytes_max)


def oldest(files: Collection[LiveFile]) -> list[int]:
    return [file.first for file in files]
