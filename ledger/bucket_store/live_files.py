"""Live files: files of the store's directory that can be restored only from the write-ahead log.

For each file this module knows the oldest log object that has bytes of it. Such an object must not be deleted.

Invariants
- A file is recorded before its bytes are appended to the log. The recorded number is at most the number of the object
  that gets the bytes.
- A file is forgotten only after its bytes are not needed any more: the segment is uploaded or not listed, the part
  is deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import NamedTuple


class LiveFile(NamedTuple):
    """File with bytes in the log: its oldest object, and its length."""

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
        """Return the length of a file, 0 for a file that is not live."""
        with self._lock:
            known = self._files.get(name)
            return 0 if known is None else known.length

    def carried(self, name: str, number: int) -> None:
        """Record that all bytes of a file are in objects from `number` on."""
        with self._lock:
            known = self._files.get(name)
            if known is not None:
                self._files[name] = known._replace(first=number)

    def names(self) -> set[str]:
        """Return the names of all live files."""
        with self._lock:
            return set(self._files)

    def keep(self, needed: Callable[[], Collection[str]]) -> dict[str, LiveFile]:
        """Forget the files that are not among those that `needed` returns. Return the others.

        A file that is recorded during the call is kept: `needed` may not know the file yet.
        """
        gone = self.names() - set(needed())
        with self._lock:
            for name in gone:
                del self._files[name]
            return dict(self._files)


def to_carry(files: dict[str, LiveFile], first_wanted: int, bytes_max: int) -> list[str]:
    """Return the files to write to the log again, so that all objects below `first_wanted` can be deleted.

    A file above `bytes_max` is not carried: its segment is rolled over and uploaded instead.
    """
    return sorted(name for name, file in files.items() if file.first < first_wanted and file.length <= bytes_max)


def oldest(files: Collection[LiveFile]) -> list[int]:
    return [file.first for file in files]
