"""Counter of the parts that the tasks of sinks have written: committed, copied and unneeded parts."""

from __future__ import annotations

import threading
from collections.abc import Collection

import msgspec

from pyspark_ledger.ledger.protocol.commits import StagedPart
from pyspark_ledger.ledger.protocol.metrics import PartCounts


class PartCounter:
    """Parts since the start of the broker. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = PartCounts()

    def commit(self, parts: Collection[StagedPart]) -> None:
        """Count the parts of a run that was committed now."""
        direct = [part.length for part in parts if part.object is not None]
        staged = [part.length for part in parts if part.object is None]
        self._add(direct=len(direct), direct_bytes=sum(direct), staged=len(staged), staged_bytes=sum(staged))

    def copy(self, sizes: Collection[int]) -> None:
        """Count objects that the broker has copied within the bucket."""
        self._add(copied=len(sizes), copied_bytes=sum(sizes))

    def sweep(self, uploads: int) -> None:
        """Count uploads whose objects must be deleted."""
        self._add(swept=uploads)

    def state(self) -> PartCounts:
        """Return the present counts."""
        return self._counts

    def _add(self, **more: int) -> None:
        with self._lock:
            sums = {name: getattr(self._counts, name) + count for name, count in more.items()}
            self._counts = msgspec.structs.replace(self._counts, **sums)
