"""Ids of the batches that one execution of a query reads, for log messages: see `ledger.logs.batch`.

    Spark calls              the batch gets
    latestOffset(start)      the next id; but the same id again for the same start
    partitions(start, end)   the id that `start` got; it is now stored for `end`, too
    commit(end)              the id that is stored for `end`

Rules
- If a trigger finds no rows, the next trigger has the same id, because it has the same start.
- The ids of the newest `_KEPT` ends are stored. Two would be enough: Spark commits batch n before it plans batch n + 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark_ledger.connector.read.offsets import REPORT_KEY
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.logs.batch import BatchId

_KEPT = 8


class ReadBatches:
    """Ids of the batches of one execution."""

    def __init__(self) -> None:
        self._run = new_id().partition("-")[0]
        self._count = 0
        self._start = ""
        self._ends: dict[str, BatchId] = {}
        self.newest: BatchId | None = None

    def after(self, start: Mapping[str, Any]) -> BatchId:
        """Return the id of the batch that begins at `start`."""
        key = _text(start)
        if self.newest is None or key != self._start:
            self._start, self.newest = key, BatchId(f"{self._run}-{self._count}")
            self._count += 1
        return self.newest

    def between(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> BatchId:
        """Return the id of the batch from `start` to `end`."""
        batch = self.after(start)
        self._ends[_text(end)] = batch
        while len(self._ends) > _KEPT:
            del self._ends[next(iter(self._ends))]
        return batch

    def ending_at(self, end: Mapping[str, Any]) -> BatchId | None:
        """Return the id of the batch that ends at `end`. None if an earlier execution has read the batch."""
        return self._ends.get(_text(end))


def _text(offset: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in offset.items() if name != REPORT_KEY}, sort_keys=True)
